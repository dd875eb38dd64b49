"""Indexing: positions of true values, indices of one layout, sorts where sums may collide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    argument,
    copies_of,
    copy_of,
    elements,
    first,
    round_up,
    size_of,
)
from nbhelpers.simulate.kernels_embedding import radix_sort

SOURCE = "aten/src/ATen/native"
INDEX = 8  # bytes of an int64
SELECT = 1023  # cub's select keeps a state per tile
_MASKS = (torch.bool, torch.uint8)


def positions(mask: torch.Tensor, card: Any) -> tuple[list[int], list[int]]:
    """Events of `nonzero` ahead of its result and after it.

    Source: aten/src/ATen/native/cuda/Nonzero.cu: nonzero_cuda_out_impl; cub's partial counts of
    every block that can be resident.
    """
    count = 1 if mask.numel() <= 4096 else round_up(card.multiprocessors * 160, 256) + 255
    return [4, count, -count], [SELECT, -SELECT, -4]


def _nonzero(call: Call) -> Events:
    ahead, behind = positions(call.args[0], call.card)
    return [*copy_of(call.args[0]), *ahead, OUT, *behind]


def _found(mask: torch.Tensor, count: int, card: Any) -> list[int]:
    """Events that leave the positions of `count` true values behind."""
    ahead, behind = positions(mask, card)
    return [*ahead, count * mask.dim() * INDEX, *behind]


def _given(indices: Sequence[Any]) -> list[torch.Tensor]:
    return [index for index in indices if isinstance(index, torch.Tensor)]


def _masked_count(call: Call, indices: Sequence[Any], result: torch.Tensor) -> int:
    """How many values a mask selected, as the result's shape tells."""
    at = next(i for i, index in enumerate(indices) if index is not None)
    return result.shape[at] if at < result.dim() else 0


def _laid_out(indices: list[torch.Tensor]) -> list[int]:
    """Copies that give several indices one layout, and 64 bits.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp: AdvancedIndex.
    """
    taken = [i.numel() * INDEX for i in indices if i.dtype == torch.int32]
    if len(indices) < 2:
        return taken
    wide = torch.broadcast_tensors(*indices)
    if len({index.stride() for index in wide}) > 1:
        taken += [i.numel() * INDEX for i in wide if not i.is_contiguous()]
    return taken


def _index(call: Call) -> list[int]:
    indices = call.args[1]
    tensors = _given(indices)
    masks = [index for index in tensors if index.dtype in _MASKS]
    if not masks:
        return _laid_out(tensors)
    count = _masked_count(call, indices, call.out)
    return [event for mask in masks for event in _found(mask, count, call.card)]


def _put(call: Call) -> list[int]:
    """`index_put` that adds, or must be reproducible, sorts the rows that it writes."""
    target, indices, values = call.args[:3]
    tensors, accumulate = _given(indices), argument(call, 3, "accumulate", False)
    masks = [index for index in tensors if index.dtype in _MASKS]
    if masks and values.numel() == 1 and not accumulate:
        return []  # becomes masked_fill
    if masks:
        count = _written_count(target, indices, values)
        events = [event for mask in masks for event in _found(mask, count, call.card)]
        freed = [-count * mask.dim() * INDEX for mask in masks]
    else:
        events, freed = _laid_out(tensors), []
        count = elements(torch.broadcast_shapes(*(index.shape for index in tensors)))
    if not accumulate and not call.deterministic:
        return events
    line, shape = count * INDEX, _written_shape(target, indices, count)
    expanded = elements(shape) * values.element_size()
    copy = [] if values.numel() == elements(shape) and values.is_contiguous() else [expanded]
    # Rows stand together only where the first dimensions are the indexed ones.
    rows = target.numel() // (max(elements(shape[1:]), 1) if indices[0] is not None else 1)
    space = radix_sort(count, INDEX, INDEX, max(rows - 1, 1).bit_length())
    return [*events, line, line, -line, *freed, *copy, line, line, line, space]


def _written_count(target: torch.Tensor, indices: Sequence[Any], values: torch.Tensor) -> int:
    """How many places a mask writes: the values tell, or else all of the mask may."""
    at = next(i for i, index in enumerate(indices) if index is not None)
    mask = indices[at]
    if values.dim() == target.dim() - mask.dim() + 1 and values.shape[at] > 1:
        return values.shape[at]
    return mask.numel()


def _written_shape(target: torch.Tensor, indices: Sequence[Any], count: int) -> list[int]:
    width = sum(i.dim() if i.dtype in _MASKS else 1 for i in _given(indices))
    skipped = sum(1 for index in indices if index is None)
    rest = [*target.shape[:skipped], *target.shape[skipped + width :]]
    return [count, *rest]


def _masked_select(call: Call) -> list[int]:
    tensor, mask = call.args[0], call.args[1]
    wide = torch.broadcast_tensors(tensor, mask)[1]
    return [*copy_of(wide), *_found(wide, call.out.numel(), call.card)]


