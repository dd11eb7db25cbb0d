"""One thread per process for all tests, because the graphs are small and many processes run at once."""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # read when torch_geometric imports Triton, which then interprets kernels on the CPU; nothing else uses Triton there
    os.environ["TRITON_INTERPRET"] = "1"
