"""Names of devices, as code that asks for a GPU writes them."""

from __future__ import annotations

from typing import Any

import torch

CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")


def is_cuda_name(device: Any) -> bool:
    """Whether a device argument means a GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"