def _masked_scatter(call: Call) -> list[int]:
    """A running count of the mask. Source: cuda/IndexKernel.cpp: masked_scatter__cuda."""
    target, mask, source = call.args[:3]
    count = target.numel()
    wide = mask.expand(target.shape)
    return [*copies_of(wide, source), count * INDEX, round_up(count // 70, 256) + 255]


def _masked_scatter_backward(call: Call) -> list[int]:
    """What the mask selects, then zeros up to the source's size; taken as half of it each."""
    grad, mask = call.args[:2]
    half = size_of(grad) // 2
    selected = mask.numel() * INDEX // 2
    return [selected, half, -selected, half]


def _repeat(call: Call) -> list[int]:
    return [call.args[0].numel() * INDEX, 1279, -1279]


def _roll(call: Call) -> list[int]:
    """One dimension is rolled after the other."""
    shifts = argument(call, 1, "shifts")
    tensor = call.args[0]
    if isinstance(shifts, (list, tuple)) and len(shifts) > 1:
        return [*copy_of(tensor), size_of(tensor)]
    return copy_of(tensor)


def _unfold_backward(call: Call) -> list[int]:
    size = argument(call, 1, "input_sizes")[argument(call, 2, "dim")]
    return [size * INDEX]


def _sorted_lines(count: int) -> list[int]:
    line = count * INDEX
    return [line, line, line, line, radix_sort(count, INDEX, INDEX)]


def _scatter_add(call: Call) -> list[int]:
    """Reproducible sums are an `index_put` with an index for every dimension."""
    if not call.deterministic:
        return []
    tensor, index = call.args[0], argument(call, 2, "index")
    grids = [] if tensor.dim() < 2 else [index.numel() * INDEX] * 2
    return [*grids, *_sorted_lines(index.numel())]


def _index_add(call: Call) -> list[int]:
    if not call.deterministic:
        return []
    index, source = argument(call, 2, "index"), argument(call, 3, "source")
    return [size_of(source), *_sorted_lines(index.numel())]


_PLAIN = (
    "gather.default",
    "index_select.default",
    "index_fill_.int_Scalar",
    "index_fill.int_Scalar",
    "index_fill_.int_Tensor",
    "index_copy_.default",
    "index_copy.default",
    "scatter.src",
    "scatter.value",
    "scatter_.src",
    "scatter_.value",
    "scatter.reduce",
    "scatter_.reduce",
    "scatter_reduce.two",
    "scatter_reduce_.two",
    "take.default",
    "select_backward.default",
    "slice_backward.default",
    "diagonal_backward.default",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "masked_fill_.Scalar",
    "masked_fill_.Tensor",
    "cat.default",
    "stack.default",
    "flip.default",
    "tril.default",
    "triu.default",
    "repeat.default",
    "constant_pad_nd.default",
    "histc.default",
    "bincount.default",
    "searchsorted.Tensor",
    "bucketize.Tensor",
)
RULES: dict[str, Rule] = {
    **{name: Rule(None, f"{SOURCE}/cuda: measured to take nothing") for name in _PLAIN},
    **dict.fromkeys(
        ("index.Tensor", "_unsafe_index.Tensor"),
        Rule(first(_index), f"{SOURCE}/TensorAdvancedIndexing.cpp: index"),
    ),
    **dict.fromkeys(
        ("index_put.default", "index_put_.default", "_index_put_impl_.default"),
        Rule(_put, f"{SOURCE}/cuda/Indexing.cu: index_put_with_sort_kernel"),
    ),
    "_unsafe_index_put.default": Rule(_put, f"{SOURCE}/cuda/Indexing.cu"),
    "nonzero.default": Rule(_nonzero, f"{SOURCE}/cuda/Nonzero.cu: nonzero_cuda_out_impl"),
    "masked_select.default": Rule(
        first(_masked_select), f"{SOURCE}/cuda/IndexKernel.cpp: masked_select_cuda"
    ),
    **dict.fromkeys(
        ("masked_scatter.default", "masked_scatter_.default"),
        Rule(_masked_scatter, f"{SOURCE}/cuda/IndexKernel.cpp: masked_scatter__cuda"),
    ),
    "masked_scatter_backward.default": Rule(
        first(_masked_scatter_backward),
        f"{SOURCE}/TensorAdvancedIndexing.cpp: masked_scatter_backward",
    ),
    "repeat_interleave.Tensor": Rule(
        first(_repeat), f"{SOURCE}/Repeat.cpp: repeat_interleave_common"
    ),
    "roll.default": Rule(first(_roll), f"{SOURCE}/TensorTransformations.h: roll_common"),
    "unfold_backward.default": Rule(_unfold_backward, f"{SOURCE}/UnfoldBackward.cpp"),
    **dict.fromkeys(
        ("scatter_add.default", "scatter_add_.default"),
        Rule(_scatter_add, f"{SOURCE}/TensorAdvancedIndexing.cpp: scatter_add"),
    ),
    **dict.fromkeys(
        ("index_add.default", "index_add_.default"),
        Rule(_index_add, f"{SOURCE}/cuda/Indexing.cu: index_add_cuda_impl"),
    ),
}
