"""What stands in for code that cannot run without a GPU, as long as a simulation lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nbhelpers.simulate.opaque_bitsandbytes import bitsandbytes_without_kernels
from nbhelpers.simulate.opaque_compile import compile_named, flex_kernels
from nbhelpers.simulate.opaque_patches import Patches, when_imported
from nbhelpers.simulate.opaque_triton import triton_without_kernels
from nbhelpers.simulate.state import State, Unpredictable

# ------------------------------------------------------------------------------------------------
# Libraries and features that a simulation cannot follow: they are named, never guessed.


SHARDED = "it keeps a part of the weights on each GPU"
FOREIGN = "its kernels allocate memory that nobody looked at"
# (module, class or function in it, the name to tell, why)
CALLS = (
    ("torch.distributed.optim", "ZeroRedundancyOptimizer", "ZeroRedundancyOptimizer", SHARDED),
    ("deepspeed", "initialize", "DeepSpeed", SHARDED),
    ("deepspeed.ops.adam", "FusedAdam", "DeepSpeed's optimizers", FOREIGN),
    ("deepspeed.ops.adam", "DeepSpeedCPUAdam", "DeepSpeed's optimizers", FOREIGN),
    ("torchao.quantization", "quantize_", "torchao", FOREIGN),
    ("torchao.float8", "convert_to_float8_training", "torchao", FOREIGN),
    ("xformers.ops", "memory_efficient_attention", "xformers", FOREIGN),
    ("apex.optimizers", "FusedAdam", "apex", FOREIGN),
    ("apex.optimizers", "FusedLAMB", "apex", FOREIGN),
    ("apex.optimizers", "FusedSGD", "apex", FOREIGN),
    ("apex.normalization", "FusedLayerNorm", "apex", FOREIGN),
    ("apex.normalization", "FusedRMSNorm", "apex", FOREIGN),
    ("transformer_engine.pytorch", "Linear", "Transformer Engine", FOREIGN),
    ("hqq.core.quantize", "HQQLinear", "hqq", FOREIGN),
)
# Without a compiler's or a capture's result there is nothing that could go on.
NESTED = "their ragged sizes are not followed"
STOPS = (
    ("torch.nested", "nested_tensor", "nested tensors", NESTED),
    ("torch.nested", "as_nested_tensor", "nested tensors", NESTED),
    ("torch.nested", "nested_tensor_from_jagged", "nested tensors", NESTED),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "FSDP", SHARDED),
    ("torch.distributed.fsdp", "fully_shard", "FSDP2", SHARDED),
    ("torch.distributed._composable.fsdp", "fully_shard", "FSDP2", SHARDED),
    ("torch.distributed.tensor.parallel", "parallelize_module", "tensor parallelism", SHARDED),
    ("torch.distributed.device_mesh", "init_device_mesh", "a device mesh", SHARDED),
    ("torch.distributed.tensor", "distribute_tensor", "DTensor", SHARDED),
    ("torch.utils.cpp_extension", "load", "a C++ extension", FOREIGN),
    ("torch.utils.cpp_extension", "load_inline", "a C++ extension", FOREIGN),
    ("torch.cuda", "CUDAGraph", "a CUDA graph", "its memory pool is its own"),
    ("torch.cuda.graphs", "CUDAGraph", "a CUDA graph", "its memory pool is its own"),
    ("torch.cuda", "make_graphed_callables", "a CUDA graph", "its memory pool is its own"),
    ("kernels", "get_kernel", "a kernel from the hub", FOREIGN),
)


@contextlib.contextmanager
def refusals(state: State) -> Iterator[None]:
    """Name each of these parts when the code under simulation uses it."""
    with Patches() as patches:
        for module, attribute, name, why in (*CALLS, *STOPS):
            stops = (module, attribute, name, why) in STOPS
            patch = _patch(patches, state, attribute, name, why, stops)
            patches.enter_context(when_imported(module, patch))
        yield


def _patch(
    patches: Patches, state: State, attribute: str, name: str, why: str, stops: bool
) -> Callable[[Any], None]:
    def patch(module: Any) -> None:
        real = getattr(module, attribute, None)
        if real is None:
            return
        if isinstance(real, type) and stops:
            # It stays a class: modules that are imported now name it in their annotations.
            patches.put(real, "__new__", staticmethod(_named(state, real, name, why, stops)))
        elif isinstance(real, type):
            _name_instances(patches, state, real, name, why)
        else:
            patches.put(module, attribute, _named(state, real, name, why, stops))

    return patch


def _name_instances(patches: Patches, state: State, cls: Any, name: str, why: str) -> None:
    """Name a class when one of it is made; the class stays itself, for `isinstance`."""
    original = cls.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        state.refuse(name, why)
        original(self, *args, **kwargs)

    patches.put(cls, "__init__", init)


def _named(state: State, real: Any, name: str, why: str, stops: bool) -> Callable[..., Any]:
    def named(*args: Any, **kwargs: Any) -> Any:
        state.refuse(name, why)
        if stops:
            raise Unpredictable(name)
        return real(*args, **kwargs)

    return named


# ------------------------------------------------------------------------------------------------
# What stands in for code that cannot run without a GPU, as long as a simulation lasts.
#
# Foreign Python code runs as it is wherever it can, with kernels that do nothing: what a library
# allocates, it allocates around its kernels. What cannot be followed is named (`State.refuse`).


@contextlib.contextmanager
def stand_ins(state: State) -> Iterator[None]:
    """Let bitsandbytes, Liger, flex attention and the like run without a GPU; name the rest.

    Args:
        state: Hears what could not be predicted, what was assumed, and temporaries of kernels.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(triton_without_kernels(state))
        flex = stack.enter_context(flex_kernels(state))
        stack.enter_context(compile_named(state, flex))
        stack.enter_context(bitsandbytes_without_kernels(state))
        stack.enter_context(refusals(state))
        yield
