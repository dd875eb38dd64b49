"""Operators whose kernels allocate nothing but their outputs."""

from __future__ import annotations

from typing import Any

import torch


def is_plain(func: Any) -> bool:
    """Whether an operator only makes views, fills tensors or works element by element."""
    tags = getattr(func, "tags", ())
    return torch.Tag.pointwise in tags
