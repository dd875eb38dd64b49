"""torch.compile and flex_attention under simulation."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo.eval_frame as eval_frame
from torch import Tensor

from nbhelpers.simulate.kernels_call import torch_version
from nbhelpers.simulate.opaque_patches import Patches, when_imported
from nbhelpers.simulate.state import State

# ------------------------------------------------------------------------------------------------
# flex_attention as its compiled kernels use memory: no scores, a log-sum-exp, a delta.
#
# The function itself runs, with its checks; the operator below it is replaced. Without a compiler
# torch makes all scores instead; that path is named, not predicted.


MODULE = "torch.nn.attention.flex_attention"
BLOCK = 128
# From this release the operator returns the highest score of each query as well.
# Source: torch/_higher_order_ops/flex_attention.py, 2.8 against 2.9.
WITH_MAXIMA = (2, 9)


class FlexKernels:
    """Says which functions are flex_attention's, and whether a compiled one is being called."""

    def __init__(self, state: State) -> None:
        self.state, self.compiled = state, 0

    def compiles(self, function: Any) -> Callable[..., Any] | None:
        """Return what stands in for a compiled function of flex_attention, None for others."""
        flex = sys.modules.get(MODULE)
        if flex is None:
            return None
        name = getattr(function, "__name__", "")
        if getattr(function, "__module__", "") != MODULE:
            return None
        if name == "create_block_mask":
            return _compiled_block_mask(flex)
        if name == "_flex_attention_hop_wrapper":  # it compiles itself, as nobody else did
            return function
        return self.inside(function) if name == "flex_attention" else None

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that a compiler would have seen."""

        def compiled(*args: Any, **kwargs: Any) -> Any:
            self.compiled += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.compiled -= 1

        return compiled

    def operator(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Stand in for torch.ops.higher_order.flex_attention."""
        if not self.compiled:
            why = "it makes all scores without torch.compile; compile it"
            self.state.refuse("flex_attention, not compiled", why)
        out, lse = _Flex.apply(query, key, value)
        if torch_version() < WITH_MAXIMA:
            return out, lse
        return out, lse, torch.empty_like(lse)


class _Flex(torch.autograd.Function):
    """Source: torch/_inductor/kernel/flex/flex_attention.py, forward and backward (2.11)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        batch, heads, length, _ = query.shape
        out = _dense_like(query, (batch, heads, length, value.shape[-1]))
        lse = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, _, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        grads = [_dense_like(t, (query.shape[0], *t.shape[1:])) for t in (query, value, key)]
        del delta
        if key.shape[0] != query.shape[0]:  # one sample's keys for all: summed over the batch
            grads[1:] = [grad.sum(0, keepdim=True) for grad in grads[1:]]
        return grads[0], grads[2], grads[1]


def _dense_like(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor whose dimensions lie in memory in the order of another's."""
    order = sorted(range(tensor.dim() - 1), key=lambda d: (-tensor.stride(d), d))
    stride, at = [0] * len(shape), shape[-1]
    stride[-1] = 1
    for dim in reversed(order):
        stride[dim] = at
        at *= shape[dim]
    return tensor.new_empty_strided(shape, stride)


def _compiled_block_mask(flex: Any) -> Callable[..., Any]:
    """create_block_mask whose compiled form never holds the mask itself."""

    def create_block_mask(
        mask_mod: Any,
        B: int | None,
        H: int | None,
        Q_LEN: int,
        KV_LEN: int,
        device: Any = "cuda",
        BLOCK_SIZE: Any = BLOCK,
        *rest: Any,
        **options: Any,
    ) -> Any:
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
        rows = (B or 1, H or 1, -(-Q_LEN // size[0]), -(-KV_LEN // size[1]))
        columns = (*rows[:2], rows[3], rows[2])
        lists = []
        for shape in (rows, rows, columns, columns):
            lists.append(torch.empty(shape[:3], dtype=torch.int32, device=device))
            lists.append(torch.empty(shape, dtype=torch.int32, device=device))
        return flex.BlockMask((Q_LEN, KV_LEN), *lists, BLOCK_SIZE=size, mask_mod=mask_mod)

    return create_block_mask


@contextlib.contextmanager
def flex_kernels(state: State) -> Iterator[FlexKernels]:
    """Put the operator in place, and forget compiled functions that libraries keep."""
    kernels, compiled = FlexKernels(state), []

    def patch_torch(flex: Any) -> None:
        patches.put(flex, "flex_attention_hop", kernels.operator)

    def patch_transformers(module: Any) -> None:
        wrapped = module.WrappedFlexAttention
        for name in ("_instance", "_compiled_flex_attention"):
            patches.put(wrapped, name, None)
        patches.put(wrapped, "_is_flex_compiled", False)

    def patch_ours(module: Any) -> None:
        compiled.append(module._compiled_flex)
        module._compiled_flex.cache_clear()

    try:
        with (
            Patches() as patches,
            when_imported(MODULE, patch_torch),
            when_imported("transformers.integrations.flex_attention", patch_transformers),
            when_imported("nbhelpers.jobs.models.causal_forward", patch_ours),
        ):
            yield kernels
    finally:
        for function in compiled:
            function.cache_clear()


# ------------------------------------------------------------------------------------------------
# torch.compile under a simulation: the code runs as it is, and is named.
#
# What a compiler fuses is never allocated, so the eager step is an upper bound.


NAME = "torch.compile"
WHY = "the eager step is an upper bound"


@contextlib.contextmanager
def compile_named(state: State, flex: FlexKernels) -> Iterator[None]:
    """Run code that would be compiled as it is, and name torch.compile.

    `state.compiled_stand_ins`, if it is there, lists functions that return what takes the place of
    a function that is compiled, or None: for code whose compiled memory is known.
    """

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **options)
        for find in (flex.compiles, *getattr(state, "compiled_stand_ins", ())):
            if (stand_in := find(model)) is not None:
                return stand_in
        if isinstance(model, torch.nn.Module):
            state.refuse(NAME, WHY)
            return model
        return _named(model, state)

    def compile_module(self: Any, *args: Any, **options: Any) -> None:
        state.refuse(NAME, WHY)

    with Patches() as patches:
        patches.put(torch, "compile", compile_)
        patches.put(torch.nn.Module, "compile", compile_module)
        if hasattr(eval_frame, "_callback_from_stance"):
            patches.put(eval_frame, "_callback_from_stance", _run_eagerly(state, flex))
        yield


def _named(function: Any, state: State) -> Any:
    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        state.refuse(NAME, WHY)
        return function(*args, **kwargs)

    return compiled


def _run_eagerly(state: State, flex: FlexKernels) -> Any:
    """Code that was compiled before the simulation began: each call asks here how to run."""

    def callback_from_stance(callback: Any) -> Any:
        if callback in (None, False):
            return callback
        function = sys._getframe(1).f_locals.get("fn")
        if getattr(function, "__name__", "") == "flex_attention":
            flex.compiled = max(flex.compiled, 1)  # stays: nothing says when the call ends
        else:
            state.refuse(NAME, WHY)
        return None

    return callback_from_stance
