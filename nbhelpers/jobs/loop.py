"""The one training loop of all jobs.

fetch, forward, scale, backward, clip, step, emit: each optimizer step sees exactly the rows of
one global batch, its loss is the mean over these rows (or their tokens) whatever the split, and
randomness is seeded anew from (seed, epoch, step of the epoch, micro-step, rank), so that a resumed
run repeats an uninterrupted one bit by bit. The host waits for the device once a step; for a GPU
that leaves out by itself what is not finite, when the next step is on its way (`Launched`).
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

from nbhelpers.errors import NonFinite, Stopped
from nbhelpers.jobs.measure_phases import PhaseTimer
from nbhelpers.jobs.schedule import epoch_windows, learning_rate_at, micro_batches
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.schema import Settings


class Task(Protocol):
    """What the loop needs to know of a job."""

    costs: np.ndarray  # (rows,) tokens of each row that a global batch may name
    examples: int  # training examples of an epoch
    selects_by: str | None  # the validation score whose highest is the best checkpoint; None: last
    loss_names: tuple[str, ...]  # of the components that are reported beside the loss
    first_full_step: int  # from here on all parameters learn: memory peaks there
    warmup_steps: int | None  # optimizer steps of the warm-up; None: by the settings' warmup_ratio
    averages_gradients: bool  # over ranks, in `backward`: the model is not wrapped by DDP

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step of an epoch."""

    def total_weight(self, batch_rows: np.ndarray) -> int:
        """Return what the summed loss of a global batch is divided by: its rows, or its tokens."""

    def start_epoch(self, epoch: int) -> bool:
        """Prepare the epoch; True: other parameters learn than before."""

    def start_step(
        self, batch_rows: np.ndarray, micro_batches: list[np.ndarray], seed: Callable[[int], None]
    ) -> None:
        """See the rows of an optimizer step, and those of this rank's micro-batches.

        `seed`, called with the number of a micro-step, makes its randomness what it will be.
        """

    def batch(self, rows: np.ndarray) -> Any:
        """Return a micro-batch on the device; no rows: one stand-in row of weight 0."""

    def loss_sum(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is differentiated, and (1 + components,) the summed loss and components."""

    def backward(self, trainer: Trainer, batch: Any, factor: float, is_last: bool) -> torch.Tensor:
        """Add the gradients of `factor` times the loss; return (1 + components,) as `loss_sum`.

        On the last micro-step of an optimizer step they are averaged over ranks.
        """

    def prepare(self, rows: np.ndarray) -> None:
        """Make a micro-batch on the host that `batch` will be asked for next."""

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the validation scores, the same on every rank; none without validation rows."""

    def describe(self, rows: np.ndarray) -> str:
        """Name training rows so that a person finds them in the data."""


class PlainTask:
    """What most tasks have in common: rows in random order, one loss, all parameters learn."""

    settings: Settings
    costs: np.ndarray
    selects_by: str | None = "f1"
    loss_names: tuple[str, ...] = ()
    first_full_step = 0
    warmup_steps: int | None = None
    averages_gradients = False

    @property
    def examples(self) -> int:
        """Training examples of an epoch."""
        return len(self.costs)

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step: a permutation of all, cut."""
        s = self.settings
        return epoch_windows(self.examples, s.global_batch_size, seed=s.seed, epoch=epoch)

    def total_weight(self, batch_rows: np.ndarray) -> int:
        """Return the rows: each weighs the same."""
        return len(batch_rows)

    def start_epoch(self, epoch: int) -> bool:
        """Nothing changes between epochs."""
        return False

    def start_step(
        self, batch_rows: np.ndarray, micro_batches: list[np.ndarray], seed: Callable[[int], None]
    ) -> None:
        """Each micro-batch has a loss of its own."""

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing is made ahead."""

    def backward(self, trainer: Trainer, batch: Any, factor: float, is_last: bool) -> torch.Tensor:
        """Differentiate the loss through the model; DDP averages on the last micro-step."""
        accelerator, mark = trainer.accelerator, trainer.hooks.phases.mark
        with nullcontext() if is_last else accelerator.no_sync(trainer.model):
            loss, reported = self.loss_sum(trainer.model, batch)
            mark("forward")
            accelerator.backward(loss * factor)
            mark("backward")
        return reported.detach()


def listed(what: str, names: list[str], total: int) -> str:
    """Return some names of a total in a sentence.

    >>> listed("train pairs", ["1", "2"], 5)
    'train pairs 1, 2 and 3 more'
    """
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"{what} {', '.join(names)}{more}"


@dataclass(slots=True)
class TrainState:
    """Where training stands; what a checkpoint holds besides tensors."""

    epoch: int = 0
    window: int = 0  # optimizer steps of this epoch; checkpoints know it by this name
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

    def counts(self) -> dict[str, Any]:
        """Return what each `step` event tells of the work so far."""
        return {
            "step": self.step,
            "examples": self.examples,
            "useful_tokens": self.useful_tokens,
            "padded_tokens": self.padded_tokens,
            "elapsed_s": self.train_s,
            "useful_tokens_per_s": self.useful_tokens / max(self.train_s, 1e-9),
            "skipped_steps": self.skipped_steps,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainState:
        """Rebuild what `to_dict` gave."""
        return cls(**values)


@dataclass(slots=True, kw_only=True)
class MicroSteps:
    """What this rank's micro-steps of one optimizer step left behind."""

    rows: list[np.ndarray]  # of each micro-batch
    losses: list[torch.Tensor] = field(default_factory=list)  # (1 + components,) of each, summed
    useful_tokens: int = 0
    padded_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One optimizer step over all ranks, on the host."""

    losses: list[float]  # the summed loss and its components
    norm: float  # of the gradients before they were clipped
    useful_tokens: int
    padded_tokens: int
    stop: bool  # some rank was asked to stop
    due: bool  # rank 0 wants a checkpoint by its clock


@dataclass(slots=True, kw_only=True)
class Launched:
    """An optimizer step that the GPU computes, or has computed.

    `numbers` are the loss and its components, useful and padded tokens, whether to stop, whether a
    checkpoint is due, and the norm. `is_ahead`: its update did not wait for them. `may_wait`: nor
    need the next step.
    """

    rows: np.ndarray
    micro: MicroSteps
    numbers: torch.Tensor
    learning_rate: float
    is_ahead: bool
    may_wait: bool
    _copied: Any = None  # an event
    _totals: Totals | None = None

    def begin_copy(self) -> None:
        """Have a GPU bring the numbers to the host when it is there."""
        if self.numbers.device.type == "cuda":
            host = torch.empty(self.numbers.shape, dtype=self.numbers.dtype, pin_memory=True)
            self.numbers = host.copy_(self.numbers, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def totals(self) -> Totals:
        """Return the numbers: the one place where the host waits for the GPU."""
        if self._totals is None:
            if self._copied is not None:
                self._copied.synchronize()
            *components, useful, padded, stop, due, norm = self.numbers.tolist()
            self._totals = Totals(
                losses=components,
                norm=norm,
                useful_tokens=int(useful),
                padded_tokens=int(padded),
                stop=stop > 0,
                due=due > 0,
            )
        return self._totals


@dataclass(slots=True, kw_only=True)
class Hooks:
    """How the loop speaks to the outside; by default not at all."""

    emit: Callable[..., None] = lambda kind, **fields: None  # event type, fields
    save: Callable[..., None] = lambda state, *, is_best: None
    wants_stop: Callable[[], bool] = lambda: False
    save_is_due: Callable[[], bool] = lambda: False  # asked on rank 0 only: by the clock
    peak_bytes: Callable[[], int] = lambda: 0
    # Around each optimizer step.
    step_context: Callable[[int], AbstractContextManager[Any]] = lambda step: nullcontext()
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
    _learning: list[torch.nn.Parameter] = field(default_factory=list, init=False)
    _since: float = field(default=0.0, init=False)  # the clock when training seconds began to run

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return math.ceil(self.task.examples / self.settings.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.settings.epochs * self.steps_per_epoch

    def fit(self, state: TrainState, *, only: list[np.ndarray] | None = None) -> TrainState:
        """Train from `state` to the end, evaluating and saving on the way.

        Args:
            only: Make the optimizer steps of these rows in one epoch and end; nothing is evaluated
                or saved.

        Raises:
            NonFinite: A loss or gradient is not finite; names the step and the rows.
            Stopped: A stop was asked for; a checkpoint was written first.
        """
        s, waiting = self.settings, None
        self.model.train()  # `from_pretrained` returns models without dropout
        while state.epoch < s.epochs:
            if self.task.start_epoch(state.epoch) and self.hooks.rewrap is not None:
                self.model = self.hooks.rewrap()
            self._learning = [p for p in self.model.parameters() if p.requires_grad]
            coming = self.task.global_batches(state.epoch)[state.window :] if only is None else only
            self._since = time.perf_counter()
            for batch_rows, following in zip(coming, [*coming[1:], None], strict=True):
                launched = self._launch(state, batch_rows, following, late=waiting is not None)
                said = self._finish(state, waiting, is_newest=False) if waiting else None
                waiting = launched
                stop, due = (said.stop, said.due) if said else (False, False)
                if launched.may_wait and not (stop or due):
                    continue  # the host reads this step when the GPU has the next one to do
                totals, waiting = self._finish(state, launched, is_newest=True), None
                if only is None:
                    self._after_step(state, stop=stop or totals.stop, due=due or totals.due)
                    self._since = time.perf_counter()
                elif stop or totals.stop:
                    raise Stopped("Stopped on request.", fix="start it again")
            if only is not None:
                break
        return state

    def _launch(
        self,
        state: TrainState,
        batch_rows: np.ndarray,
        following: np.ndarray | None,
        *,
        late: bool,
    ) -> Launched:
        """Have the GPU compute an optimizer step; a CPU, and fp16, read its numbers first.

        Args:
            following: The rows of the next step of the epoch.
            late: `state` does not count the step before this one yet.
        """
        step = state.step + late
        self.hooks.phases.start(step)
        self._set_learning_rate(step)
        with self.hooks.step_context(step):
            micro = self._backward(batch_rows, state, late=late)
            norm = self.accelerator.clip_grad_norm_(self._learning, self.settings.max_grad_norm)
            is_ahead = self._skips_on_device(norm)
            if is_ahead:
                self._update()
                if following is not None:
                    self.task.prepare(self._micro_batches(following)[0])
            launched = Launched(
                rows=batch_rows,
                micro=micro,
                numbers=self._agree(micro, norm),
                learning_rate=self.optimizer.param_groups[0]["lr"],
                is_ahead=is_ahead,
                may_wait=is_ahead and following is not None and not self._is_due(step + 1),
            )
            if launched.may_wait:
                launched.begin_copy()
            elif not is_ahead:
                self._check_finite(state, launched)
                self._update()
        return launched

    def _finish(self, state: TrainState, launched: Launched, *, is_newest: bool) -> Totals:
        """Count an optimizer step whose numbers the host reads now, and tell of it."""
        totals = launched.totals()
        if launched.is_ahead:
            self._check_finite(state, launched)
        now = time.perf_counter()
        state.train_s, self._since = state.train_s + now - self._since, now
        self._advance(state, launched.rows, totals, is_newest=is_newest)
        self._emit_step(state, launched)
        return totals

    def _is_due(self, step: int) -> bool:
        """Whether validation or a checkpoint comes after this many optimizer steps, by count."""
        counts = self.settings.eval_steps, self.settings.save_steps
        return any(count and step % count == 0 for count in counts)

    def _skips_on_device(self, norm: torch.Tensor) -> bool:
        """Have the GPU leave out an update whose gradients are not finite; False: it cannot.

        Then the update need not wait until the host has read the norm, nor need the next step.
        """
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        fused = optimizer.param_groups[0].get("fused")
        if not fused or self.accelerator.scaler is not None:  # a scaler skips by itself
            return False
        optimizer.found_inf = (~torch.isfinite(norm)).float()
        return True

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.hooks.phases.mark("optimizer")

    def _micro_batches(self, batch_rows: np.ndarray) -> list[np.ndarray]:
        """Return this rank's rows of each micro-step of a global batch."""
        return micro_batches(
            batch_rows,
            self.task.costs,
            rank=self.accelerator.process_index,
            world_size=self.plan.world_size,
            per_device=self.plan.per_device_train_batch_size,
        )

    def _backward(
        self, batch_rows: np.ndarray, state: TrainState, *, late: bool = False
    ) -> MicroSteps:
        """Run the micro-steps of a global batch; gradients meet over ranks on the last one."""
        rank, world = self.accelerator.process_index, self.plan.world_size
        micro = MicroSteps(rows=self._micro_batches(batch_rows))

        def seed(micro_step: int) -> None:
            seed_everything(self.settings.seed, state.epoch, state.window + late, micro_step, rank)

        mark, weight = self.hooks.phases.mark, self.task.total_weight(batch_rows)
        self.task.start_step(batch_rows, micro.rows, seed)
        mark("forward")  # of losses that need the whole global batch before its micro-steps
        for micro_step, rows in enumerate(micro.rows):
            seed(micro_step)
            batch = self.task.batch(rows)
            mark("data")
            is_last = micro_step == len(micro.rows) - 1
            # Averaged over ranks: times world, over the whole global batch, is the mean.
            reported = self.task.backward(self, batch, world / weight, is_last)
            micro.losses.append(reported)
            micro.useful_tokens += batch.useful_tokens
            micro.padded_tokens += batch.padded_tokens
        return micro

    def _set_learning_rate(self, step: int) -> None:
        s = self.settings
        for group in self.optimizer.param_groups:
            first = group.get("first_step", 0)  # a part that learns later has a schedule of its own
            group["lr"] = learning_rate_at(
                max(0, step - first),
                self.total_steps - first,
                peak=group.get("peak", s.learning_rate),
                warmup_ratio=s.warmup_ratio,
                warmup_steps=self.task.warmup_steps,
                schedule=s.lr_schedule,
            )

    def _agree(self, micro: MicroSteps, norm: torch.Tensor) -> torch.Tensor:
        """Return the sums over ranks and the norm, by one small all-reduce; see `Totals`."""
        due = self.accelerator.is_main_process and self.hooks.save_is_due()
        own = [micro.useful_tokens, micro.padded_tokens, self.hooks.wants_stop(), due]
        losses = torch.stack(micro.losses).sum(0).double()
        counts = torch.tensor(own, dtype=torch.float64)
        if losses.device.type == "cuda":
            counts = counts.pin_memory().to(losses.device, non_blocking=True)
        sums = self.accelerator.reduce(torch.cat([losses, counts]), "sum")
        # The norm is of the averaged gradients: the same on every rank.
        return torch.cat([sums, norm.detach().double().reshape(1)])

    def _check_finite(self, state: TrainState, launched: Launched) -> None:
        """Stop at numbers that are not finite, unless the gradient scaler skips such a step."""
        totals, micro = launched.totals(), launched.micro
        loss, norm = totals.losses[0], totals.norm
        fp16 = self.accelerator.mixed_precision == "fp16"
        most = self.settings.max_skipped_steps if fp16 else 0
        step = f"{state.step + 1} (epoch {state.epoch + 1})"
        problem = not_finite(state, loss, norm, step=step, most=most)
        if not problem:
            return
        pairs = zip(micro.rows, micro.losses, strict=True)
        bad = [rows for rows, losses in pairs if not math.isfinite(float(losses[0]))]
        rows = np.concatenate(bad) if bad else launched.rows
        raise NonFinite(
            problem,
            fix="lower learning_rate or raise warmup_ratio; with precision fp16 try bf16 or fp32; "
            "look at the rows below. The last checkpoint is from before this step",
            details=f"In the {'micro-batch' if bad else 'batch'}: {self.task.describe(rows)}",
        )

    def _advance(
        self, state: TrainState, batch_rows: np.ndarray, totals: Totals, *, is_newest: bool
    ) -> None:
        state.step += 1
        state.window += 1
        state.examples += len(batch_rows)
        state.useful_tokens += totals.useful_tokens
        state.padded_tokens += totals.padded_tokens
        phases = self.hooks.phases
        state.phases = (phases.add_to if is_newest else phases.add_earlier_to)(state.phases)
        if state.window == self.steps_per_epoch:
            state.epoch, state.window = state.epoch + 1, 0

    def _emit_step(self, state: TrainState, launched: Launched) -> None:
        if state.step % self.settings.logging_steps and state.step not in (1, self.total_steps):
            return
        totals, rate = launched.totals(), launched.learning_rate
        weight = self.task.total_weight(launched.rows)
        loss, *components = (total / weight for total in totals.losses)
        named = dict(zip(self.task.loss_names, components, strict=True))
        line = {"step": state.step, "loss": loss, "learning_rate": rate, "grad_norm": totals.norm}
        state.history.append(line | named)
        self.hooks.emit(
            "step",
            total_steps=self.total_steps,
            epoch=state.epoch + state.window / self.steps_per_epoch,
            memory_bytes=self.hooks.peak_bytes(),
            **state.counts() | line | named,
        )

    def _after_step(self, state: TrainState, *, stop: bool, due: bool) -> None:
        s, done = self.settings, state.step == self.total_steps
        by_step = s.eval_steps and state.step % s.eval_steps == 0
        by_epoch = not s.eval_steps and state.window == 0
        is_better = False
        if by_step or by_epoch or done:
            is_better = self._evaluate(state)
        by_count = s.save_steps and state.step % s.save_steps == 0
        if due or done or is_better or stop or by_count:
            self.hooks.save(state, is_best=is_better or self.task.selects_by is None)
        if stop and not done:
            raise Stopped(
                f"Stopped on request after optimizer step {state.step} of {self.total_steps}.",
                fix="run the same launch again: it goes on from the checkpoint",
            )

    def _evaluate(self, state: TrainState) -> bool:
        """Score the validation rows; return whether these weights are the best so far."""
        started = time.perf_counter()
        with self.hooks.phases.memory.evaluation():
            scores = self.task.evaluate(state.step)
        took_s = time.perf_counter() - started
        state.phases["evaluate"] = state.phases.get("evaluate", 0.0) + took_s
        if not scores:
            return False
        state.evals.append({"step": state.step, **scores})
        self.hooks.emit("eval", step=state.step, split="valid", scores=scores)
        if self.task.selects_by is None:
            return False
        score = scores[self.task.selects_by]
        is_better = score > state.best_score
        if is_better:
            state.best_score, state.best_step = score, state.step
        return is_better


def not_finite(state: TrainState, loss: float, norm: float, *, step: str, most: int) -> str:
    """Return what is not finite of a step; nothing where all is, or the step may be skipped.

    Args:
        step: What the step is called.
        most: Steps in a row that fp16's gradient scaler may skip, lowering its scale.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        state.skipped_in_a_row = 0
        return ""
    state.skipped_steps += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row <= most:
        return ""
    what = "loss" if not math.isfinite(loss) else "gradient"
    repeated = f" for {state.skipped_in_a_row} steps in a row" if most else ""
    figures = f"loss {loss}, gradient norm {norm}"
    return f"The {what} of optimizer step {step} is not finite{repeated}: {figures}."


def seed_everything(*parts: int) -> None:
    """Seed torch (CPU and GPUs) from a tuple of numbers."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1))
