"""bitsandbytes without its CUDA library: its own Python code runs, its kernels do nothing.

What a 4-bit or 8-bit layer or optimizer allocates, it allocates in Python, around a call into a
library. So its code for CUDA is loaded once more here, with an empty library, and runs wherever a
tensor pretends to be on a GPU. Any release with registered operators (0.46 and later) is traced
exactly, its choice of a kernel by card and shape too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from nbhelpers.simulate.opaque_patches import Patches, when_imported, without_modes
from nbhelpers.simulate.state import State

_HAS_GPU = torch.cuda.is_available()  # asked before a simulation says otherwise
PRIVATE = "bitsandbytes.backends.cuda.ops_without_kernels"


@contextlib.contextmanager
def bitsandbytes_without_kernels(state: State) -> Iterator[None]:
    """Let bitsandbytes run on tensors that pretend to be on a GPU."""

    def load_for_this_machine() -> Callable[[], None]:
        """Import it as the machine is: it picks its library by what is there."""
        loading = Patches()
        loading.put(torch.cuda, "is_available", lambda: _HAS_GPU)
        return loading.close

    def patch(package: Any) -> None:
        _patch(package, patches, state)

    with Patches() as patches:
        patches.callback(sys.modules.pop, PRIVATE, None)
        with when_imported("bitsandbytes", patch, before=load_for_this_machine):
            yield


def _patch(package: Any, patches: Patches, state: State) -> None:
    if not hasattr(torch.ops, "bitsandbytes") or not (_folder(package) / "backends").is_dir():
        version = getattr(package, "__version__", "?")
        state.refuse(f"bitsandbytes {version}", "a release before 0.46 shows none of its kernels")
        return
    kernels = _kernels(package, patches, state)
    for name in sorted({full.partition(".")[0] for full in kernels}):
        real = getattr(torch.ops.bitsandbytes, name)
        of_name = {k.partition(".")[2] or "default": v for k, v in kernels.items() if _is(k, name)}
        patches.put(torch.ops.bitsandbytes, name, _Operator(real, of_name))
    functional = sys.modules["bitsandbytes.functional"]
    patches.put(functional, "lib", _Library())
    tables = ("create_dynamic_map", "create_linear_map", "create_normal_map", "create_fp8_map")
    known = {name: getattr(functional, name) for name in tables if hasattr(functional, name)}
    patches.put_known(functional, {name: _on_host(make) for name, make in known.items()})
    patches.put(functional, "name2qmap", {})  # tables that a GPU holds once they were used
    patches.put(functional.GlobalPageManager.get_instance(), "paged_tensors", [])
    patches.put(functional.CUBLAS_Context, "get_context", lambda self, device: 0)
    stand_ins = {"get_paged": _paged, "prefetch_tensor": _nothing, "elementwise_func": _nothing}
    patches.put_known(functional, stand_ins | {"_get_tensor_stream": lambda tensor: 0})
    modules = sys.modules["bitsandbytes.nn.modules"]
    for name in ("Params4bit", "Int8Params"):
        _quantise_in_place(getattr(modules, name), patches)


def _on_host(make: Callable[..., Any]) -> Callable[..., Any]:
    """A table of numbers that Python makes on the host, from numbers that it reads."""

    def made(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return make(*args, **kwargs)

    return made


def _is(full: str, name: str) -> bool:
    return full.partition(".")[0] == name


def _folder(package: Any) -> Path:
    return Path(package.__file__).parent


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class _Library:
    """The compiled library, without kernels: each function of it takes what it gets, and does
    nothing.
    """

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Callable[..., int]:
        def kernel(*args: Any, **kwargs: Any) -> int:
            return 0

        setattr(self, name, kernel)
        return kernel

    def __getitem__(self, name: str) -> Callable[..., int]:
        return getattr(self, name)


def _paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """Memory of a paged optimizer: unified, so no allocator of a GPU counts it.

    Its pages are never touched, and so cost the host nothing.

    Source: bitsandbytes/functional.py, `get_paged` (cudaMallocManaged).
    """
    out = torch.empty(shape, dtype=dtype, device="cpu")
    out.is_paged = True
    out.page_deviceid = getattr(device, "index", None) or 0
    return out


# ------------------------------------------------------------------ operators


class _Operator:
    """An operator that runs CUDA's Python code where a tensor is not on the host."""

    def __init__(self, real: Any, kernels: dict[str, Callable[..., Any]]) -> None:
        self._real, self._kernels = real, kernels

    def __getattr__(self, name: str) -> Any:
        kernel = self._kernels.get(name)
        real = getattr(self._real, name)
        if kernel is None:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            return kernel(*args, **kwargs) if _off_host(args) else real(*args, **kwargs)

        setattr(self, name, call)
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out") is not None and "out" in self._kernels
        kernel = self._kernels.get("out" if out else "default")
        if kernel is None or not _off_host(args):
            return self._real(*args, **kwargs)
        return kernel(*args, **kwargs)


