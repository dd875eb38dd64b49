"""Operators on lists of tensors, fused optimizers, and what mixed precision checks."""

from __future__ import annotations

from nbhelpers.simulate.kernels_call import Call, Rule, ceil_div

SOURCE = "aten/src/ATen/native/cuda"
CHUNK = 65536  # elements that one block takes of a tensor


def _norm_before(call: Call) -> list[int]:
    """One number for every chunk of every tensor, as many as the largest tensor has.

    Source: ForeachReduceOp.cu: foreach_tensor_norm_cuda.
    """
    tensors = call.args[0]
    if not tensors:
        return []
    chunks = max(ceil_div(tensor.numel(), CHUNK) for tensor in tensors)
    return [4 * chunks * len(tensors)]


def _max_before(call: Call) -> list[int]:
    tensors = call.args[0]
    chunks = max(ceil_div(tensor.numel(), CHUNK) for tensor in tensors)
    return [tensors[0].element_size() * chunks * len(tensors)]


NOTHING = Rule(None, f"{SOURCE}: fused kernels write in place")
_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_FUSED_OVERLOADS = ("default", "tensor_lr")
RULES: dict[str, Rule] = {
    "_foreach_norm.Scalar": Rule(
        None, f"{SOURCE}/ForeachReduceOp.cu: foreach_tensor_norm_cuda", before=_norm_before
    ),
    "_foreach_max.default": Rule(
        None, f"{SOURCE}/ForeachReduceOp.cu: foreach_tensor_max_cuda", before=_max_before
    ),
    **{f"{name}.{overload}": NOTHING for name in _FUSED for overload in _FUSED_OVERLOADS},
    "_amp_foreach_non_finite_check_and_unscale_.default": Rule(None, f"{SOURCE}/AmpKernels.cu"),
    "_amp_update_scale_.default": Rule(None, f"{SOURCE}/AmpKernels.cu"),
}


def is_foreach(name: str) -> bool:
    """Whether an operator works element by element on lists: its outputs are all it takes."""
    return name.startswith("aten::_foreach_") and "norm" not in name and "max" not in name
