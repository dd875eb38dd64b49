"""What CUDA kernels allocate that no dispatcher sees: a table of rules, read from the sources."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from nbhelpers.simulate.kernels_call import OUT, Call, Events, Rule, overloads

# ------------------------------------------------------------------------------------------------
# Operators that were looked at and whose kernels allocate nothing but their outputs.


# Views, and factories that only fill what they make.
_MADE = """
_conj _neg_view _reshape_alias _unsafe_view alias arange as_strided as_strided_ bernoulli
bernoulli_ clone copy_ detach detach_ diagonal empty empty_like empty_strided expand exponential_
eye fill_ full full_like geometric_ imag lift lift_fresh linspace log_normal_ logspace movedim
narrow new_empty new_empty_strided new_full new_ones new_zeros normal_ ones ones_like permute
polar rand rand_like randint randint_like randn randn_like random_ real resize_ resize_as_
scalar_tensor select set_ slice split split_with_sizes squeeze squeeze_ t t_ transpose transpose_
tril_indices triu_indices unbind unfold uniform_ unsqueeze unsqueeze_ view view_as_complex
view_as_real view_as zero_ zeros zeros_like _to_copy _local_scalar_dense item is_pinned
_pin_memory complex _indices _values cauchy_ sym_size _assert_async _functional_assert_async
record_stream _is_zerotensor lift_fresh_copy chunk _has_same_storage_numel is_same_size equal
numel _nested_tensor_size unsafe_split unsafe_chunk unsafe_split_with_sizes diag_embed rot90
_efficientzerotensor block_diag _scaled_mm _is_all_true _is_any_true
"""
# Kernels that write each output from inputs as they are, or in place. Measured, or read in
# aten/src/ATen/native/cuda.
_DIRECT = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_max_pool2d
adaptive_max_pool2d_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
max_pool3d_with_indices_backward _adaptive_avg_pool3d_backward upsample_bicubic2d
upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d
upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
upsample_trilinear3d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
_upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward pixel_shuffle
pixel_unshuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d
reflection_pad2d_backward replication_pad1d replication_pad1d_backward replication_pad2d
replication_pad2d_backward channel_shuffle native_dropout native_dropout_backward glu glu_backward
elu_backward hardsigmoid_backward hardswish hardswish_ hardswish_backward hardtanh_backward
leaky_relu leaky_relu_ leaky_relu_backward log_sigmoid_forward log_sigmoid_backward mish_backward
softplus_backward
softshrink_backward gelu_backward silu_backward threshold_backward _prelu_kernel
_prelu_kernel_backward rrelu_with_noise rrelu_with_noise_backward _thnn_fused_gru_cell
_thnn_fused_gru_cell_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
_cdist_forward _pdist_forward trace index_fill floor_divide floor_divide_
_use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss heaviside nextafter where lerp lerp_ addcmul
addcdiv isin is_nonzero
"""
# Each works element by element on lists of tensors; their results, if any, are outputs.
_LISTS = """
abs add addcdiv addcmul ceil clamp_max clamp_min copy cos div erf exp expm1 floor frac lerp lgamma
log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sqrt sub
tan tanh trunc zero
"""
_NAMES = frozenset(
    [f"aten::{name}" for name in (_MADE + _DIRECT).split()]
    + [f"aten::_foreach_{name}{end}" for name in _LISTS.split() for end in ("", "_")]
)
# Namespaces of torch's own: the profiler, the dispatcher, and collectives, which work in place.
_SILENT = ("profiler", "prim", "prims", "debugprims", "c10d", "_c10d_functional")


def is_plain(func: Any) -> bool:
    """Whether an operator makes a view, fills what it makes, or computes element by element.

    Operators of other libraries never are: nobody looked at them.
    """
    schema = getattr(func, "_schema", None)
    name = schema.name if schema is not None else ""
    namespace = name.partition("::")[0]
    if namespace in _SILENT:
        return True
    if namespace != "aten":
        return False
    return torch.Tag.pointwise in func.tags or name in _NAMES or getattr(func, "is_view", False)


# ------------------------------------------------------------------------------------------------
# What CUDA kernels allocate that no dispatcher sees: a table of rules, read from the sources.
#
# A rule names the file and function that it was read from. `is_known` tells whether anybody looked
# at an operator; what nobody looked at is named in a budget, never guessed.


_FAMILIES = "attention convolution embedding indexing losses matmul norm reductions sorting"
RULES: dict[Any, Rule] = {
    func: rule
    for family in _FAMILIES.split()
    for name, rule in import_module(f"nbhelpers.simulate.kernels_{family}").RULES.items()
    for func in overloads(name)
}
_known: dict[Any, bool] = {}


def is_known(func: Any) -> bool:
    """Whether what the operator's kernel allocates was looked at, or is nothing by its nature."""
    if func not in _known:
        # With `out=` an operation does the same, into memory that is there.
        alike = [func]
        if "out" in getattr(func, "_overloadname", ""):
            packet = func.overloadpacket
            alike += [getattr(packet, name) for name in packet.overloads()]
        _known[func] = any(each in RULES or is_plain(each) for each in alike)
    return _known[func]


def events(call: Call) -> tuple[Events, Events]:
    """Events ahead of the outputs, and after them: +n allocates, -n gives such a block back.

    What then lives, also of the first, ends with the operator.
    """
    rule = RULES.get(call.func)
    steps = list(rule.events(call)) if rule is not None and rule.events is not None else []
    at = steps.index(OUT) if OUT in steps else -1
    return steps[: max(at, 0)], steps[at + 1 :]


def outputs(call: Call) -> Sequence[int] | None:
    """Bytes of the outputs' storages where the meta function is wrong, else None."""
    rule = RULES.get(call.func)
    return None if rule is None or rule.outputs is None else rule.outputs(call)


def note(func: Any) -> str:
    """What the operator's rule cannot know exactly; empty where it knows all."""
    rule = RULES.get(func)
    return "" if rule is None else rule.note