def _off_host(args: tuple[Any, ...]) -> bool:
    """Whether a tensor among the arguments is not on the host; paged ones say nothing."""
    tensors = (a for a in args if isinstance(a, torch.Tensor))
    return any(t.device.type != "cpu" for t in tensors)


def _kernels(package: Any, patches: Patches, state: State) -> dict[str, Callable[..., Any]]:
    """Return CUDA's Python code of each operator, else the code that serves every device."""
    operators: dict[str, Callable[..., Any]] = {}
    default = _run_file(package, "default", patches, wanted=("default",))
    operators.update(default)
    operators.update(_run_file(package, "cuda", patches, wanted=("cuda", "default")))
    quant = operators.get("int8_vectorwise_quant")
    if quant is not None:
        operators["int8_vectorwise_quant"] = _without_outliers(quant, state)
    return operators


def _run_file(
    package: Any, backend: str, patches: Patches, *, wanted: tuple[str, ...]
) -> dict[str, Callable[..., Any]]:
    """Run backends/<backend>/ops.py under another name, and catch what it would register."""
    file = _folder(package) / "backends" / backend / "ops.py"
    caught: dict[str, Callable[..., Any]] = {}

    def register_kernel(operator: str, device: str, *rest: Any) -> Callable[..., Any]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            if device in wanted:
                caught[operator.partition("::")[2]] = function
            return function

        return keep

    loading = Patches()
    loading.put(sys.modules["bitsandbytes._ops"], "register_kernel", register_kernel)
    loading.put(torch.library, "register_kernel", register_kernel)
    loading.put(sys.modules["bitsandbytes.cextension"], "lib", _Library())
    loading.put(torch, "compile", _as_it_is)  # as a decorator of helpers, where it may fail
    # CPU builds of torch lack it; with a real one a stream would be asked of a driver.
    loading.put(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
    with loading:
        return _execute(file, f"bitsandbytes.backends.{backend}") and caught


def _execute(file: Path, parent: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(PRIVATE, file)
    module = importlib.util.module_from_spec(spec)
    module.__package__ = parent
    spec.loader.exec_module(module)
    module.ct = _Numbers()
    return module


class _Numbers:
    """ctypes for an empty library: a norm that only a GPU knows need not become a number."""

    def __getattr__(self, name: str) -> Any:
        return _nothing


def _as_it_is(function: Any = None, **options: Any) -> Any:
    return function if function is not None else lambda function: function


def _without_outliers(quantise: Callable[..., Any], state: State) -> Callable[..., Any]:
    """LLM.int8 looks for outlying columns; a simulation finds none, for that hangs on numbers."""

    def quantise_rows(A: torch.Tensor, threshold: float = 0.0) -> Any:
        if threshold:
            state.note("8-bit layers are traced as if no column of an activation were an outlier")
        return quantise(A, threshold=threshold)

    return quantise_rows


# ------------------------------------------------------------------ parameters


def _quantise_in_place(cls: Any, patches: Patches) -> None:
    """A quantised parameter puts numbers on the GPU into itself; a CPU tensor cannot take those
    of a tensor without storage. So the two change places.
    """
    original = vars(cls).get("_quantize")
    if original is None:
        return

    def quantise(self: Any, device: Any) -> Any:
        with torch._C.DisableTorchFunction():
            has_numbers = not self.is_meta
        if not has_numbers or torch.device(device).type == "cpu":
            return original(self, device)
        moved = self.data.contiguous().to(device)
        twin = cls(moved, requires_grad=self.requires_grad)
        vars(twin).update({**vars(twin), **vars(self)})
        torch.utils.swap_tensors(self, twin)
        del twin
        return original(self, device)

    patches.put(cls, "_quantize", quantise)
