"""Reductions: partial results in global memory when one output is shared by several blocks.

The launch shape follows `setReduceConfig`, so the number of multiprocessors and of threads per
multiprocessor of the card decides. Equal from torch 2.6 to 2.11.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    accumulation_bytes,
    argument,
    ceil_div,
    copy_of,
    elements,
    is_half,
    kept_dims,
    phases,
    size_of,
)

CUDA = "aten/src/ATen/native/cuda"
SOURCE = f"{CUDA}/Reduce.cuh: setReduceConfig, gpu_reduce_kernel"
CHUNK = 65536  # elements that one block takes of a tensor in a list
MAX_THREADS, WARP = 512, 32
MIN_VALUES, MAX_VALUES = 16, 256  # per thread
INT32_MAX = 2**31 - 1


class Grid(NamedTuple):
    """A reduction as TensorIterator lays it out: fastest dimension first, strides in elements."""

    shape: tuple[int, ...]
    out_strides: tuple[int, ...]  # 0 where the dimension is reduced
    strides: tuple[int, ...]
    offset: int  # of the first element, for the alignment of vectors

    @property
    def reduced(self) -> int:
        """How many dimensions are reduced; they come first."""
        return sum(stride == 0 for stride in self.out_strides)


def lay_out(tensor: torch.Tensor, dims: tuple[int, ...]) -> Grid:
    """The dimensions of a reduction, ordered by stride and merged, as TensorIterator does it.

    Source: aten/src/ATen/TensorIterator.cpp: reorder_dimensions, coalesce_dimensions.
    """
    shape, strides = tuple(tensor.shape), tensor.stride()
    out_strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        if dim not in dims:
            out_strides[dim] = step
            step *= shape[dim]
    order = _sorted_dims(shape, out_strides, strides)
    merged: list[list[int]] = []
    for dim in order:
        size, out, stride = shape[dim], out_strides[dim], strides[dim]
        last = merged[-1] if merged else None
        if last and (
            1 in (last[0], size) or (last[0] * last[1] == out and last[0] * last[2] == stride)
        ):
            if last[0] == 1:
                last[1:] = out, stride
            last[0] *= size
        else:
            merged.append([size, out, stride])
    columns = zip(*merged, strict=True) if merged else ((), (), ())
    return Grid(*(tuple(column) for column in columns), tensor.storage_offset())


def _sorted_dims(shape: tuple, out_strides: list[int], strides: tuple) -> list[int]:
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        right = i
        for left in range(i - 1, -1, -1):
            verdict = _compare(order[left], order[right], shape, (out_strides, strides))
            if verdict > 0:
                order[left], order[right] = order[right], order[left]
                right = left
            elif verdict < 0:
                break
    return order


def _compare(one: int, two: int, shape: tuple, operands: tuple) -> int:
    for position, strides in enumerate(operands):
        first, second = strides[one], strides[two]
        if position == 0 and (first == 0) != (second == 0):
            return 1 if second == 0 else -1
        if first == 0 or second == 0:
            continue
        if first != second:
            return -1 if first < second else 1
        if shape[one] > shape[two]:
            return 1
    return 0


def _power_of_two(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


def _vector(grid: Grid) -> int:
    """How many outputs a thread takes at once: get_output_vec_size."""
    first = grid.reduced
    numbers = [grid.offset, grid.shape[first]]
    numbers += [stride for at, stride in enumerate(grid.strides) if at != first]
    vector = 4
    for number in numbers:
        while number % vector:
            vector //= 2
    return vector


def partial_sums(grid: Grid, *, accumulator: int, card: object, vector: int = 4) -> list[int]:
    """Bytes of the buffer for partial results and of its semaphores; nothing for one block.

    Args:
        accumulator: bytes of the type that the kernel reduces in.
        vector: elements that a thread loads at once along a reduced dimension.
    """
    total = elements(grid.shape)
    outputs = elements(size for size, out in zip(grid.shape, grid.out_strides, strict=True) if out)
    if not total:
        return []
    per_output, n, width = total // outputs, grid.reduced, 1
    along_input = n == len(grid.shape) or grid.strides[0] < grid.strides[n]
    dim0, dim1 = (per_output, outputs) if along_input else (outputs, per_output)
    fastest = grid.strides[0 if along_input else n] if grid.shape else 1
    if fastest == 1:
        if along_input and dim0 >= 128 and n == 1:
            dim0 //= vector
        elif not along_input:
            width = _vector(grid)
            dim0 //= width
    block_x, block_y = _block(dim0, dim1, MAX_THREADS // width)
    step_in, step_out = (block_x, 1) if along_input else (1, block_x)
    across_warps = ceil_div(per_output, step_in) >= min(block_y * 16, MAX_VALUES)
    if not across_warps:
        return []
    values = ceil_div(per_output, step_in * block_y)
    blocks = ceil_div(outputs // width, step_out)
    target = card.multiprocessors * (card.threads_per_multiprocessor // (block_x * block_y))
    if values < MAX_VALUES or blocks > target:
        return []
    parts = min(ceil_div(target, blocks), ceil_div(values, MIN_VALUES))
    parts = max(parts, ceil_div(values, MAX_VALUES))
    if parts <= 1:
        return []
    lanes = 1 if along_input else block_x * width
    return [accumulator * outputs * parts * lanes, 4 * blocks]


def _block(dim0: int, dim1: int, threads: int) -> tuple[int, int]:
    wide = _power_of_two(dim0) if dim0 < threads else threads
    high = _power_of_two(dim1) if dim1 < threads else threads
    height = min(high, threads // min(wide, WARP))
    return min(wide, threads // height), height


def _fits_32_bits(grid: Grid, itemsize: int) -> bool:
    reach = 1 + sum(
        (size - 1) * stride * itemsize
        for size, stride in zip(grid.shape, grid.strides, strict=True)
    )
    return elements(grid.shape) <= INT32_MAX and reach <= INT32_MAX


def _halves(grid: Grid) -> tuple[Grid, Grid]:
    """The two parts that a reduction beyond 32-bit offsets is split into."""
    extents = [(size - 1) * abs(s) for size, s in zip(grid.shape, grid.strides, strict=True)]
    dim = max(range(len(extents)), key=lambda at: (extents[at], -at))
    half = grid.shape[dim] // 2
    sizes = (half, grid.shape[dim] - half)
    first, second = (
        grid._replace(shape=(*grid.shape[:dim], size, *grid.shape[dim + 1 :])) for size in sizes
    )
    return first, second._replace(offset=grid.offset + half * grid.strides[dim])


def _split(grid: Grid, itemsize: int) -> list[Grid]:
    if _fits_32_bits(grid, itemsize):
        return [grid]
    return [part for half in _halves(grid) for part in _split(half, itemsize)]


def reduction(
    call: Call,
    tensor: torch.Tensor,
    dims: tuple[int, ...],
    *,
    accumulator: int,
    vector: int = 4,
    in_output: bool = True,
) -> list[int]:
    """Events of one reduction over `dims`.

    `in_output` says whether partial sums may stand in the output; where they may not (half in,
    half out) a tensor of more than 2 GiB needs a buffer for them.
    """
    grid = lay_out(tensor, dims)
    parts = _split(grid, tensor.element_size())
    events: list[int] = []
    if len(parts) > 1 and not in_output:
        outputs = elements(s for s, out in zip(grid.shape, grid.out_strides, strict=True) if out)
        events.append(outputs * accumulator)
    for part in parts:
        events += phases(partial_sums(part, accumulator=accumulator, card=call.card, vector=vector))
    return events


def _first_output(call: Call) -> torch.Tensor:
    return call.out[0] if isinstance(call.out, (tuple, list)) else call.out


def _converted(call: Call, tensor: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The input in the type that is reduced: a copy, but half to float is read as it is.

    Source: aten/src/ATen/native/ReduceOpsUtils.h: make_reduction_from_out_ty.
    """
    dtype = _first_output(call).dtype
    if tensor.dtype == dtype or (is_half(tensor.dtype) and dtype == torch.float32):
        return tensor, []
    return torch.empty_like(tensor, dtype=dtype, device="meta"), [size_of(tensor, dtype)]


