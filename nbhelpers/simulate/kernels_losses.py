"""Losses: unreduced values beside a mean, a scalar in storage of full size, CTC's second table."""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    accumulation_bytes,
    argument,
    elements,
    size_of,
)
from nbhelpers.simulate.kernels_reductions import reduction

LOSS = "aten/src/ATen/native/Loss.cpp"
NONE = 0  # reduction: values stay as they are
FLOAT, INDEX = 4, 8


def _full(call: Call) -> int:
    shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)
    return elements(shape) * call.args[0].element_size()


def _mean_of_values(call: Call) -> list[int]:
    tensor = call.args[0]
    dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    dims = tuple(range(dense.dim()))
    return reduction(call, dense, dims, accumulator=accumulation_bytes(dense.dtype))


def _values_and_mean(place: int) -> Rule:
    """Values, then their mean in a result that was made as large as the values."""

    def reduces(call: Call) -> bool:
        return argument(call, place, "reduction", 1) != NONE

    def events(call: Call) -> list[int]:
        return [_full(call), *_mean_of_values(call)] if reduces(call) else []

    def outputs(call: Call) -> list[int]:
        return [_full(call)]

    return Rule(events, f"{LOSS}: set_output of the values' shape, then mean_out", outputs)


def _in_place_mean(place: int) -> Rule:
    def events(call: Call) -> list[int]:
        if argument(call, place, "reduction", 1) == NONE:
            return []
        return [FLOAT, *_mean_of_values(call)]

    return Rule(events, f"{LOSS}: values in the result's own storage", lambda call: [_full(call)])


def _huber(call: Call) -> Events:
    if argument(call, 2, "reduction", 1) == NONE:
        return []
    return [_full(call), OUT, *_mean_of_values(call)]


def _logits(call: Call) -> Events:
    """Two temporaries of full size, also where positives are weighted."""
    full = _full(call)
    weight = argument(call, 3, "pos_weight")
    weighted = [] if weight is None else [size_of(weight), full, -full, -size_of(weight)]
    if argument(call, 4, "reduction", 1) == NONE:
        return [full, *weighted, OUT]
    return [full, *weighted, full, OUT, *_mean_of_values(call)]


def _ctc(call: Call) -> list[int]:
    batch = call.args[0].shape[1]
    return [INDEX * batch] * 3


def _ctc_backward(call: Call) -> list[int]:
    """The second table; for long inputs also what is gathered of every label, twice."""
    scores, table = call.args[1], argument(call, 6, "log_alpha")
    length, batch, labels = scores.shape
    taken = [INDEX * batch] * 3 + [size_of(table)]
    if 2 * length + 24 * batch // 10 + 2 * labels // 10 > 450:
        gathered = length * batch * (table.shape[-1] + 1) // 2 * table.element_size()
        taken += [gathered, gathered, *[FLOAT * length * batch] * 2]
    if argument(call, 8, "zero_infinity", False):
        taken.append(size_of(scores))
    return taken


CTC = "aten/src/ATen/native/cuda/LossCTC.cu"
_PLAIN = (
    "nll_loss_forward.default",
    "nll_loss_backward.default",
    "nll_loss2d_forward.default",
    "nll_loss2d_backward.default",
    "mse_loss_backward.default",
    "smooth_l1_loss_backward.default",
    "huber_loss_backward.default",
    "binary_cross_entropy_backward.default",
    "multi_margin_loss_backward.default",
    "multilabel_margin_loss_backward.default",
)
RULES: dict[str, Rule] = {
    "log_sigmoid_forward.default": Rule(
        None,
        "aten/src/ATen/native/Activation.cpp: log_sigmoid_forward_cuda has no buffer",
        lambda call: [size_of(call.args[0]), 0],
    ),
    **{name: Rule(None, "aten/src/ATen/native/cuda: measured to take nothing") for name in _PLAIN},
    "mse_loss.default": _values_and_mean(2),
    "smooth_l1_loss.default": _values_and_mean(2),
    "binary_cross_entropy.default": _in_place_mean(3),
    "soft_margin_loss.default": _in_place_mean(2),
    "huber_loss.default": Rule(_huber, f"{LOSS}: huber_loss"),
    "binary_cross_entropy_with_logits.default": Rule(
        _logits, f"{LOSS}: binary_cross_entropy_with_logits"
    ),
    "soft_margin_loss_backward.default": Rule(
        lambda call: [_full(call), _full(call)], f"{LOSS}: soft_margin_loss_backward"
    ),
    "multi_margin_loss.default": Rule(
        lambda call: [FLOAT * call.args[0].shape[0]], "aten/src/ATen/native/cuda/MultiMarginLoss.cu"
    ),
    **dict.fromkeys(
        ("_ctc_loss.default", "_ctc_loss.Tensor"), Rule(_ctc, f"{CTC}: ctc_loss_gpu_template")
    ),
    **dict.fromkeys(
        ("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor"),
        Rule(_ctc_backward, f"{CTC}: ctc_loss_backward_gpu_template"),
    ),
    "_use_cudnn_ctc_loss.default": Rule(None, "aten/src/ATen/native/cudnn/LossCTC.cpp"),
    "_use_cudnn_ctc_loss.Tensor": Rule(None, "aten/src/ATen/native/cudnn/LossCTC.cpp"),
}
