"""Sorting, selection, scans and random draws: copies of the keys and of where they came from."""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import (
    Call,
    Rule,
    argument,
    ceil_div,
    copy_of,
    copying,
    first,
    size_of,
)
from nbhelpers.simulate.kernels_embedding import SCAN, radix_sort

SOURCE = "aten/src/ATen/native/cuda"
INDEX = 8
SEGMENTED = 128  # from so many slices on, each is sorted as a segment
SMALL = 4096  # values of a slice that one block sorts


def _slices(tensor: torch.Tensor, dim: int) -> tuple[int, int]:
    """How many slices along `dim`, and their length."""
    length = tensor.shape[dim] if tensor.dim() else 1
    return tensor.numel() // max(length, 1), length


def _sort(dim: int, tensor: torch.Tensor) -> list[int]:
    """Source: SortStable.cu, Sort.cpp: sort_cuda_kernel; Sort.cu: segmented_sort_pairs."""
    slices, length = _slices(tensor, dim)
    if length <= SMALL:
        return [length * INDEX]
    keys, places = size_of(tensor), tensor.numel() * INDEX
    space = radix_sort(tensor.numel(), tensor.element_size(), INDEX)
    if slices == 1:
        return [places, space]
    if slices >= SEGMENTED:
        return [places, keys + places + 511]
    return [places, places, keys, space]


def _sorted(call: Call) -> list[int]:
    stable = "stable" in str(call.func)
    dim = argument(call, 2 if stable else 1, "dim", -1)
    return _sort(dim, call.args[0])


def _uses_many_blocks(slices: int, length: int) -> bool:
    """Source: TensorTopK.cu: should_use_multiblock."""
    for most, least in ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000)):
        if slices <= most:
            return length >= least
    return length >= (800 if slices <= 4000 else 400)


def _topk(call: Call) -> list[int]:
    tensor = call.args[0]
    slices, length = _slices(tensor, argument(call, 2, "dim", -1))
    if not tensor.numel() or not _uses_many_blocks(slices, length):
        return []
    slots = call.card.multiprocessors * 6 * 256  # blocks by registers, threads of a block
    items = max(4, min(ceil_div(tensor.numel(), slots), 64))
    blocks = slices * ceil_div(length, 256 * items)
    each = tensor.element_size()
    wanted = 4 * slices * (2 if each > 1 else 1)
    numbers = [slices * each, wanted, slices * max(8, 2 * each)]
    return [*numbers, blocks * 512, slices * 1024, blocks * 4, blocks * 4, SCAN]


def _cumulative(call: Call) -> list[int]:
    """A copy in the result's type; one long row is scanned by cub."""
    tensor = call.args[0]
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    copy = [size_of(tensor, out.dtype)] if tensor.dtype != out.dtype else copy_of(tensor)
    return [*copy, SCAN] if tensor.dim() == 1 else copy


def _unique(call: Call) -> list[int]:
    tensor = call.args[0]
    keys, places = size_of(tensor), tensor.numel() * INDEX
    space = radix_sort(tensor.numel(), tensor.element_size(), INDEX)
    return [keys, places, places, space, -space, -places]


def _randperm(call: Call) -> list[int]:
    count = argument(call, 0, "n")
    places = count * INDEX
    return [places, places, places, radix_sort(count, INDEX, INDEX)]


def _multinomial(call: Call) -> list[int]:
    weights, count = call.args[0], argument(call, 1, "num_samples")
    replaces = argument(call, 2, "replacement", False)
    if replaces and count > 1:
        return [size_of(weights)] * 3
    return [size_of(weights), *(_topk_of(call, weights, count) if count > 1 else [])]


def _topk_of(call: Call, weights: torch.Tensor, count: int) -> list[int]:
    return [weights.numel() // weights.shape[-1] * count * weights.element_size()]


_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("sort.default", "sort.stable"), Rule(_sorted, f"{SOURCE}/Sort.cpp")),
    "topk.default": Rule(_topk, f"{SOURCE}/TensorTopK.cu: mbtopk"),
    **{f"{name}.default": Rule(_cumulative, f"{SOURCE}/ScanKernels.cpp") for name in _SCANS},
    "cumsum_.default": Rule(_cumulative, f"{SOURCE}/ScanKernels.cpp"),
    "_unique2.default": Rule(first(_unique), f"{SOURCE}/UniqueCub.cu"),
    "unique_dim.default": Rule(first(_unique), f"{SOURCE}/Unique.cu"),
    "unique_consecutive.default": Rule(None, f"{SOURCE}/UniqueCub.cu"),
    "randperm.default": Rule(_randperm, f"{SOURCE}/Randperm.cu"),
    "multinomial.default": Rule(_multinomial, f"{SOURCE}/MultinomialKernel.cu"),
    **dict.fromkeys(
        ("median.dim", "kthvalue.default", "nanmedian.dim"),
        Rule(copying((0, "self")), f"{SOURCE}/Sorting.cpp"),
    ),
}
