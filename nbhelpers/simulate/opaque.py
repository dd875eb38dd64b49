"""What stands in for code that cannot run without a GPU, as long as a simulation lasts.

Foreign Python code runs as it is wherever it can, with kernels that do nothing: what a library
allocates, it allocates around its kernels. What cannot be followed is named (`State.refuse`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nbhelpers.simulate.opaque_bitsandbytes import bitsandbytes_without_kernels
from nbhelpers.simulate.opaque_compile import compile_named
from nbhelpers.simulate.opaque_flash import flash_attention
from nbhelpers.simulate.opaque_flex import flex_kernels
from nbhelpers.simulate.opaque_liger import liger_without_traces
from nbhelpers.simulate.opaque_patches import State
from nbhelpers.simulate.opaque_refused import refusals
from nbhelpers.simulate.opaque_triton import triton_without_kernels

__all__ = ["stand_ins"]


@contextlib.contextmanager
def stand_ins(state: State) -> Iterator[None]:
    """Let bitsandbytes, Liger, flex attention and the like run without a GPU; name the rest.

    Args:
        state: Hears what could not be predicted, what was assumed, and temporaries of kernels.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(triton_without_kernels(state))
        stack.enter_context(liger_without_traces(state))
        flex = stack.enter_context(flex_kernels(state))
        stack.enter_context(compile_named(state, flex))
        stack.enter_context(bitsandbytes_without_kernels(state))
        stack.enter_context(flash_attention(state))
        stack.enter_context(refusals(state))
        yield
