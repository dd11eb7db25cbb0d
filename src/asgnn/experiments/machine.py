"""The machine on which a result was made, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from asgnn.version import __version__


def origin(command: str, device: torch.device | str) -> dict[str, str]:
    """The command, version and machine of a record."""
    return {"command": command, "version": __version__, "machine": machine(device), "torch": torch.__version__}


def machine(device: torch.device | str) -> str:
    """The GPU's name, or the processor's and the number of its cores."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    return f"{name}, {os.cpu_count()} cores"
