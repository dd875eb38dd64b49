"""Small parts of PyTorch that look at a tensor below Python, and so see its true device."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map_only

from nbhelpers.simulate.opaque_patches import Patches

if TYPE_CHECKING:
    from nbhelpers.simulate.masquerade import Masquerade

CUDA = torch.device("cuda", 0)


class _Generator:
    """`torch.Generator(device="cuda")`: the CPU's, as nothing is drawn on the card."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _REAL_GENERATOR("cpu")


_REAL_GENERATOR = torch.Generator


def _grouping(real: Any) -> Any:
    """Tensors by device and type, under the device that they claim."""

    def group(tensors: Any, with_indices: bool = False) -> Any:
        groups = real(tensors, with_indices)
        return {
            (CUDA if device is not None and device.type == "meta" else device, dtype): value
            for (device, dtype), value in groups.items()
        }

    return group


def _deepcopy(mode: Masquerade, real: Any) -> Any:
    """A copy of a tensor without data has the same shape and stands in the same place."""

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            if not tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return real(tensor, memo)
        if id(tensor) in memo:
            return memo[id(tensor)]
        copied = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, tensor.requires_grad)
        copied.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
        memo[id(tensor)] = copied
        return copied

    return deepcopy


def _representation(real: Any) -> Any:
    """Print what is known of a tensor on the card."""

    def representation(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        with torch._C.DisableTorchFunction():
            if not tensor.is_meta:
                return real(tensor, *args, **kwargs)
            shape = tuple(tensor.shape)
            return f"tensor(..., device='cuda:0', size={shape}, dtype={tensor.dtype})"

    return representation


def _loading(real: Any) -> Any:
    """Read a file into main memory, then move what was asked for the card."""

    def load(*args: Any, **kwargs: Any) -> Any:
        place = kwargs.get("map_location", kwargs.get("device"))
        if len(args) > 1:
            place = args[1]
        name = "device" if "device" in inspect.signature(real).parameters else "map_location"
        with torch._C.DisableTorchFunction():  # what is in a file is real
            loaded = real(args[0], **{k: v for k, v in kwargs.items() if k != name} | {name: "cpu"})
        if isinstance(place, (str, torch.device)) and torch.device(place).type == "cuda":
            return tree_map_only(torch.Tensor, lambda t: t.to(CUDA), loaded)
        return loaded

    return load


def _shape_and_type(tensor: torch.Tensor) -> dict[str, Any]:
    """What checkpointing compares: it looks from inside a call and from outside."""
    with torch._C.DisableTorchFunction():
        return {"shape": tensor.shape, "dtype": tensor.dtype, "device": tensor.device}


def _run_at_once(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
    """A pool's task in this thread: the modes are those of one thread."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except BaseException as error:  # the pool hands on whatever it is
        future.set_exception(error)
    return future


@contextlib.contextmanager
def real_modules_kept() -> Iterator[None]:
    """Give modules that were made outside their real parameters and buffers back."""
    apply, originals = torch.nn.Module._apply, {}

    def remembering(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        with torch._C.DisableTorchFunction():
            tensors = [
                t for t in (*self._parameters.values(), *self._buffers.values()) if t is not None
            ]
            if id(self) not in originals and any(not t.is_meta for t in tensors):
                originals[id(self)] = (self, dict(self._parameters), dict(self._buffers))
        return apply(self, fn, recurse)

    with mock.patch.object(torch.nn.Module, "_apply", remembering):
        try:
            yield
        finally:
            for module, parameters, buffers in originals.values():
                module._parameters.update(parameters)
                module._buffers.update(buffers)


def _pointer(real: Any) -> Any:
    """Storages without data have addresses of their own, so that none seem shared."""

    def data_ptr(self: Any) -> int:
        return self._cdata if self.device.type == "meta" else real(self)

    return data_ptr


def _set_default(mode: Masquerade, device: Any) -> None:
    mode.default_device = None if device is None else torch.device(device)


@contextlib.contextmanager
def patched_torch(mode: Masquerade) -> Iterator[None]:
    """Patch what the modes cannot reach, for the time of a simulation."""
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as foreach
    import torch.utils.checkpoint as checkpoint
    from torch.nn.utils import clip_grad

    real_clear = torch.clear_autocast_cache

    def clear() -> None:
        mode.casts.clear()
        real_clear()

    group = _grouping(foreach._group_tensors_by_device_and_dtype)
    checks = checkpoint._allowed_determinism_checks_to_fns
    with Patches() as patches:
        put = patches.put
        patches.enter_context(real_modules_kept())
        put(torch, "clear_autocast_cache", clear)
        put(torch, "Generator", _Generator)
        # Functions of modules that are imported now stay what they are in Python.
        put(torch.jit, "script", lambda obj=None, *_, **__: obj)
        put(torch, "load", _loading(torch.load))
        put(torch, "set_default_device", lambda device: _set_default(mode, device))
        put(torch, "get_default_device", lambda: mode.default_device or torch.device("cpu"))
        put(torch.Tensor, "record_stream", lambda *_: None)
        with contextlib.suppress(ImportError):
            import safetensors.torch as files

            put(files, "load_file", _loading(files.load_file))
            # A file of tensors without data stays empty.
            patches.put_known(files, dict.fromkeys(("_flatten", "_flatten_as_ptr"), lambda *_: {}))
        put(ThreadPoolExecutor, "submit", _run_at_once)
        put(torch.UntypedStorage, "data_ptr", _pointer(torch.UntypedStorage.data_ptr))
        put(torch.Tensor, "__repr__", _representation(torch.Tensor.__repr__))
        put(torch.Tensor, "__deepcopy__", _deepcopy(mode, torch.Tensor.__deepcopy__))
        patches.enter_context(mock.patch.dict(checks, {"default": _shape_and_type}))
        for module in (foreach, optimizer, clip_grad):
            patches.put_known(module, {"_group_tensors_by_device_and_dtype": group})
        yield