def sums(call: Call, dims_at: int | None = 1) -> list[int]:
    """Sum and mean: the accumulator is `acc_type` of the input."""
    source = call.args[0]
    tensor, copy = _converted(call, source)
    dims = kept_dims(tensor.dim(), argument(call, dims_at, "dim") if dims_at else None)
    same = is_half(tensor.dtype) and _first_output(call).dtype == tensor.dtype
    bytes_each = accumulation_bytes(tensor.dtype)
    return copy + reduction(call, tensor, dims, accumulator=bytes_each, in_output=not same)


def _sum_dims(call: Call) -> list[int]:
    return sums(call, 1)


def _sum_all(call: Call) -> list[int]:
    return sums(call, None)


def _simple(accumulator: int | None = None, *, dims_at: int | None = 1, vector: int = 4) -> Rule:
    """A reduction of the input as it is, in elements of `accumulator` bytes or its own."""

    def events(call: Call) -> list[int]:
        tensor = call.args[0]
        named = argument(call, dims_at, "dim") if dims_at is not None else None
        dims = kept_dims(tensor.dim(), named)
        size = accumulator or tensor.element_size()
        return reduction(call, tensor, dims, accumulator=size, vector=vector)

    return Rule(events, SOURCE)


def _norm_dims_at(place: int) -> Rule:
    def events(call: Call) -> list[int]:
        tensor = call.args[0]
        dims = kept_dims(tensor.dim(), argument(call, place, "dim"))
        dtype = argument(call, 4, "dtype")
        copy = []
        if isinstance(dtype, torch.dtype) and dtype != tensor.dtype and not is_half(tensor.dtype):
            copy = [size_of(tensor, dtype)]
        size = accumulation_bytes(tensor.dtype)
        return copy + reduction(call, tensor, dims, accumulator=size)

    return Rule(events, f"{SOURCE}; aten/src/ATen/native/cuda/ReduceNormKernel.cu")


