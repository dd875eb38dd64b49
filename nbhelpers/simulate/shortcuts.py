"""Results of the commonest operations on shapes, without torch's slow rules written in Python.

A pointwise operation on dense tensors of one type gives a tensor laid out like its largest input.
Whatever is less plain than that takes torch's own rule. A step of Gemma-2 takes half the time so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nbhelpers.simulate.kernels_call import overloads

aten = torch.ops.aten

_PLAIN = ("default", "Tensor", "Scalar", "Tensor_Scalar")


def _overloads(names: str) -> set[Any]:
    return overloads(names, _PLAIN)


_UNARY = _overloads(
    "neg exp exp2 log log1p sqrt rsqrt reciprocal tanh sigmoid relu abs sin cos erf"
)
_UNARY |= _overloads("square silu gelu mish hardtanh hardsigmoid hardswish clone leaky_relu sign")
_BINARY = _overloads("add sub mul div rsub tanh_backward sigmoid_backward silu_backward")
_BINARY |= _overloads("gelu_backward threshold_backward maximum minimum")
SLOW = object()  # torch's own rule must tell


def shortcut(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a plain operation, or `SLOW`."""
    rule = _RULES.get(func)
    if rule is None:
        return SLOW
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not first.is_meta:
        return SLOW
    return rule(first, args, kwargs)


def _unary(first: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Anything but one tensor and plain numbers: an exponent that is a tensor, for instance.
    plain = not any(isinstance(a, torch.Tensor) for a in args[1:])
    floats = first.is_floating_point() and kwargs.get("memory_format") is None
    return _like(first) if plain and floats else SLOW


def _like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    if tensor.is_contiguous():  # `empty_like` goes through Python here, `empty` does not
        return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="meta")
    return torch.empty_like(tensor, dtype=dtype or tensor.dtype)


def _binary(first: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not first.is_floating_point() or any(isinstance(a, torch.Tensor) for a in args[2:]):
        return SLOW
    second = args[1] if len(args) > 1 else SLOW
    if isinstance(second, (int, float)) and not isinstance(second, bool):
        return _like(first)
    if not isinstance(second, torch.Tensor):
        return SLOW
    if (
        second.dim() == 0
        and first.dim()
        and second.is_floating_point() <= first.is_floating_point()
    ):
        return _like(first)
    if second.dtype is not first.dtype or not second.is_meta:
        return SLOW
    if first.shape == second.shape:
        return _like(first) if first.stride() == second.stride() else SLOW
    if not (first.is_contiguous() and second.is_contiguous()):
        return SLOW
    small, large = (first, second) if first.dim() < second.dim() else (second, first)
    if small.numel() > large.numel():
        small, large = large, small
    tail = large.shape[large.dim() - small.dim() :]
    fits = small.dim() <= large.dim() and all(
        s in (1, t) for s, t in zip(small.shape, tail, strict=True)
    )
    return _like(large) if fits else SLOW


def _converted(first: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "meta":
        return SLOW
    if any(kwargs.get(name) is not None for name in ("memory_format", "layout", "pin_memory")):
        return SLOW
    return _like(first, kwargs.get("dtype"))


def _grouped(first: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Products of groups; torch's own rule for shapes takes bf16 only, the kernels more."""
    second = args[1]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    dtype = kwargs.get("out_dtype") or first.dtype
    if first.dim() == 2 and second.dim() == 2:
        shape = (offsets.shape[0], first.shape[0], second.shape[1])
    elif first.dim() == 2:
        shape = (first.shape[0], second.shape[-1])
    elif second.dim() == 2:
        shape = (first.shape[1], second.shape[1])
    else:
        shape = (first.shape[0], first.shape[1], second.shape[2])
    return torch.empty(shape, dtype=dtype, device="meta")


_RULES: dict[Any, Callable[..., Any]] = (
    dict.fromkeys(_UNARY | _overloads("pow"), _unary)
    | dict.fromkeys(_BINARY, _binary)
    | {aten._to_copy.default: _converted}
    | dict.fromkeys(_overloads("_grouped_mm"), _grouped)
)
