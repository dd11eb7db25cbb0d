"""What all tests share: one thread a process, since the graphs are small and the processes are many."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
