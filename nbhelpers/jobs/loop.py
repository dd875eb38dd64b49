"""The one training loop of the detector and clone jobs.

fetch, forward, scale, backward, clip, step, emit: each optimizer step sees exactly the rows of
one window, its loss is the mean over these rows whatever the split, and randomness is seeded anew
from (seed, epoch, window, micro-step, rank), so that a resumed run repeats an uninterrupted one
bit by bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from nbhelpers.batching import BatchPlan
from nbhelpers.errors import NonFinite, Stopped
from nbhelpers.jobs.measure_phases import PhaseTimer
from nbhelpers.jobs.schedule import epoch_windows, learning_rate_at, micro_batches
from nbhelpers.schema import Settings


class Task(Protocol):
    """What the loop needs to know of a job."""

    costs: np.ndarray  # (rows,) tokens of each row that a window may name
    examples: int  # training examples of an epoch
    selects_by: str  # the validation score that picks the best checkpoint: the highest
    loss_names: tuple[str, ...]  # of the parts that are told beside the loss
    first_full_step: int  # from here on all parameters learn: memory peaks there

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step of an epoch."""

    def start_epoch(self, epoch: int) -> bool:
        """Prepare the epoch; True: other parameters learn than before."""

    def start_window(
        self, window: np.ndarray, parts: list[np.ndarray], seed: Callable[[int], None]
    ) -> None:
        """See the rows of an optimizer step, and this rank's micro-batches of it.

        `seed`, called with the number of a micro-step, makes its randomness what it will be.
        """

    def batch(self, rows: np.ndarray) -> Any:
        """Return a micro-batch on the device; no rows: one stand-in row of weight 0."""

    def loss_sum(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is differentiated, and (1 + parts,) the summed loss and its parts."""

    def after_step(self, *, is_skipped: bool) -> None:
        """See the model after an optimizer step."""

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the validation scores, the same on every rank."""

    def describe(self, rows: np.ndarray) -> str:
        """Name training rows so that a person finds them in the data."""


class PlainTask:
    """What most tasks have in common: rows in random order, one loss, all parameters learn."""

    settings: Settings
    costs: np.ndarray
    selects_by = "f1"
    loss_names: tuple[str, ...] = ()
    first_full_step = 0

    @property
    def examples(self) -> int:
        """Training examples of an epoch."""
        return len(self.costs)

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step: a permutation of all, cut."""
        s = self.settings
        return epoch_windows(self.examples, s.global_batch_size, seed=s.seed, epoch=epoch)

    def start_epoch(self, epoch: int) -> bool:
        """Nothing changes between epochs."""
        return False

    def start_window(
        self, window: np.ndarray, parts: list[np.ndarray], seed: Callable[[int], None]
    ) -> None:
        """Each micro-batch has a loss of its own."""

    def after_step(self, *, is_skipped: bool) -> None:
        """Nothing to look at."""


@dataclass(slots=True)
class TrainState:
    """Where training stands; what a checkpoint holds besides tensors."""

    epoch: int = 0
    window: int = 0
    step: int = 0
    examples: int = 0
    useful_tokens: int = 0
    padded_tokens: int = 0
    train_s: float = 0.0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    best_score: float = -1.0
    best_step: int = -1
    history: list[dict[str, float]] = field(default_factory=list)
    evals: list[dict[str, float]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)  # seconds of data, forward, ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainState:
        """Rebuild what `to_dict` gave; checkpoints once called the best score an F1."""
        old = {"best_score": values["best_f1"]} if "best_f1" in values else {}
        return cls(**{k: v for k, v in values.items() if k != "best_f1"} | old)


@dataclass(slots=True, kw_only=True)
class Hooks:
    """How the loop speaks to the outside."""

    emit: Callable[..., None]  # event type, fields
    save: Callable[..., None]  # state, is_best
    wants_stop: Callable[[], bool]
    save_is_due: Callable[[], bool]  # asked on rank 0 only: by the clock
    peak_bytes: Callable[[], int]
    step_context: Callable[[int], AbstractContextManager[Any]]  # around each optimizer step
    phases: PhaseTimer = field(default_factory=PhaseTimer)
    rewrap: Callable[[], Any] | None = None  # wraps the model anew when other parameters learn


@dataclass(slots=True, kw_only=True)
class Trainer:
    """The parts of one training run."""

    task: Task
    model: Any
    optimizer: torch.optim.Optimizer
    accelerator: Any
    settings: Settings
    plan: BatchPlan
    hooks: Hooks

    @property
    def windows_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return math.ceil(self.task.examples / self.settings.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.settings.epochs * self.windows_per_epoch

    def fit(self, state: TrainState, *, only: list[np.ndarray] | None = None) -> TrainState:
        """Train from `state` to the end, evaluating and saving on the way.

        Args:
            only: Make these optimizer steps in one epoch and end; nothing is evaluated or saved.

        Raises:
            NonFinite: A loss or gradient is not finite; names the step and the rows.
            Stopped: A stop was asked for; a checkpoint was written first.
        """
        s = self.settings
        self.model.train()  # `from_pretrained` returns models without dropout
        while state.epoch < s.epochs:
            if self.task.start_epoch(state.epoch) and self.hooks.rewrap is not None:
                self.model = self.hooks.rewrap()
            windows = self.task.windows(state.epoch)[state.window :] if only is None else only
            for window in windows:
                started = time.perf_counter()
                self.hooks.phases.start(state.step)
                self._set_learning_rate(state.step)
                with self.hooks.step_context(state.step):
                    losses, tokens, parts = self._backward(window, state)
                    norm = self.accelerator.clip_grad_norm_(
                        self.model.parameters(), self.settings.max_grad_norm
                    )
                    step_loss, tokens, stop, due = self._agree(losses, tokens)
                    ok = self._check_finite(step_loss[0], float(norm), state, window, parts, losses)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.hooks.phases.mark("optimizer")
                self.task.after_step(is_skipped=not ok)
                self._advance(state, window, tokens, time.perf_counter() - started)
                self._emit_step(state, step_loss / len(window), float(norm))
                if only is None:
                    self._after_step(state, stop=stop, due=due)
                elif stop:
                    raise Stopped("Stopped on request.", fix="start it again")
            if only is not None:
                break
        return state

    def _backward(
        self, window: np.ndarray, state: TrainState
    ) -> tuple[list[torch.Tensor], np.ndarray, list[np.ndarray]]:
        """Run the micro-steps of one window; gradients meet over ranks on the last one."""
        rank, world = self.accelerator.process_index, self.plan.world_size
        parts = micro_batches(
            window,
            self.task.costs,
            rank=rank,
            world_size=world,
            per_device=self.plan.per_device_train_batch_size,
        )

        def seed(micro_step: int) -> None:
            seed_everything(self.settings.seed, state.epoch, state.window, micro_step, rank)

        losses, tokens, mark = [], np.zeros(2), self.hooks.phases.mark  # tokens: useful, padded
        self.task.start_window(window, parts, seed)
        mark("forward")  # of losses that need the whole window before its micro-steps
        for micro_step, rows in enumerate(parts):
            seed(micro_step)
            batch = self.task.batch(rows)
            mark("data")
            last = micro_step == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss, told = self.task.loss_sum(self.model, batch)
                mark("forward")
                # DDP averages over ranks: times world, over the whole window, is the mean.
                self.accelerator.backward(loss * (world / len(window)))
                mark("backward")
            losses.append(told.detach())
            tokens += batch.useful_tokens, batch.padded_tokens
        return losses, tokens, parts

    def _set_learning_rate(self, step: int) -> None:
        s = self.settings
        for group in self.optimizer.param_groups:
            first = group.get("first_step", 0)  # a part that learns later has a schedule of its own
            group["lr"] = learning_rate_at(
                max(0, step - first),
                self.total_steps - first,
                peak=group.get("peak", s.learning_rate),
                warmup_ratio=s.warmup_ratio,
                schedule=s.lr_schedule,
            )

    def _agree(
        self, losses: list[torch.Tensor], tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, bool, bool]:
        """Sum over ranks: one small all-reduce, a host-device sync (the norm is another)."""
        main = self.accelerator.is_main_process
        flags = [*tokens, self.hooks.wants_stop(), main and self.hooks.save_is_due()]
        device = losses[0].device
        facts = torch.cat(
            [
                torch.stack(losses).sum(0).double(),
                torch.tensor(flags, dtype=torch.float64).to(device),
            ]
        )
        *told, useful, padded, stop, due = self.accelerator.reduce(facts, "sum").tolist()
        return np.array(told), np.array([useful, padded]), stop > 0, due > 0

    def _check_finite(
        self,
        loss: float,
        norm: float,
        state: TrainState,
        window: np.ndarray,
        parts: list[np.ndarray],
        losses: list[torch.Tensor],
    ) -> bool:
        """Return whether the step may be made; False: the gradient scaler skips it."""
        if math.isfinite(loss) and math.isfinite(norm):
            state.skipped_in_a_row = 0
            return True
        state.skipped_steps += 1
        state.skipped_in_a_row += 1
        fp16 = self.accelerator.mixed_precision == "fp16"
        if fp16 and state.skipped_in_a_row <= self.settings.max_skipped_steps:
            return False  # it lowers its scale too
        bad = [p for p, x in zip(parts, losses, strict=True) if not math.isfinite(float(x[0]))]
        rows = np.concatenate(bad) if bad else window
        what = "loss" if not math.isfinite(loss) else "gradient"
        repeated = f" for {state.skipped_in_a_row} steps in a row" if fp16 else ""
        raise NonFinite(
            f"The {what} of optimizer step {state.step + 1} (epoch {state.epoch + 1}) is not finite"
            f"{repeated}: loss {loss}, gradient norm {norm}.",
            fix="lower learning_rate or raise warmup_ratio; with precision fp16 try bf16 or fp32; "
            "look at the rows below. The last checkpoint is from before this step",
            details=f"In the {'micro-batch' if bad else 'batch'}: {self.task.describe(rows)}",
        )

    def _advance(
        self, state: TrainState, window: np.ndarray, tokens: np.ndarray, took_s: float
    ) -> None:
        state.step += 1
        state.window += 1
        state.examples += len(window)
        state.useful_tokens += int(tokens[0])
        state.padded_tokens += int(tokens[1])
        state.train_s += took_s
        state.phases = self.hooks.phases.add_to(state.phases)
        if state.window == self.windows_per_epoch:
            state.epoch, state.window = state.epoch + 1, 0

    def _emit_step(self, state: TrainState, losses: np.ndarray, norm: float) -> None:
        if state.step % self.settings.logging_steps and state.step not in (1, self.total_steps):
            return
        rate = self.optimizer.param_groups[0]["lr"]
        loss, *rest = losses.tolist()
        parts = dict(zip(self.task.loss_names, rest, strict=True))
        state.history.append({"step": state.step, "loss": loss, "learning_rate": rate} | parts)
        self.hooks.emit(
            "step",
            step=state.step,
            total_steps=self.total_steps,
            epoch=state.epoch + state.window / self.windows_per_epoch,
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            examples=state.examples,
            useful_tokens=state.useful_tokens,
            padded_tokens=state.padded_tokens,
            elapsed_s=state.train_s,
            useful_tokens_per_s=state.useful_tokens / max(state.train_s, 1e-9),
            memory_bytes=self.hooks.peak_bytes(),
            skipped_steps=state.skipped_steps,
            **parts,
        )

    def _after_step(self, state: TrainState, *, stop: bool, due: bool) -> None:
        s, done = self.settings, state.step == self.total_steps
        by_step = s.eval_steps and state.step % s.eval_steps == 0
        by_epoch = not s.eval_steps and state.window == 0
        is_best = False
        if by_step or by_epoch or done:
            started = time.perf_counter()
            with self.hooks.phases.memory.evaluation():
                scores = self.task.evaluate(state.step)
            took_s = time.perf_counter() - started
            state.phases["evaluate"] = state.phases.get("evaluate", 0.0) + took_s
            state.evals.append({"step": state.step, **scores})
            self.hooks.emit("eval", step=state.step, split="valid", scores=scores)
            found = scores[self.task.selects_by]
            is_best = found > state.best_score
            if is_best:
                state.best_score, state.best_step = found, state.step
        save = due or done or is_best or stop or (s.save_steps and state.step % s.save_steps == 0)
        if save:
            self.hooks.save(state, is_best=is_best)
        if stop and not done:
            raise Stopped(
                f"Stopped on request after optimizer step {state.step} of {self.total_steps}.",
                fix="run the same launch again: it goes on from the checkpoint",
            )


def seed_everything(*parts: int) -> None:
    """Seed torch (CPU and GPUs) from a tuple of numbers."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1))
