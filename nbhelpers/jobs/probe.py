"""A probe: a few optimizer steps of the very run, on its longest examples and on typical ones.

It goes through the same data, model and training as the run; it ends after its last step, before
anything is validated, saved or scored. What it leaves is a measured speed and a measured peak.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object

from nbhelpers import speeds
from nbhelpers.files import write_json
from nbhelpers.memory import compare

if TYPE_CHECKING:
    from nbhelpers.jobs.loop import Task
    from nbhelpers.jobs.session import Session

MODE = "probe"
# Steps on the longest examples, then on typical ones; a CPU is slow, and its first two steps are
# slower still, since live bytes are counted in them.
GPU_STEPS, CPU_STEPS = (4, 16), (2, 6)
WARM_UP = 2  # of the typical steps: kernels for new lengths are chosen in them


class ProbeDone(BaseException):
    """The last step is made; no handler of errors is meant to see it."""


class Probe:
    """What makes a training a probe: its settings, its windows, and the end after the last step."""

    def __init__(self, session: Session) -> None:
        """Shorten the session's settings, and listen to its events."""
        self.session, self.steps = session, []
        self.longest, self.typical = GPU_STEPS if session.plan.use_gpu else CPU_STEPS
        self.count, self.examples = self.longest + self.typical, 0
        self.facts: dict[str, Any] = {}
        self.asked = session.settings
        session.settings = session.settings.model_copy(update=_shortened(session.settings))
        self._tell = session.emit_main
        session.emit_main = self._emit  # type: ignore[method-assign]

    def _emit(self, kind: str, **told: Any) -> None:
        self._tell(kind, **told)
        if kind == "compile":
            self.facts["compiled"] = bool(told.get("is_on"))
        if kind == "step":
            self.steps.append(told)
            if len(self.steps) >= self.count:
                raise ProbeDone

    def windows(self, costs: np.ndarray, usual: Sequence[np.ndarray], examples: int) -> list[Any]:
        """Return the rows of each step: the longest ones, then typical ones.

        The longest are, in turn, the longest rows of all in one step, and the longest step of the
        first epoch: pairs of the very longest functions may share them, and be computed once.

        Args:
            costs: (rows,) tokens of each row; a row is a form of the example `row % examples`.
            usual: The windows of the run's first epoch.
            examples: Training examples of an epoch.
        """
        self.examples = examples
        plan, s = self.session.plan, self.session.settings
        order = np.argsort(-costs, kind="stable")
        _, first = np.unique(order % examples, return_index=True)
        bound = order[np.sort(first)[: s.global_batch_size]]
        size = plan.per_device_train_batch_size

        def largest_micro_step(window: np.ndarray) -> int:
            return int(np.sort(costs[window])[-size:].sum())

        pair = (bound, max(usual, key=largest_micro_step))
        typical = list(usual[: self.typical])
        # A run of few steps is probed in as many: the trainer would begin a second epoch.
        self.longest = max(1, min(self.longest, len(usual) - len(typical)))
        found = [*(pair[i % 2] for i in range(self.longest)), *typical]
        self.count = min(len(found), len(usual))
        return found[: self.count]

    def take_over(self, task: Task) -> None:
        """Give a task of the loop the probe's windows."""
        windows = self.windows(task.costs, task.global_batches(0), task.examples)
        task.global_batches = lambda epoch: windows  # type: ignore[method-assign]

    def run(self, train: Callable[[], Any]) -> None:
        """Train up to the last step of the probe, and write what it measured; all ranks call it."""
        with contextlib.suppress(ProbeDone):
            train()
        session = self.session
        device = session.accelerator.device
        peak = max((step["memory_bytes"] for step in self.steps), default=0)
        reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
        ranks = gather_object([{"allocated": peak, "reserved": reserved}])
        session.accelerator.wait_for_everyone()
        if session.is_main:
            self._write(ranks)

    def _write(self, ranks: list[dict[str, int]]) -> None:
        session, facts = self.session, self.session.facts
        session.clock.phase("finish")
        result = {
            "schema": 1,
            "run_id": facts["run_id"],
            "job": facts["job"],
            "mode": MODE,
            "preset": session.preset.name,
            "settings": self.asked.model_dump(mode="json"),
            "precision": session.precision,
            "plan": session.plan.to_dict(),
            "budget": facts["budget"],
            "command": facts.get("command"),
            "finished_at": time.time(),
            "training": {"optimizer_steps": len(self.steps)},
            "throughput": rate_of(self.steps[self.longest :]),
            "probe": {
                "steps": len(self.steps),
                "longest_steps": self.longest,
                "examples": self.examples,
                "longest": rate_of(self.steps[: self.longest], warm_up=1),
            },
            "model": self.facts,
            "memory": self._memory(ranks),
            "warnings": session.warnings,
            "timing": session.clock.result(),
        }
        write_json(session.run.result_path, result)
        speeds.remember(facts, result)
        session.accelerator.end_training()
        session.writer.write("end")

    def _memory(self, ranks: list[dict[str, int]]) -> dict[str, Any]:
        session = self.session
        device, budget = session.accelerator.device.type, session.data_budget
        measured = max(rank["allocated"] for rank in ranks) or None
        found: dict[str, Any] = {"device": device, "measured_bytes": measured}
        found["what"] = "allocator peak" if device == "cuda" else "live tensor bytes"
        found["reserved_bytes"] = max(rank["reserved"] for rank in ranks) or None
        return found if budget is None else found | compare(budget, measured)


def _shortened(settings: Any) -> dict[str, Any]:
    """Return what a probe leaves out; what decides the speed and the kernels stays."""
    changes = {"logging_steps": 1, "eval_steps": None, "save_steps": None, "save_minutes": None}
    changes |= {"pretrain_steps": 0, "track": "none", "evaluate": "none", "edit_suite": False}
    changes |= {"floors": False, "on_failed_audit": "go_on"}
    frozen = getattr(settings, "freeze_epochs", 0)
    if frozen:  # all parameters learn: the slow steps, and those with the peak
        changes |= {"freeze_epochs": 0, "epochs": max(1, settings.epochs - frozen)}
    known = type(settings).model_fields
    return {name: value for name, value in changes.items() if name in known}


def rate_of(steps: Sequence[dict[str, Any]], *, warm_up: int = WARM_UP) -> dict[str, float]:
    """Return examples and tokens per second over `step` events; the first of them are warm-up.

    Args:
        steps: Events with counts and seconds since the start of training.
        warm_up: Steps that are left out, as long as one more is left.
    """
    kept = list(steps[min(warm_up, max(len(steps) - 2, 0)) :])
    if len(kept) < 2:
        return {}
    first, last = kept[0], kept[-1]
    names = ("examples", "useful_tokens", "padded_tokens", "elapsed_s")
    pairs, useful, padded, seconds = (last[name] - first[name] for name in names)
    if seconds <= 0 or padded <= 0:
        return {}
    each = [two["elapsed_s"] - one["elapsed_s"] for one, two in pairwise(kept)]
    return {
        "pairs_per_s": pairs / seconds,
        "useful_tokens_per_s": useful / seconds,
        "padded_tokens_per_s": padded / seconds,
        "useful_share": useful / padded,
        "step_s": float(np.median(each)),
    }
