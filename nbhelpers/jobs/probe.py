"""A probe: a few optimizer steps of the very run, on its longest examples and on typical ones.

It goes through the same data, model and training as the run; it ends after its last step, before
anything is validated, saved or scored. What it leaves is a measured speed and a measured peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nbhelpers.jobs.context import RunContext

# Steps on the longest examples, then on typical ones; a CPU is slow, and its first two steps are
# slower still, since live bytes are counted in them.
GPU_STEPS, CPU_STEPS = (4, 16), (2, 6)
WARM_UP = 2  # of the typical steps: kernels for new lengths are chosen in them


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedSteps:
    """The optimizer steps of a probe: the rows of each; the first `longest` are the longest.

    `examples` are those of an epoch of the run.
    """

    batches: list[np.ndarray]
    longest: int
    examples: int


def probed_steps(
    context: RunContext, costs: np.ndarray, usual: Sequence[np.ndarray], *, examples: int
) -> ProbedSteps:
    """Return the steps of a probe: on the longest rows, then on typical ones.

    The longest are, in turn, the longest rows of all in one step, and the longest step of the
    first epoch: pairs of the very longest functions may share them, and be computed once.

    Args:
        costs: (rows,) tokens of each row; a row is a form of the example `row % examples`.
        usual: The rows of each step of the run's first epoch.
        examples: Training examples of an epoch.
    """
    plan, s = context.plan, context.settings
    longest, typical = GPU_STEPS if plan.use_gpu else CPU_STEPS
    order = np.argsort(-costs, kind="stable")
    _, first = np.unique(order % examples, return_index=True)
    bound = order[np.sort(first)[: s.global_batch_size]]
    size = plan.per_device_train_batch_size

    def largest_micro_step(batch_rows: np.ndarray) -> int:
        return int(np.sort(costs[batch_rows])[-size:].sum())

    pair = (bound, max(usual, key=largest_micro_step))
    rest = list(usual[:typical])
    # A run of few steps is probed in as many: its schedule has no more.
    longest = max(1, min(longest, len(usual) - len(rest)))
    batches = [*(pair[i % 2] for i in range(longest)), *rest]
    return ProbedSteps(batches=batches[: len(usual)], longest=longest, examples=examples)


def shortened(settings: Any) -> Any:
    """Return the settings of a probe; what decides the speed and the kernels stays."""
    changes = {"logging_steps": 1, "eval_steps": None, "save_steps": None, "save_minutes": None}
    changes |= {"pretrain_steps": 0, "track": "none", "evaluate": "none", "edit_suite": False}
    changes |= {"floors": False, "on_failed_audit": "go_on"}
    frozen = getattr(settings, "freeze_epochs", 0)
    if frozen:  # all parameters learn: the slow steps, and those with the peak
        changes |= {"freeze_epochs": 0, "epochs": max(1, settings.epochs - frozen)}
    known = type(settings).model_fields
    return settings.model_copy(update={k: v for k, v in changes.items() if k in known})


def rate_of(steps: Sequence[dict[str, Any]], *, warm_up: int = WARM_UP) -> dict[str, float]:
    """Return examples and tokens per second over `step` events; the first of them are warm-up.

    Args:
        steps: Events with counts and seconds since the start of training.
        warm_up: Steps that are left out, as long as one more is left.
    """
    timed_steps = list(steps[min(warm_up, max(len(steps) - 2, 0)) :])
    if len(timed_steps) < 2:
        return {}
    first, last = timed_steps[0], timed_steps[-1]
    names = ("examples", "useful_tokens", "padded_tokens", "elapsed_s")
    pairs, useful, padded, seconds = (last[name] - first[name] for name in names)
    if seconds <= 0 or padded <= 0:
        return {}
    each = [two["elapsed_s"] - one["elapsed_s"] for one, two in pairwise(timed_steps)]
    return {
        "pairs_per_s": pairs / seconds,
        "useful_tokens_per_s": useful / seconds,
        "padded_tokens_per_s": padded / seconds,
        "useful_share": useful / padded,
        "step_s": float(np.median(each)),
    }
