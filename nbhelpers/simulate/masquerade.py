"""Code that asks for "cuda" gets tensors without storage that say they are on cuda:0."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from nbhelpers.simulate import attention
from nbhelpers.simulate.autocast import Autocast, without_autocast
from nbhelpers.simulate.data_dependent import tell_unknown
from nbhelpers.simulate.kernels_call import torch_version
from nbhelpers.simulate.opaque_patches import Patches
from nbhelpers.simulate.shadow import MOST_WEIGHTS, is_small
from nbhelpers.simulate.state import INPUTS
from nbhelpers.simulate.tracker import Tracker

# ------------------------------------------------------------------------------------------------
# Names of devices, as code that asks for a GPU writes them.


CUDA, CPU, META = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")


def is_cuda_name(device: Any) -> bool:
    """Whether a device argument means a GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


# ------------------------------------------------------------------------------------------------
# Tensors that code makes: on the simulated card, on the host, or without a place.


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
        tensors = [a for a in (*args, *plain.values()) if isinstance(a, torch.Tensor)]
        if not any(t.is_meta for t in tensors):
            self.tracker.has_draws |= func in DRAWN
            self.tracker.shadows.keep(out, func(*args, **plain, device="cpu"))


# ------------------------------------------------------------------------------------------------
# Tensors that move between the host and the simulated card.


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


# ------------------------------------------------------------------------------------------------
# Calls that take another path on CUDA than on tensors without storage.


aten = torch.ops.aten
HALF_TO_FLOAT = {
    function: op
    for op, functions in (
        (aten._softmax, (torch.softmax, _T.softmax)),
        (aten._log_softmax, (torch.log_softmax, _T.log_softmax)),
    )
    for function in functions
}


class CudaPaths:
    """The part of the masquerade that does what only CUDA does."""

    tracker: Tracker
    casts: Autocast

    def _softmax(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """CUDA reads fp16 and writes fp32 in one kernel, without a copy of the input."""
        x = args[0]
        if kwargs.get("dtype") is torch.float32 and x.dtype is torch.float16 and x.is_meta:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            return HALF_TO_FLOAT[func](x, dim, True)
        return func(*args, **kwargs)

    def _cross_entropy(
        self, x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Under autocast its log-softmax keeps the input's type, and its nll_loss is in fp32.

        Source: aten/src/ATen/native/LossNLL.cpp, cross_entropy_loss_prob_target's neighbours;
        measured with BERT in bf16.
        """
        function = torch._C._nn.cross_entropy_loss
        if not (torch.is_autocast_enabled("cuda") and x.dtype in (torch.float16, torch.bfloat16)):
            return function(x, target, *args, **kwargs)
        names = ("weight", "reduction", "ignore_index", "label_smoothing")
        options = dict(zip(names, args, strict=False)) | kwargs
        if target.is_floating_point():
            return function(x, target, **options)
        smoothing = options.pop("label_smoothing", 0.0)
        dim = 0 if x.dim() == 1 else 1
        logs = torch.log_softmax(x, dim)
        loss = torch._C._nn.nll_loss_nd(logs.float(), target, **options)
        if smoothing:
            smooth = -logs.sum(dim, dtype=torch.float32)
            loss = (1 - smoothing) * loss + smooth.mean() * smoothing
        return loss

    def _one_hot(self, x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        """CUDA scatters ones into zeros."""
        if not x.is_meta or num_classes <= 0:
            return torch._C._nn.one_hot(self._real(x), num_classes).to(x.device)
        encoded = torch.zeros((*x.shape, num_classes), dtype=x.dtype, device="meta")
        return encoded.scatter_(-1, x.unsqueeze(-1), 1)

    def _rms_norm(
        self, x: torch.Tensor, shape: Any, weight: Any = None, eps: float | None = None
    ) -> torch.Tensor:
        """CUDA has a kernel of its own from torch 2.9 on, where the types agree."""
        fused = getattr(aten, "_fused_rms_norm", None)
        same = weight is None or weight.dtype is x.dtype
        if not x.is_meta or fused is None or torch_version() < (2, 9) or not same:
            return torch.rms_norm(x, shape, weight, eps)
        return fused(x, list(shape), weight, eps)[0]

    def _dropout(self, x: torch.Tensor, p: float = 0.5, train: bool = True) -> torch.Tensor:
        if x.is_meta and train and 0 < p < 1 and x.numel():
            return torch.native_dropout(x, p, True)[0]
        return torch.dropout(x, p, train)

    def _attention(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        call = attention.Attention(*args, **kwargs)
        if torch.is_autocast_enabled("cuda"):
            dtype, names = torch.get_autocast_dtype("cuda"), ("query", "key", "value", "attn_mask")
            call = call._replace(**{n: self.casts.cast(getattr(call, n), dtype) for n in names})
        if not call.query.is_meta:
            return F.scaled_dot_product_attention(**call._asdict())
        with self, without_autocast():  # what it does inside is seen too
            return attention.attend(call, self.tracker.state.card)

    def _attention_choice(self, *args: Any, **kwargs: Any) -> int:
        return attention.choose(attention.Attention(*args, **kwargs), self.tracker.state.card)

    def _assumed(self, x: torch.Tensor, truth: bool) -> torch.Tensor:
        """A step that goes well has finite numbers only."""
        out = torch.isfinite(x) if truth else torch.isnan(x)
        if x.is_meta and not self.tracker.shadows.has(out) and is_small(out):
            self.tracker.shadows.keep(out, torch.full(out.shape, truth))
        return out


# ------------------------------------------------------------------------------------------------
# Code that asks for "cuda" gets tensors without storage that say they are on cuda:0.
#
# A `TorchFunctionMode` sees every call of torch from Python before anything happens: it redirects
# devices, makes the casts of autocast, takes the paths that only CUDA tensors take, and answers
# where a tensor is.


Handler = Callable[..., Any]
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
    fakes = {
        "has_torch_function": _is_foreign,
        "has_torch_function_unary": lambda value: _is_foreign((value,)),
        "has_torch_function_variadic": lambda *values: _is_foreign(values),
    }
    with Patches() as patches:
        for module in _ASKING:
            patches.put_known(sys.modules[module], fakes)
        yield
