"""Code that asks for "cuda" gets tensors without storage that say they are on cuda:0.

A `TorchFunctionMode` sees every call of torch from Python before anything happens: it redirects
devices, makes the casts of autocast, takes the paths that only CUDA tensors take, and answers where
a tensor is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from nbhelpers.simulate.autocast import Autocast
from nbhelpers.simulate.cuda_paths import HALF_TO_FLOAT, CudaPaths
from nbhelpers.simulate.devices import CPU, CUDA, META
from nbhelpers.simulate.factories import FROM_DATA, LIKE, VALUED, Factories
from nbhelpers.simulate.moves import Moves
from nbhelpers.simulate.tracker import Tracker

Handler = Callable[..., Any]
_T = torch.Tensor
_RECURRENT = {torch.lstm: "LSTM", torch.gru: "GRU", torch.rnn_tanh: "RNN", torch.rnn_relu: "RNN"}
# Python functions of torch that ask whether a mode is active and would hide their inner calls.
_ASKING = ("torch.nn.functional", "torch.functional", "torch._tensor", "torch.autograd")


class Masquerade(Factories, Moves, CudaPaths, TorchFunctionMode):
    """Makes tensors without storage look and behave as if they were on a CUDA device."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.casts = Autocast()
        self.explicit_meta: dict[int, Any] = {}
        self.default_device: torch.device | None = None  # as torch.set_default_device says
        self.handlers: dict[Any, Handler] = self._getters() | self._movers() | self._special()

    def _getters(self) -> dict[Any, Handler]:
        return {
            _T.device.__get__: lambda t: self.device_of(t),
            _T.is_cuda.__get__: lambda t: self.device_of(t) == CUDA,
            _T.is_cpu.__get__: lambda t: self.device_of(t) == CPU,
            _T.is_meta.__get__: lambda t: self.device_of(t) == META,
            _T.get_device: lambda t: 0 if self.device_of(t) == CUDA else -1,
            torch.get_device: lambda t: 0 if self.device_of(t) == CUDA else -1,
        }

    def _movers(self) -> dict[Any, Handler]:
        return {
            _T.to: self._to,
            _T.cuda: lambda t, *a, **k: self._to(t, CUDA),
            _T.cpu: lambda t, *a, **k: self._to(t, CPU),
            _T.pin_memory: lambda t, *a, **k: t,
            _T.is_pinned: lambda t, *a, **k: False,
            _T.numpy: lambda t, *a, **k: self._real(t).numpy(),
            _T.tolist: lambda t: self._real(t).tolist(),
            _T.copy_: self._copy,
            _T.record_stream: lambda *a, **k: None,
            _T.type: self._type,
        }

    def _special(self) -> dict[Any, Handler]:
        attend = {
            function: self._attention
            for function in (
                F.scaled_dot_product_attention,
                torch._C._nn.scaled_dot_product_attention,
            )
        }
        return attend | {
            torch.dropout: self._dropout,
            # The faster way of a Transformer encoder makes nested tensors: the plain one is taken.
            torch._nested_tensor_from_mask_left_aligned: lambda *_, **__: False,
            torch._fused_sdp_choice: self._attention_choice,
            torch.isfinite: lambda x: self._assumed(x, True),
            _T.isfinite: lambda x: self._assumed(x, True),
            torch.isnan: lambda x: self._assumed(x, False),
            _T.isnan: lambda x: self._assumed(x, False),
            torch.isinf: lambda x: self._assumed(x, False),
            _T.isinf: lambda x: self._assumed(x, False),
            torch._C._nn.cross_entropy_loss: self._cross_entropy,
            torch._C._nn.one_hot: self._one_hot,
            torch.rms_norm: self._rms_norm,
        }

    # ---------------------------------------------------------------- where tensors are

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that a tensor has in the simulated world."""
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if not tensor.is_meta:
            return tensor.device
        key = tensor.untyped_storage()._cdata
        if key in self.tracker.hosts:
            return META if key in self.explicit_meta else CPU
        return CUDA

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle one call of torch from Python."""
        kwargs = kwargs or {}
        if "pin_memory" in kwargs:  # there is no driver that could pin
            kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = self.casts.apply(func, args, kwargs)
        handler = self.handlers.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if func in HALF_TO_FLOAT:
            return self._softmax(func, args, kwargs)
        if "device" in kwargs or func in FROM_DATA or func in VALUED or func in LIKE:
            return self._factory(func, args, kwargs)
        if func in _RECURRENT:
            name = f"cuDNN {_RECURRENT[func]}"
            self.tracker.state.refuse(name, "cuDNN keeps a workspace of its own choice")
        return func(*args, **kwargs)


def _is_foreign(values: Any) -> bool:
    """Whether a tensor subclass with a protocol of its own is among these."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(
        isinstance(v, torch.Tensor)
        and type(v) not in plain
        and type(v).__torch_function__ is not torch.Tensor.__torch_function__
        and type(v).__torch_function__ is not torch._C._disabled_torch_function_impl
        for v in values
    )


@contextlib.contextmanager
def transparent_python() -> Iterator[None]:
    """Let torch's own Python functions run in sight of the mode, so that it sees what they call."""
    import sys

    def one(value: Any) -> bool:
        return _is_foreign((value,))

    def some(*values: Any) -> bool:
        return _is_foreign(values)

    fakes = {
        "has_torch_function": _is_foreign,
        "has_torch_function_unary": one,
        "has_torch_function_variadic": some,
    }
    with contextlib.ExitStack() as stack:
        for module in _ASKING:
            for name, fake in fakes.items():
                if hasattr(sys.modules[module], name):
                    stack.enter_context(mock.patch.object(sys.modules[module], name, fake))
        yield