def _logsumexp(call: Call) -> Events:
    """The maxima, and the differences that are exponentiated in place.

    Source: aten/src/ATen/native/ReduceOps.cpp: logsumexp_out_impl.
    """
    tensor = call.args[0]
    dims = kept_dims(tensor.dim(), argument(call, 1, "dim"))
    outputs = elements(size for d, size in enumerate(tensor.shape) if d not in dims)
    maxima, mask = outputs * tensor.element_size(), outputs
    greatest = reduction(call, tensor, dims, accumulator=tensor.element_size())
    ahead = [maxima, *greatest, maxima, mask, -mask, -maxima, size_of(tensor)]
    dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    size = accumulation_bytes(tensor.dtype)
    return [*ahead, OUT, *reduction(call, dense, dims, accumulator=size)]


def _argument_extreme(call: Call) -> list[int]:
    tensor = call.args[0]
    dims = kept_dims(tensor.dim(), argument(call, 1, "dim"))
    copy = [] if argument(call, 1, "dim") is not None else copy_of(tensor)
    return copy + reduction(call, tensor, dims, accumulator=VALUE_AND_INDEX)


def _chunks(call: Call) -> int:
    """Numbers, one for every chunk of every tensor, as many as the largest tensor has."""
    tensors = call.args[0]
    chunks = max((ceil_div(tensor.numel(), CHUNK) for tensor in tensors), default=0)
    return chunks * len(tensors)


VALUE_AND_INDEX = 16  # bytes of a pair of a value and its place
WELFORD = 16  # mean, squared differences, count twice

# Lists of tensors: norms in parts; optimizers and what mixed precision checks write in place.
NOTHING = Rule(None, f"{CUDA}: fused kernels write in place")
_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_FUSED_OVERLOADS = ("default", "tensor_lr")
RULES: dict[str, Rule] = {
    "sum.default": Rule(_sum_all, SOURCE),
    "sum.dim_IntList": Rule(_sum_dims, SOURCE),
    "nansum.default": Rule(_sum_dims, SOURCE),
    "prod.default": Rule(_sum_all, SOURCE),
    "prod.dim_int": Rule(_sum_dims, SOURCE),
    "mean.default": Rule(_sum_all, SOURCE),
    "mean.dim": Rule(_sum_dims, SOURCE),
    **dict.fromkeys(("amax.default", "amin.default"), _simple()),
    **dict.fromkeys(("max.default", "min.default"), _simple(dims_at=None)),
    **dict.fromkeys(("max.dim", "min.dim"), _simple(VALUE_AND_INDEX)),
    **dict.fromkeys(("argmax.default", "argmin.default"), Rule(_argument_extreme, SOURCE)),
    **dict.fromkeys(("any.default", "all.default"), _simple(dims_at=None)),
    **dict.fromkeys(("any.dim", "all.dim", "any.dims", "all.dims"), _simple()),
    **dict.fromkeys(
        ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"),
        _simple(WELFORD, vector=2),
    ),
    "linalg_vector_norm.default": _norm_dims_at(2),
    "norm.ScalarOpt_dim": _norm_dims_at(2),
    "norm.ScalarOpt_dim_dtype": _norm_dims_at(2),
    "norm.Scalar": _norm_dims_at(9),
    "logsumexp.default": Rule(_logsumexp, "aten/src/ATen/native/ReduceOps.cpp: logsumexp_out"),
    "_foreach_norm.Scalar": Rule(
        lambda call: [4 * _chunks(call), OUT],
        f"{CUDA}/ForeachReduceOp.cu: foreach_tensor_norm_cuda",
    ),
    "_foreach_max.default": Rule(
        lambda call: [call.args[0][0].element_size() * _chunks(call), OUT],
        f"{CUDA}/ForeachReduceOp.cu: foreach_tensor_max_cuda",
    ),
    **{f"{name}.{overload}": NOTHING for name in _FUSED for overload in _FUSED_OVERLOADS},
    "_amp_foreach_non_finite_check_and_unscale_.default": Rule(None, f"{CUDA}/AmpKernels.cu"),
    "_amp_update_scale_.default": Rule(None, f"{CUDA}/AmpKernels.cu"),
}
