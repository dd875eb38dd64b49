"""Softmax and losses: products that are made before a kernel, copies, losses of many steps."""

from __future__ import annotations

from typing import Any

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


RULES: dict[str, Rule] = {
    "_softmax.default": Rule(_softmax, f"{SOURCE}: host_softmax"),
    "_log_softmax.default": Rule(_softmax, f"{SOURCE}: host_softmax"),
    "_softmax_backward_data.default": Rule(
        _softmax_backward, f"{SOURCE}: softmax_backward_cuda_out, host_softmax_backward"
    ),
    "_log_softmax_backward_data.default": Rule(
        _log_softmax_backward, f"{SOURCE}: host_softmax_backward"
    ),
}
