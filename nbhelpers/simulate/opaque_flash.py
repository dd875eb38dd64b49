"""The flash-attn and Liger packages under simulation: what their kernels allocate."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nbhelpers.simulate.opaque_patches import ABSENT, Patches, State, when_imported

# ------------------------------------------------------------------------------------------------
# The flash-attn package where it is not installed: its functions by what they allocate.
#
# Where it is installed, its operators are foreign ones, and named as such.


PACKAGE = "flash_attn"
# Libraries that only ask whether it is there: they would change what they do.
ASKING = ("transformers", "peft", "trl", "accelerate", "torch", "liger_kernel")


class _Attention(torch.autograd.Function):
    """Padded queries, keys and values: (batch, length, heads, dim); packed ones lack the batch.

    Source: flash-attention 2, csrc/flash_attn/flash_api.cpp, `mha_fwd`, `mha_bwd` and their
    `varlen` forms: output and log-sum-exp; a delta of rounded rows and a sum in fp32 for the
    queries; keys and values expanded to all heads where these are shared.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: int, length: int, state: Any
    ) -> Tensor:
        out = torch.empty_like(q)
        heads = q.shape[-2]
        shape = (heads, q.shape[0]) if q.dim() == 3 else (rows, heads, length)
        lse = q.new_empty(shape, dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.sizes = (rows, length, state)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, _, _ = ctx.saved_tensors
        rows, length, state = ctx.sizes
        heads, dim = q.shape[-2:]
        padded = (q.shape[0] + 128 * rows) if q.dim() == 3 else rows * _up(length, 128)
        width = _up(dim, 32) if dim <= 128 else _up(dim, 64)
        state.temporary(4 * heads * padded, 4 * heads * padded * width)
        grads = [torch.empty_like(t) for t in (q, k, v)]
        if k.shape[-2] != heads:
            expanded = [k.new_empty((*k.shape[:-2], heads, dim)) for _ in range(2)]
            del expanded
        return (*grads, None, None, None)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _functions(state: State) -> dict[str, Any]:
    def attend(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        out = _Attention.apply(q, k, v, q.shape[0], q.shape[1], state)
        return (out, None, None) if options.get("return_attn_probs") else out

    def attend_packed(qkv: Tensor, *args: Any, **options: Any) -> Any:
        return attend(*qkv.unbind(-3), *args, **options)

    def attend_rows(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        most: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        out = _Attention.apply(q, k, v, cu_q.numel() - 1, int(most), state)
        return (out, None, None) if options.get("return_attn_probs") else out

    def varlen(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        arguments = {**dict(zip(names, args, strict=False)), **options}
        rest = {n: o for n, o in options.items() if n not in names}
        places = (arguments["cu_seqlens_q"], arguments["cu_seqlens_k"], arguments["max_seqlen_q"])
        return attend_rows(q, k, v, *places, **rest)

    return {
        "flash_attn_func": attend,
        "flash_attn_qkvpacked_func": attend_packed,
        "flash_attn_varlen_func": varlen,
    }


class _Finder(MetaPathFinder, Loader):
    def __init__(self, state: State) -> None:
        self.state, self.loaded = state, False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in (PACKAGE, f"{PACKAGE}.flash_attn_interface") or _is_asked():
            return None
        return ModuleSpec(fullname, self, is_package=fullname == PACKAGE)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self.loaded = True
        module.__version__ = "2.8.3"
        vars(module).update(_functions(self.state))
        self.state.note("flash-attn is not installed here; its functions were traced by a rule")


def _is_asked() -> bool:
    """Whether a library asks, rather than the user's own code."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith("importlib") and "<frozen" not in frame.f_code.co_filename:
            return name.partition(".")[0] in ASKING
        frame = frame.f_back
    return True


@contextlib.contextmanager
def flash_attention(state: State) -> Iterator[None]:
    """Let code import flash_attn where it is not installed."""
    if PACKAGE in sys.modules or find_spec(PACKAGE) is not None:
        yield
        return
    finder = _Finder(state)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


# ------------------------------------------------------------------------------------------------
# Liger's kernels: their own Python code runs, and what they patched is put back afterwards.
#
# The autograd functions of liger-kernel allocate their outputs and gradients with torch and hand
# them to Triton kernels, so with kernels that do nothing (`opaque_triton`) each release allocates
# what it does on a GPU: gradients in place, logits in chunks, the head's gradient if it is trained.


PREFIX = "apply_liger_kernel_to_"


@contextlib.contextmanager
def liger_without_traces(state: State) -> Iterator[None]:
    """Put back what Liger changes in transformers and torch while a simulation runs."""
    patches = Patches()
    before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def patch(module: Any) -> None:
        for name in [n for n in vars(module) if n.startswith(PREFIX)]:
            patches.put(module, name, _remembering(getattr(module, name), name, before))
        table = getattr(module, "MODEL_TYPE_TO_APPLY_LIGER_FN", {})
        for kind, function in list(table.items()):
            wrapped = getattr(module, getattr(function, "__name__", ""), function)
            patches.put(table, kind, wrapped)

    try:
        with when_imported("liger_kernel.transformers.monkey_patch", patch):
            yield
    finally:
        patches.undo()
        _put_back(before)


def _remembering(
    apply: Callable[..., Any], name: str, before: dict[int, tuple[Any, dict[str, Any]]]
) -> Callable[..., Any]:
    """Wrap one of Liger's functions so that it first notes what it is going to change."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _remember(name.removeprefix(PREFIX), before)
        return apply(*args, **kwargs)

    wrapped.__name__ = apply.__name__
    wrapped.__wrapped__ = apply  # transformers and Liger read its parameters
    return wrapped


def _remember(model: str, before: dict[int, tuple[Any, dict[str, Any]]]) -> None:
    import torch.nn.functional

    family = model.removesuffix("_text")
    with contextlib.suppress(ImportError):  # an alias: its module is loaded with another name
        import_module(f"transformers.models.{family}.modeling_{family}")
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models.") or ".modeling_" not in name:
            continue
        classes = [v for v in vars(module).values() if isinstance(v, type)]
        for owner in (module, *(c for c in classes if c.__module__ == name)):
            before.setdefault(id(owner), (owner, dict(vars(owner))))
    functional = torch.nn.functional
    before.setdefault(id(functional), (functional, dict(vars(functional))))


def _put_back(before: dict[int, tuple[Any, dict[str, Any]]]) -> None:
    for owner, values in before.values():
        for name, value in list(vars(owner).items()):
            old = values.get(name, ABSENT)
            if old is value or not _is_ligers(value):
                continue
            if old is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _is_ligers(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("liger_kernel")
