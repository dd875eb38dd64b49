"""Which examples make which optimizer step, on which rank: pure arithmetic on row numbers.

The examples of an optimizer step depend on (seed, epoch, global batch size) alone. How a step is
split over ranks and micro-steps changes only who computes what, so the gradient is the same for
every split.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def epoch_windows(
    examples: int, global_batch_size: int, *, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the rows of each optimizer step of one epoch; the last step takes what is left.

    >>> [len(w) for w in epoch_windows(10, 4, seed=0, epoch=0)]
    [4, 4, 2]
    """
    order = np.random.default_rng([seed, epoch]).permutation(examples)
    return [order[i : i + global_batch_size] for i in range(0, examples, global_batch_size)]


def shared_windows(
    left: NDArray[np.integer],
    right: NDArray[np.integer],
    global_batch_size: int,
    *,
    seed: int,
    epoch: int,
) -> list[NDArray[np.int64]]:
    """Return the rows of each optimizer step of one epoch, where its pairs share functions.

    Functions are dealt into groups, anew each epoch, so large that two groups have about as many
    pairs in common as a step has. Pairs of the same two groups stand together, steps are in random
    order, and the last step takes what is left. Each pair stands in one step.

    Args:
        left: (pairs,) function of each pair; likewise `right`.

    >>> left, right = np.triu_indices(20, 1)
    >>> steps = shared_windows(left, right, 16, seed=0, epoch=0)
    >>> sorted(np.concatenate(steps).tolist()) == list(range(190))
    True
    >>> max(len({*left[rows].tolist(), *right[rows].tolist()}) for rows in steps)
    13
    """
    draw = np.random.default_rng([seed, epoch])
    used = np.unique(np.concatenate([left, right]))
    # Of two functions, so many pairs are there on average.
    density = min(1.0, 2 * len(left) / len(used) ** 2)
    size = max(1, round(math.sqrt(global_batch_size / density)))
    group = np.zeros(int(used[-1]) + 1, dtype=np.int64)
    group[used] = draw.permutation(len(used)) // size
    low, high = np.minimum(group[left], group[right]), np.maximum(group[left], group[right])
    order = np.lexsort((draw.random(len(left)), high, low))
    steps = [order[i : i + global_batch_size] for i in range(0, len(left), global_batch_size)]
    whole = len(left) // global_batch_size
    return [*(steps[at] for at in draw.permutation(whole)), *steps[whole:]]


def micro_batches(
    global_batch: NDArray[np.int64],
    costs: NDArray[np.int64],
    *,
    rank: int,
    world_size: int,
    per_device: int,
) -> list[NDArray[np.int64]]:
    """Return this rank's rows of each micro-step; a rank may get none in a short batch.

    Rows are sorted by cost (tokens), so that a micro-step holds like lengths and all ranks of a
    micro-step work equally long. The longest come first: a run that does not fit fails at once.

    Args:
        global_batch: Rows of the whole optimizer step.
        costs: Cost of every row of the data set.

    >>> w, c = np.arange(5), np.array([1, 5, 2, 4, 3])
    >>> [m.tolist() for m in micro_batches(w, c, rank=0, world_size=2, per_device=2)]
    [[1, 4], [2]]
    >>> [m.tolist() for m in micro_batches(w, c, rank=1, world_size=2, per_device=2)]
    [[3], [0]]
    """
    ordered = global_batch[np.lexsort((global_batch, -costs[global_batch]))]
    micro_steps = math.ceil(len(global_batch) / (world_size * per_device))
    return [part[rank::world_size] for part in np.array_split(ordered, micro_steps)]


def learning_rate_at(
    step: int,
    total_steps: int,
    *,
    peak: float,
    schedule: str,
    warmup_ratio: float = 0.0,
    warmup_steps: int | None = None,
) -> float:
    """Return the learning rate of a 0-based optimizer step: linear warm-up, then the schedule.

    Args:
        warmup_steps: In the place of `warmup_ratio`; at most all steps.

    >>> how = {"peak": 1.0, "warmup_ratio": 0.5, "schedule": "linear"}
    >>> [round(learning_rate_at(step, 4, **how), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warmup = math.ceil(warmup_ratio * total_steps)
    if warmup_steps is not None:
        warmup = min(warmup_steps, total_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    left = (total_steps - step) / max(1, total_steps - warmup)
    return peak * left if schedule == "linear" else peak * 0.5 * (1 - math.cos(math.pi * left))
