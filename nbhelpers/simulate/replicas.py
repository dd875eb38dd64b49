"""One of several processes: the buckets in which DDP lets gradients meet.

Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp of torch 2.11.
What a bucket costs is one more copy of the gradients, for the whole run; with
`gradient_as_bucket_view` each gradient becomes a view of it as soon as it is reduced. What NCCL
takes outside the allocator stands in `cards`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20  # where no `bucket_cap_mb` is given


class Replica(nn.Module):
    """A model as DDP wraps it, alone: its gradients are put into buckets, and nothing is sent."""

    def __init__(
        self,
        module: nn.Module,
        *,
        world_size: int,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        """Make the buckets of all parameters that learn, on their device."""
        super().__init__()
        self.module, self.world_size = module, world_size
        self.is_view, self.is_syncing = gradient_as_bucket_view, True
        learn = [p for p in module.parameters() if p.requires_grad]
        limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
        if bucket_cap_mb is not None:
            limits = [int(bucket_cap_mb * 2**20)]
        # Gradients come in about the reverse order of the parameters.
        self.buckets: list[torch.Tensor] = []
        self._views: dict[int, torch.Tensor] = {}
        for group in bucket_groups(learn[::-1], limits):
            size = sum(p.numel() for p in group)
            bucket = torch.empty(size, dtype=group[0].dtype, device=group[0].device)
            self.buckets.append(bucket)
            at = 0
            for p in group:
                self._views[id(p)] = bucket[at : at + p.numel()].view_as(p)
                at += p.numel()
        for p in learn:
            p.register_post_accumulate_grad_hook(self._reduce)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients gather outside the buckets."""
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before

    def _reduce(self, parameter: torch.Tensor) -> None:
        if not self.is_syncing or parameter.grad is None:
            return
        view = self._views[id(parameter)]
        with torch.no_grad():
            torch.mul(parameter.grad, 1.0 / self.world_size, out=view)
            if self.is_view:
                parameter.grad = view
            else:
                parameter.grad.copy_(view)


def bucket_groups(
    parameters: list[torch.Tensor], limits_bytes: list[int]
) -> Iterator[list[torch.Tensor]]:
    """Yield the parameters of each bucket: it is closed when it has reached its limit.

    Args:
        limits_bytes: Of the first bucket, of the second, and so on; the last holds for the rest.

    Source: `_compute_bucket_assignment_by_size`; parameters of another dtype get their own.
    """
    open_groups: dict[torch.dtype, list[torch.Tensor]] = {}
    sizes: dict[torch.dtype, int] = {}
    turn: dict[torch.dtype, int] = {}
    for p in parameters:
        kind = p.dtype
        open_groups.setdefault(kind, []).append(p)
        sizes[kind] = sizes.get(kind, 0) + p.numel() * p.element_size()
        limit = limits_bytes[min(turn.get(kind, 0), len(limits_bytes) - 1)]
        if sizes[kind] >= limit:
            yield open_groups.pop(kind)
            sizes[kind], turn[kind] = 0, turn.get(kind, 0) + 1
    yield from open_groups.values()
