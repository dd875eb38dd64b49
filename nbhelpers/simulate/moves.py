"""Tensors that move between the host and the simulated card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.simulate.data_dependent import tell_unknown
from nbhelpers.simulate.devices import CUDA, META, is_cuda_name
from nbhelpers.simulate.shadow import MOST_WEIGHTS, is_small
from nbhelpers.simulate.state import INPUTS

if TYPE_CHECKING:
    from nbhelpers.simulate.tracker import Tracker

_T = torch.Tensor


class Moves:
    """The part of the masquerade that moves tensors."""

    tracker: Tracker

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, rest = _parse_to(self, args, kwargs)
        here = self.device_of(tensor)
        there = here if device is None else CUDA if is_cuda_name(device) else torch.device(device)
        if there.type == here.type or (there == META and tensor.is_meta):
            return _T.to(tensor, **({"dtype": dtype} if dtype else {}), **rest)
        if there.type == "cuda":
            return self._to_card(tensor, dtype)
        if there == META:
            return _T.to(tensor, META, **({"dtype": dtype} if dtype else {}))
        return self._to_host(tensor, dtype)

    def _to_card(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        tracker = self.tracker
        values = None
        if not tensor.is_meta:
            values = tensor.detach()
        elif tracker.shadows.has(tensor):
            values = tracker.shadows.values(tensor)
        tracker.to_card = True
        try:
            out = _T.to(tensor, META, dtype or tensor.dtype, copy=True)
        finally:
            tracker.to_card = False
        if not tracker.building and tracker.state.phase_now != "optimizer":
            tracker.relabel(out, INPUTS)
        is_weight = tracker.building and out.is_floating_point() and out.numel() > MOST_WEIGHTS
        if values is not None and is_small(out) and not is_weight:
            tracker.shadows.keep(out, values.to(out.dtype))
        return out

    def _to_host(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        dtype = dtype or tensor.dtype
        if self.tracker.shadows.has(tensor):
            return self.tracker.shadows.values(tensor).to(dtype, copy=True)
        if self.tracker.building:
            out = torch.empty_like(tensor, dtype=dtype)
            self.tracker.release(out)
            self.tracker.live.pop(out.untyped_storage()._cdata, None)
            self.tracker.mark_host(out)
            return out
        # One zero that stands for all: large activations may be moved to main memory.
        return torch.zeros((), dtype=dtype).expand(tensor.shape)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return values: known ones, or zeros."""
        if not tensor.is_meta:
            return tensor
        if self.tracker.shadows.has(tensor):
            return self.tracker.shadows.values(tensor)
        tell_unknown(self.tracker, tensor)
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)

    def _copy(self, target: torch.Tensor, source: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not target.is_meta and isinstance(source, torch.Tensor) and source.is_meta:
            if self.tracker.shadows.has(source):
                return _T.copy_(target, self.tracker.shadows.values(source))
            return target
        _T.copy_(target, source)
        return target

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None and self.device_of(tensor) == CUDA:
            return _T.type(torch.empty(0, dtype=tensor.dtype)).replace("torch.", "torch.cuda.")
        if isinstance(dtype, torch.dtype):
            return self._to(tensor, dtype)
        return _T.type(tensor, *([] if dtype is None else [dtype]), *args, **kwargs)


def _parse_to(
    mode: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, torch.dtype | None, dict[str, Any]]:
    """Return device, dtype and the rest of the arguments of `Tensor.to`."""
    rest = {k: v for k, v in kwargs.items() if k in ("copy", "memory_format")}
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    other = kwargs.get("other")
    for position, each in enumerate(args):
        if isinstance(each, torch.Tensor):
            other = each
        elif isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, bool):
            # (device, dtype, non_blocking, copy), (dtype, non_blocking, copy)
            if position == len(args) - 1 and sum(isinstance(a, bool) for a in args) == 2:
                rest["copy"] = each
        elif each is not None:
            device = each
    if other is not None:
        device, dtype = mode.device_of(other), other.dtype
    if "memory_format" in rest and rest["memory_format"] is torch.preserve_format:
        rest.pop("memory_format")
    return device, dtype, rest
