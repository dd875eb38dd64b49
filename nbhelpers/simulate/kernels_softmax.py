"""Softmax: the product with the gradient, copies of what is not contiguous, rows of -inf."""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import Call, Rule, copies_of, copy_of, size_of

SOURCE = "aten/src/ATen/native/cuda/SoftMax.cu"


def _softmax(call: Call) -> list[int]:
    return copy_of(call.args[0])


def _softmax_backward(call: Call) -> list[int]:
    """`grad * output`, and copies of what is not contiguous; the output of a softmax is."""
    grad, output = call.args[0], call.args[1]
    dtype = torch.promote_types(grad.dtype, output.dtype)
    product = size_of(output, dtype)
    dense = grad.stride() == output.stride() or grad.is_contiguous()
    return [product, *copy_of(output), *([] if dense else [product])]


def _log_softmax_backward(call: Call) -> list[int]:
    return copies_of(call.args[0], call.args[1])


def _safe_softmax(call: Call) -> list[int]:
    """Which scores are -inf, and which rows are nothing else.

    Before torch 2.8 the result was chosen into a tensor of its own.
    """
    scores, dim = call.args[0], call.args[1]
    rows = scores.numel() // max(scores.shape[dim], 1)
    return [*copy_of(scores), scores.numel(), rows, 4]


RULES: dict[str, Rule] = {
    "_safe_softmax.default": Rule(
        _safe_softmax, "aten/src/ATen/native/transformers/attention.cpp: _safe_softmax"
    ),
    "_softmax.default": Rule(_softmax, f"{SOURCE}: host_softmax"),
    "_log_softmax.default": Rule(_softmax, f"{SOURCE}: host_softmax"),
    "_softmax_backward_data.default": Rule(
        _softmax_backward, f"{SOURCE}: softmax_backward_cuda_out, host_softmax_backward"
    ),
    "_log_softmax_backward_data.default": Rule(
        _log_softmax_backward, f"{SOURCE}: host_softmax_backward"
    ),
}
