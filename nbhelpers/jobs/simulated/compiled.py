"""Compiled functions under simulation: what they keep is what torch's own compiler decides to keep.

A function is traced once on shapes, and its graph of both passes is split as the compiler splits
it; no kernel is made, so neither a GPU nor Triton is needed. Fused kernels write what a matrix
product or the backward pass reads, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbhelpers.simulate.opaque_patches import without_modes

TOKENS = 4099  # with which a function is traced: a prime, so that no other size is taken for it
Sizes = tuple[tuple[int, ...], torch.dtype]  # of a tensor traced with `TOKENS`


@dataclass(slots=True)
class Split:
    """Both passes of a compiled function.

    Attributes:
        output: What it returns.
        inputs: Which of its tensors are kept for the backward pass.
        kept: Further tensors that are.
        forward_bytes: What the forward pass holds inside at its peak, for `TOKENS` tokens.
        backward_bytes: The same of the backward pass, without gradients that it returns.
    """

    output: Sizes | None = None
    inputs: list[int] = field(default_factory=list)
    kept: list[Sizes] = field(default_factory=list)
    forward_bytes: int = 0
    backward_bytes: int = 0


def stand_in(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what takes the place of a compiled function of (tokens, hidden) tensors.

    Without gradients the function itself runs, which needs no less.
    """
    splits: dict[Any, Split] = {}

    def compiled(*args: Any) -> Tensor:
        leaves, spec = tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return function(*args)
        tokens = len(tensors[0])
        key = tuple((_traced(t.shape, tokens), t.dtype, t.requires_grad) for t in tensors)
        if key not in splits:
            splits[key] = split(function, leaves, spec, tokens)
        return _Compiled.apply(splits[key], *tensors)

    return compiled


def _traced(shape: Iterable[int], tokens: int) -> tuple[int, ...]:
    return tuple(TOKENS if size == tokens else size for size in shape)


def split(function: Callable[..., Tensor], leaves: list[Any], spec: Any, tokens: int) -> Split:
    """Trace a function and split its passes.

    Args:
        leaves: Its arguments, flat; tensors count by their shapes alone.
    """
    places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    found = Split()

    def of_tensors(*tensors: Tensor) -> Tensor:
        filled = list(leaves)
        for at, tensor in zip(places, tensors, strict=True):
            filled[at] = tensor
        return function(*tree_unflatten(filled, spec))

    def partition(graph: fx.GraphModule, joint_inputs: Any, **how: Any) -> Any:
        joint_graph_passes(graph)
        return min_cut_rematerialization_partition(graph, joint_inputs, compiler="inductor", **how)

    def forward(graph: fx.GraphModule, inputs: Any) -> Any:
        output, *kept = _outputs(graph)
        numbers = {node: at for at, node in enumerate(_placeholders(graph))}
        found.output = _sizes(output)
        for node in kept:
            source = _source(node)
            if source in numbers:
                found.inputs.append(numbers[source])
            elif isinstance(node.meta["val"], Tensor):
                found.kept.append(_sizes(node))
        found.inputs = sorted(set(found.inputs))
        found.forward_bytes = _peak_bytes(graph)
        return make_boxed_func(graph.forward)

    def backward(graph: fx.GraphModule, inputs: Any) -> Any:
        found.backward_bytes = _peak_bytes(graph)
        return make_boxed_func(graph.forward)

    # The compiler would look at the card, which is not there.
    no_card = mock.patch.object(torch.cuda, "is_available", lambda: False)
    with without_modes(), no_card, FakeTensorMode() as mode, V.set_fake_mode(mode):
        tensors = [
            torch.empty(
                _traced(leaves[at].shape, tokens),
                dtype=leaves[at].dtype,
                requires_grad=leaves[at].requires_grad,
            )
            for at in places
        ]
        aot_function(
            of_tensors,
            fw_compiler=forward,
            bw_compiler=backward,
            partition_fn=partition,
            decompositions=select_decomp_table(),
        )(*tensors).sum().backward()
    return found


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _outputs(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.output_node().args[0] if isinstance(node, fx.Node)]


def _sizes(node: fx.Node) -> Sizes:
    return tuple(node.meta["val"].shape), node.meta["val"].dtype


_VIEWS = ("permute", "view", "expand", "slice", "transpose", "unsqueeze", "squeeze", "alias", "t")


def _source(node: fx.Node) -> fx.Node:
    """Return the tensor whose memory a view shows."""
    while node.op == "call_function" and _name(node) in _VIEWS:
        node = node.args[0]
    return node


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def _peak_bytes(graph: fx.GraphModule) -> int:
    """Return the bytes of what is written inside a graph and dies there, at its peak."""
    results = {_source(node) for node in _outputs(graph)}
    written = set()
    for node in graph.graph.nodes:
        if node.op == "call_function" and _name(node) in _PRODUCTS:
            written.add(node)
            written |= {_source(arg) for arg in node.args if isinstance(arg, fx.Node)}
    written = {n for n in written if n.op == "call_function"} - results
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    last = {node: order[node] for node in written}
    for node in graph.graph.nodes:
        for arg in node.all_input_nodes:
            source = _source(arg)
            if source in written:
                last[source] = max(last[source], order[node])
    now = peak = 0
    for node in graph.graph.nodes:
        now += _bytes(node) if node in written else 0
        peak = max(peak, now)
        now -= sum(_bytes(other) for other in written if last[other] == order[node])
    return peak


def _bytes(node: fx.Node) -> int:
    return node.meta["val"].numel() * node.meta["val"].element_size()


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: Split, *tensors: Tensor) -> Tensor:
        tokens = len(tensors[0])
        inside = _pieces(split.forward_bytes, tokens, tensors[0])
        kept = [_like(sizes, tokens, tensors[0]) for sizes in split.kept]
        output = _like(split.output, tokens, tensors[0])
        del inside
        ctx.save_for_backward(*(tensors[at] for at in split.inputs), *kept)
        ctx.split, ctx.tokens = split, tokens
        ctx.wanted = [(t.shape, t.dtype, t.device) if t.requires_grad else None for t in tensors]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        inside = _pieces(ctx.split.backward_bytes, ctx.tokens, gradient)
        gradients = [
            None if sizes is None else torch.empty(sizes[0], dtype=sizes[1], device=sizes[2])
            for sizes in ctx.wanted
        ]
        del inside
        return (None, *gradients)


def _like(sizes: Sizes, tokens: int, like: Tensor) -> Tensor:
    shape, dtype = sizes
    return like.new_empty([tokens if n == TOKENS else n for n in shape], dtype=dtype)


def _pieces(size_bytes: int, tokens: int, like: Tensor) -> Tensor:
    return like.new_empty(size_bytes * tokens // TOKENS, dtype=torch.uint8)
