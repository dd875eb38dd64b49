"""What `torch.autocast("cuda")` casts: the lists that CUDA's dispatch key holds.

Source: aten/src/ATen/autocast_mode.h of torch 2.11 (lower_precision_fp, fp32, fp32_set_opt_dtype,
fp32_append_dtype, promote). A tensor without storage has no such key, so the casts are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

_LOWER = """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d convolution prelu addmm addmv addr matmul __matmul__ __rmatmul__ einsum mm mv
linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"""
_FLOAT = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow
__pow__ __rpow__ softplus layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss_nd nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"""
_FLOAT_RESULT = """prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm
sum"""
_PROMOTE = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot"
_PROMOTE += " scatter_add"
_HOMES = (torch, torch.Tensor, torch._C._nn, torch._C._linalg, torch._C._special, F)
_HOMES += (torch._C._VariableFunctions,)  # what torch's own Python functions call


def _functions(names: str) -> frozenset[Any]:
    """Everything in Python that reaches these operations."""
    return frozenset(
        getattr(home, name)
        for name in names.split()
        for home in _HOMES
        if callable(getattr(home, name, None))
    )


_NAMES = {"lower": _LOWER, "float": _FLOAT, "result": _FLOAT_RESULT, "promote": _PROMOTE}
_POLICIES = {each: policy for policy, names in _NAMES.items() for each in _functions(names)}


@contextmanager
def without_autocast() -> Iterator[None]:
    """Do as CUDA does inside an operation that autocast has handed on."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


class Autocast:
    """The casts, and the cache of weights in half precision that lives as long as the context."""

    def __init__(self) -> None:
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Forget cached casts, as leaving the outermost context does."""
        self.cache.clear()

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Cast a tensor as `cached_cast` does; anything else is returned as it is."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64) or not value.is_meta:
            return value
        is_weight = value.is_leaf and value.requires_grad and not value._is_view()
        caches = is_weight and value.dtype is torch.float32 and dtype is not torch.float32
        if not (caches and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self.cache:
            self.cache[id(value)] = (value, value.to(dtype))
        return self.cache[id(value)][1]

    def apply(
        self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the arguments as CUDA's autocast would hand them on."""
        policy = _POLICIES.get(func)
        if policy is None:
            return args, kwargs
        if policy == "result":
            first = args[0] if args else kwargs.get("input", kwargs.get("self"))
            is_float = isinstance(first, torch.Tensor) and first.is_floating_point()
            if is_float and first.dtype is not torch.float64 and _lacks_dtype(func, args, kwargs):
                kwargs = kwargs | {"dtype": torch.float32}
            return args, kwargs
        dtype = torch.float32 if policy == "float" else torch.get_autocast_dtype("cuda")
        if policy == "promote":
            dtype = _widest((args, kwargs), dtype)
            if dtype is None:
                return args, kwargs
        return self._cast_all(args, kwargs, dtype)

    def _cast_all(
        self, args: Any, kwargs: dict[str, Any], dtype: torch.dtype
    ) -> tuple[Any, dict[str, Any]]:
        """Cast the last argument first, as C++ evaluates them; measured with torch 2.11."""

        def cast(value: Any) -> Any:
            return tree_map_only(torch.Tensor, lambda t: self.cast(t, dtype), value)

        named = {name: cast(kwargs[name]) for name in reversed(kwargs)}
        return tuple(cast(value) for value in reversed(args))[::-1], named


def _lacks_dtype(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    if kwargs.get("dtype") is not None:
        return False
    return not any(isinstance(each, torch.dtype) for each in args)


def _widest(tree: Any, lower: torch.dtype) -> torch.dtype | None:
    """The type to which mixed floating point is promoted; None: nothing to do."""
    dtypes: set[torch.dtype] = set()
    tree_map_only(torch.Tensor, lambda t: dtypes.add(t.dtype), tree)
    floats = {d for d in dtypes if d.is_floating_point}
    if len(floats) < 2 or torch.float64 in floats:
        return None
    return torch.float32 if torch.float32 in floats else lower
