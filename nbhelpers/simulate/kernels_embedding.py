"""Embeddings: the indices are sorted, and rows that share an index are summed in parts."""

from __future__ import annotations

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    argument,
    ceil_div,
    copies_of,
    copy_of,
    first,
    phases,
    round_up,
)

SOURCE = "aten/src/ATen/native/cuda"
UNSORTED = 3072  # up to so many indices a kernel sorts nothing
ROWS_PER_PART = 10  # NROWS_PER_THREAD
# Few rows that many indices share are summed in place. Measured: 514 rows are few, 1,000 are not.
FEW_ROWS, MANY_SHARE = 768, 32
# A scan over n numbers keeps a state per tile of them.
SCAN = 1279


def radix_sort(count: int, key_bytes: int, value_bytes: int, bits: int | None = None) -> int:
    """Bytes that cub's radix sort of pairs takes; 1 for what one block sorts.

    Source: cub DeviceRadixSort (onesweep): bins of each pass over 8 bits, counts of each tile, and
    a second buffer for keys and values where more than one pass is made. The tile is that of cub's
    tuning for capability 9.0; it decides 2 % of the size.
    """
    if count <= 256 * (9 if max(key_bytes, value_bytes) > 4 else 19):
        return 1
    items = {1: 15, 2: 15, 4: 14}.get(key_bytes, 12)
    tiles = ceil_div(count, 384 * items)
    passes = key_bytes if bits is None else ceil_div(bits, 8)
    own = 2048 * passes + 256 + 1024 * tiles + 255
    if passes == 1:
        return own
    return own + round_up(count * key_bytes, 256) + round_up(count * value_bytes, 256)


def _embedding(call: Call) -> list[int]:
    """The indices in one line: a view wherever their strides allow."""
    indices = call.args[1]
    try:
        indices.view(-1)
    except RuntimeError:
        return copy_of(indices)
    return []


def _sort_events(count: int, each: int) -> list[int]:
    buffer, space = count * each, radix_sort(count, each, each)
    return [buffer, buffer, buffer, space, -space, -buffer]


def summed_parts(count: int, rows: int, width: int, each: int, grad_bytes: int) -> list[int]:
    """Events of the sums of rows that share an index.

    Args:
        count: how many indices.
        rows: rows of the table.
        width: columns of the table.
        each: bytes of an index.
        grad_bytes: bytes of an element of the gradient.
    """
    groups, buffer = min(count, rows), count * each
    parts = count // ROWS_PER_PART + groups
    events = [buffer, 8, buffer, SCAN, -SCAN, -buffer]
    events += [groups * each, groups * each, SCAN, -SCAN, 8, parts * each]
    if rows <= FEW_ROWS and count >= MANY_SHARE * rows:
        table = [4 * rows * width] if grad_bytes < 4 else []
        return [*events, parts * each, *table]
    return [*events, max(grad_bytes, 4) * parts * width]


def _dense_backward(call: Call) -> Events:
    """Copies, then the sort of the indices beside where they came from, then sums."""
    grad, indices = call.args[0], call.args[1]
    taken, scales = copies_of(grad, indices), argument(call, 4, "scale_grad_by_freq", False)
    count, each = indices.numel(), indices.element_size()
    if count <= UNSORTED and not scales:
        return [*taken, OUT]
    counts = [count * each, SCAN, -SCAN, SCAN, -SCAN] if scales else []
    return [*taken, *_sort_events(count, each), *counts, OUT, *_sums(call, 2)]


def _bag_backward(call: Call) -> Events:
    indices, is_max = call.args[1], argument(call, 8, "mode", 0) == 2
    if is_max:
        return []
    return [*_sort_events(indices.numel(), indices.element_size()), OUT, *_sums(call, 6)]


def _sums(call: Call, rows_at: int) -> list[int]:
    grad, indices, rows = call.args[0], call.args[1], argument(call, rows_at, "num_weights")
    sizes = indices.element_size(), grad.element_size()
    return summed_parts(indices.numel(), rows, grad.shape[-1], *sizes)


def _renorm(call: Call) -> list[int]:
    indices = call.args[1]
    count = indices.numel() * indices.element_size()
    return phases([count, count, radix_sort(indices.numel(), indices.element_size(), 8)])


RULES: dict[str, Rule] = {
    "embedding.default": Rule(first(_embedding), "aten/src/ATen/native/Embedding.cpp: embedding"),
    "embedding_dense_backward.default": Rule(
        _dense_backward,
        f"{SOURCE}/Embedding.cu: embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
    ),
    "_embedding_bag.default": Rule(None, f"{SOURCE}/EmbeddingBag.cu"),
    "_embedding_bag_forward_only.default": Rule(None, f"{SOURCE}/EmbeddingBag.cu"),
    "_embedding_bag_backward.default": Rule(
        _bag_backward, f"{SOURCE}/EmbeddingBag.cu: embedding_bag_backward_cuda_sum_avg"
    ),
    "embedding_renorm_.default": Rule(_renorm, f"{SOURCE}/Embedding.cu: embedding_renorm_cuda_"),
}
