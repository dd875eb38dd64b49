"""`torch.cuda` and `torch.accelerator` as they answer on the card that is simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.simulate.opaque_patches import Patches

if TYPE_CHECKING:
    from nbhelpers.simulate.cards import Card
    from nbhelpers.simulate.state import State


class _Stream:
    """A stream on which nothing waits."""

    cuda_stream, stream_id, device_index, priority = 0, 0, 0, 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def synchronize(self) -> None:
        pass

    wait_stream = wait_event = record = __init__


class _Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0

    record = synchronize = wait = __init__


def _properties(card: Card) -> SimpleNamespace:
    major, minor = divmod(card.capability, 10)
    return SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_total_bytes,
        multi_processor_count=card.multiprocessors,
        max_threads_per_multi_processor=card.threads_per_multiprocessor,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        L2_cache_size=50 << 20,
        shared_memory_per_block=48 << 10,
        regs_per_multiprocessor=65536,
    )


def _constants(card: Card) -> dict[str, Any]:
    return {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": card.name,
        "get_device_capability": divmod(card.capability, 10),
        "get_device_properties": _properties(card),
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "get_arch_list": [f"sm_{card.capability}"],
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "initial_seed": 0,
        "memory_summary": "a simulated card keeps no table of its allocations",
    }


_NOTHING = """init _lazy_init set_device synchronize manual_seed manual_seed_all seed seed_all
set_rng_state set_rng_state_all ipc_collect set_stream reset_accumulated_memory_stats"""


def _memory(state: State) -> dict[str, Any]:
    card, allocator = state.card, state.allocator

    def free_and_total(*_: Any) -> tuple[int, int]:
        used = allocator.reserved + card.context_bytes
        return max(card.memory_total_bytes - used, 0), card.memory_total_bytes

    def set_fraction(fraction: float, device: Any = None) -> None:
        state.fraction = float(fraction)

    return {
        "set_per_process_memory_fraction": set_fraction,
        "memory_allocated": lambda *_, **__: allocator.allocated,
        "max_memory_allocated": lambda *_, **__: allocator.peak_allocated,
        "memory_reserved": lambda *_, **__: allocator.reserved,
        "max_memory_reserved": lambda *_, **__: allocator.peak_reserved,
        "reset_peak_memory_stats": lambda *_, **__: allocator.reset_peaks(),
        "reset_max_memory_allocated": lambda *_, **__: allocator.reset_peaks(),
        "empty_cache": lambda: allocator.empty_cache(),
        "memory_stats": lambda *_, **__: allocator.memory_stats(),
        "mem_get_info": free_and_total,
    }


def _answers(state: State) -> dict[str, Any]:
    """What each name of `torch.cuda` stands for."""
    return (
        {name: _returns(value) for name, value in _constants(state.card).items()}
        | dict.fromkeys(_NOTHING.split(), _returns(None))
        | _memory(state)
        | {
            "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8, device="cpu"),
            "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8, device="cpu")],
            "current_stream": lambda *_: _Stream(),
            "default_stream": lambda *_: _Stream(),
            "stream": lambda s=None: contextlib.nullcontext(s),
            "StreamContext": lambda s=None: contextlib.nullcontext(s),
            "Stream": _Stream,
            "Event": _Event,
            "_initialized": True,
        }
    )


def _of_any_accelerator() -> dict[str, Any]:
    """What each name of `torch.accelerator` stands for, where `torch.cuda` has another."""
    return {
        "current_accelerator": _returns(torch.device("cuda")),
        "current_device_index": _returns(0),
        "current_device_idx": _returns(0),
        "set_device_index": _returns(None),
        "set_device_idx": _returns(None),
        "device_index": lambda *_: contextlib.nullcontext(),
    }


def _settings(state: State) -> Callable[[str], None]:
    """Take the allocator's settings as `PYTORCH_CUDA_ALLOC_CONF` holds them."""

    def settings(text: str) -> None:
        wants = "expandable_segments:true" in text.lower().replace(" ", "")
        if wants != state.allocator.expandable_segments and not state.allocator.reserved:
            state.allocator.expandable_segments = wants

    return settings


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


@contextlib.contextmanager
def fake_cuda(state: State) -> Iterator[None]:
    """Let `torch.cuda`, and what stands for any accelerator, answer for the simulated card."""
    none, memory = _returns({}), torch.cuda.memory
    with Patches() as patches:
        answers = _answers(state)
        patches.put_known(torch.cuda, answers)
        patches.put_known(torch.accelerator, answers | _of_any_accelerator())
        marks = ("range_push", "range_pop", "range_start", "range_end", "mark")
        patches.put_known(torch.cuda.nvtx, dict.fromkeys(marks, _returns(0)))
        for name in ("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"):
            patches.put(torch.cuda.random, name, getattr(torch.cuda, name))
        for name in ("memory_allocated", "max_memory_allocated", "memory_stats", "empty_cache"):
            patches.put(memory, name, getattr(torch.cuda, name))
        records = ("_record_memory_history", "_dump_snapshot", "_snapshot")
        patches.put_known(memory, dict.fromkeys(records, none))
        patches.put_known(memory, {"_set_allocator_settings": _settings(state)})
        patches.put(torch.backends.cuda, "is_built", _returns(True))
        # A build for CPUs lacks the kernel that the card's build has.
        has_flash = _returns(state.card.capability >= 80)
        patches.put(torch.backends.cuda, "is_flash_attention_available", has_flash)
        if torch.version.cuda is None:
            patches.put(torch.version, "cuda", "13.0")
        yield
