"""What one simulation knows: the card, its allocator, and what could not be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nbhelpers.simulate.allocator import CachingAllocator
from nbhelpers.simulate.cards import Card

WEIGHTS, ADAPTERS, GRADIENTS, OPTIMIZER = "weights", "adapters", "gradients", "optimizer"
ACTIVATIONS, LOGITS, ATTENTION = "activations", "logits and loss", "attention"
WORKSPACE, COMMUNICATION, INPUTS = "workspace", "communication", "inputs"
TEMPORARIES = "temporaries"
CAUSES = (WEIGHTS, ADAPTERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, ATTENTION, TEMPORARIES)
CAUSES += (INPUTS, WORKSPACE, COMMUNICATION)
LOAD, FORWARD, BACKWARD, STEP, EVALUATION = (
    "load",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
)


class Unpredictable(Exception):
    """An operation that the simulation cannot follow; its name is in `State.opaque`."""


class State:
    """The memory of the simulated card, told by cause and by phase.

    The sums by cause belong to the highest allocation so far, those by phase to the last step.
    """

    def __init__(self, card: Card, *, expandable_segments: bool = False) -> None:
        self.card = card
        self.allocator = CachingAllocator(expandable_segments=expandable_segments)
        self.sums: Counter[str] = Counter()
        self.peak_sums: dict[str, int] = {}
        self.peak = 0
        self.phases: dict[str, int] = {}
        self.forced_phase: str | None = None
        self.phase_now = LOAD
        self.opaque: dict[str, str] = {}
        self.notes: list[str] = []
        self.peak_at = ""
        self.workspaces: dict[str, Any] = {}
        self.uses_nccl = False
        self.fraction: float | None = None  # of the card's memory that this process may take
        self.guessed: dict[str, str] = {}  # what a rule cannot know exactly
        self.too_large = 0  # one request that alone is more than the card
        self.world_size = 1

    def refuse(self, name: str, why: str) -> None:
        """Name a part that cannot be predicted; the verdict will say so."""
        self.opaque.setdefault(name, why)

    def cut_short(self, name: str) -> None:
        """Say that the step was not followed to its end: what was counted is only a part."""
        why = f"the step was followed only up to {name}; what is counted is a part of it"
        self.opaque = {"cut short": why, **self.opaque}

    def ends_too_large(self) -> None:
        """Count the request that nobody could grant, at which the step ended."""
        self.peak = self.allocator.allocated + self.too_large
        sums = Counter(self.sums)
        sums[TEMPORARIES] += self.too_large
        self.peak_sums = dict(sums)
        self.note(f"the step ended at a request of {self.too_large / 2**30:.1f} GiB")

    def note(self, text: str) -> None:
        """Tell what was assumed."""
        if text not in self.notes:
            self.notes.append(text)

    def allocate(self, size_bytes: int, category: str, what: str = "") -> Any:
        """Take memory until `free` is called with what this returns; None for 0 bytes."""
        if size_bytes <= 0:
            return None
        if size_bytes > self.card.memory_total_bytes:
            self.too_large = size_bytes
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size_bytes / 2**30:.2f} GiB."
            )
        block = self.allocator.malloc(size_bytes)
        self.sums[category] += block.size
        now = self.allocator.allocated
        phase = self.forced_phase or self.phase_now
        self.see(phase)
        if now > self.peak:
            self.peak, self.peak_sums, self.peak_at = now, dict(self.sums), what
        return [block, category, size_bytes]

    def see(self, phase: str) -> None:
        """Count what is allocated now to the peak of a phase."""
        self.phases[phase] = max(self.phases.get(phase, 0), self.allocator.allocated)

    def free(self, handle: Any) -> None:
        """Give memory back."""
        if handle is None:
            return
        block, category, _ = handle
        self.sums[category] -= block.size
        self.allocator.free(block)

    def relabel(self, handle: Any, category: str) -> None:
        """Say that memory serves another cause than when it was taken."""
        if handle is not None and handle[1] != category:
            self.sums[handle[1]] -= handle[0].size
            self.sums[category] += handle[0].size
            handle[1] = category

    def temporary(self, *sizes_bytes: int, what: str = "") -> None:
        """Take memory and give it back at once, all pieces being held together."""
        handles = [self.allocate(size, TEMPORARIES, what) for size in sizes_bytes]
        for handle in handles:
            self.free(handle)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside to a phase by name, as `evaluation`."""
        before, self.forced_phase = self.forced_phase, name
        try:
            yield
        finally:
            self.forced_phase = before


_current: list[State] = []


def current() -> State | None:
    """Return the simulation that runs now, if one does."""
    return _current[-1] if _current else None


@contextmanager
def made_current(state: State) -> Iterator[State]:
    """Make a simulation the one that `current` returns."""
    _current.append(state)
    try:
        yield state
    finally:
        _current.pop()
