"""What all tests share: one thread a process, since the graphs are small and the processes are many."""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton reads it when torch_geometric imports it, and then runs kernels on a CPU; nothing else uses Triton there
    os.environ["TRITON_INTERPRET"] = "1"
