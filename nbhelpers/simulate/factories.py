"""Tensors that code makes: on the simulated card, on the host, or without a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.simulate.devices import CPU, CUDA, META, is_cuda_name
from nbhelpers.simulate.shadow import MOST_WEIGHTS, is_small

if TYPE_CHECKING:
    from nbhelpers.simulate.tracker import Tracker

_T = torch.Tensor
# Factories whose values are the same in every run, or whose values matter to no size.
VALUED = {
    getattr(torch, name)
    for name in [
        "zeros",
        "ones",
        "full",
        "arange",
        "linspace",
        "eye",
        "empty",
        "randint",
        "rand",
        "randn",
        "scalar_tensor",
        "randperm",
        "tril_indices",
        "triu_indices",
        "logspace",
        "range",
        "empty_strided",
        "bartlett_window",
        "hann_window",
    ]
    if hasattr(torch, name)
}
FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, _T.new_tensor}
LIKE = {torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like, torch.rand_like}
LIKE |= {torch.randn_like, torch.randint_like}


DRAWN = {torch.rand, torch.randn, torch.randint, torch.randperm}


class Factories:
    """The part of the masquerade that makes tensors."""

    tracker: Tracker
    explicit_meta: dict[int, Any]
    default_device: torch.device | None

    def _factory(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if func in LIKE and device is None:
            device = self.device_of(args[0])
        if func is _T.new_tensor and device is None:
            device = self.device_of(args[0])
        if device is None and func not in FROM_DATA:
            device = self.default_device
        if is_cuda_name(device):
            return self._made_on_card(func, args, kwargs)
        if device is None and not self.tracker.building:
            return func(*args, **kwargs)
        if device is not None and torch.device(device) == META:
            return self._made_on_meta(func, args, kwargs)
        if not self.tracker.building or (device is not None and func in FROM_DATA):
            return func(*args, **kwargs)
        if func in FROM_DATA or (
            device is not None and not isinstance(device, (str, torch.device))
        ):
            return func(*args, **kwargs)
        return self._made_on_host(func, args, kwargs)

    def _made_on_card(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
        if func in FROM_DATA:
            kwargs = kwargs | {"device": "cpu"}
            args = tuple(self._to(a, CPU) if isinstance(a, torch.Tensor) else a for a in args)
            leaf = kwargs.pop("requires_grad", False)
            moved = self._to(func(*args, **kwargs), CUDA)
            return moved.requires_grad_() if leaf else moved
        self.tracker.to_card = True
        try:
            out = func(*args, **(kwargs | {"device": "meta"}))
        finally:
            self.tracker.to_card = False
        self._remember(func, out, args, kwargs)
        return out

    def _made_on_meta(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Code that asks for tensors without storage itself, as loaders of large models do."""
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.is_meta:
            self.tracker.release(out)
            self.tracker.live.pop(out.untyped_storage()._cdata, None)
            self.tracker.mark_host(out)
            key = out.untyped_storage()._cdata
            self.explicit_meta[key] = self.tracker.hosts.get(key)
        return out

    def _made_on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The model's own tensors before it moves: without data, so that building costs nothing."""
        kwargs = {k: v for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
        out = func(*args, **(kwargs | {"device": "meta"}))
        if isinstance(out, torch.Tensor):
            self.tracker.mark_host(out)
            self.explicit_meta.pop(out.untyped_storage()._cdata, None)
            self._remember(func, out, args, kwargs)
        return out

    def _remember(self, func: Any, out: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Keep the values of a small tensor that a factory fills."""
        if func not in VALUED or not isinstance(out, torch.Tensor) or not is_small(out):
            return
        if func in (torch.empty, torch.empty_strided):
            return
        if self.tracker.building and out.is_floating_point() and out.numel() > MOST_WEIGHTS:
            return
        plain = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")}
        given = [a for a in (*args, *plain.values()) if isinstance(a, torch.Tensor)]
        if not any(t.is_meta for t in given):
            self.tracker.has_draws |= func in DRAWN
            self.tracker.shadows.keep(out, func(*args, **plain, device="cpu"))
