"""Promise: the training loop counts, schedules, stops and refuses as it says."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nbhelpers.errors import NonFinite, Stopped
from nbhelpers.jobs import loop
from nbhelpers.jobs.loop import Hooks, PlainTask, Trainer, TrainState
from nbhelpers.jobs.schedule import epoch_windows, learning_rate_at, micro_batches
from nbhelpers.plan import split_batch

SETTINGS = {
    "seed": 1,
    "epochs": 2,
    "global_batch_size": 4,
    "learning_rate": 0.1,
    "lr_schedule": "linear",
    "warmup_ratio": 0.25,
    "max_grad_norm": 1.0,
    "max_skipped_steps": 3,
    "logging_steps": 1,
    "eval_steps": None,
    "save_steps": None,
}


class Line(PlainTask):
    """Fits y = w x to ten points; row 7 can be poisoned."""

    def __init__(self, poison: float | None = None, f1: tuple[float, ...] = (0.5, 0.4)) -> None:
        self.settings = SimpleNamespace(**SETTINGS)
        self.costs = np.arange(10) + 1
        self.values = torch.arange(10, dtype=torch.float32) / 10
        if poison is not None:
            self.values[7] = poison
        self.f1, self.evaluated = list(f1), []

    def batch(self, rows: np.ndarray) -> Any:
        return SimpleNamespace(rows=rows, useful_tokens=len(rows), padded_tokens=2 * len(rows))

    def loss_sum(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.values[batch.rows].unsqueeze(1)
        loss = ((model(x) - 3 * x) ** 2).sum()
        return loss, loss.detach()[None]

    def evaluate(self, step: int) -> dict[str, float]:
        self.evaluated.append(step)
        return {"f1": self.f1[(len(self.evaluated) - 1) % len(self.f1)]}

    def describe(self, rows: np.ndarray) -> str:
        return f"rows {sorted(rows.tolist())}"


class Accelerator:
    """One process, as the loop sees it."""

    process_index, is_main_process = 0, True
    reductions, scaler = 0, None

    def __init__(self, mixed_precision: str = "no") -> None:
        self.mixed_precision = mixed_precision

    def no_sync(self, model: Any) -> Any:
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip_grad_norm_(self, parameters: Any, limit: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    def reduce(self, tensor: torch.Tensor, how: str) -> torch.Tensor:
        self.reductions += 1
        return tensor


def make(task: Line, *, stop_at: int | None = None, precision: str = "no", **changes: Any) -> Any:
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    events: list[tuple[str, dict[str, Any]]] = []
    saved: list[tuple[int, bool]] = []

    def stop() -> bool:
        done = [fields["step"] for kind, fields in events if kind == "step"]
        return stop_at is not None and len(done) >= stop_at - 1

    hooks = Hooks(
        emit=lambda kind, **fields: events.append((kind, fields)),
        save=lambda state, is_best: saved.append((state.step, is_best)),
        wants_stop=stop,
        save_is_due=lambda: False,
        peak_bytes=lambda: 0,
        step_context=lambda step: nullcontext(),
    )
    trainer = Trainer(
        task=task,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        accelerator=Accelerator(precision),
        settings=SimpleNamespace(**SETTINGS | changes),
        plan=split_batch(4, 2, 1),
        hooks=hooks,
    )
    return trainer, events, saved


def test_ten_examples_in_batches_of_four_make_three_steps_an_epoch():
    trainer, events, _ = make(Line())
    state = trainer.fit(TrainState())
    assert (state.step, state.epoch, state.window, state.examples) == (6, 2, 0, 20)
    assert (state.useful_tokens, state.padded_tokens) == (20, 40)
    assert [f["step"] for k, f in events if k == "step"] == [1, 2, 3, 4, 5, 6]
    assert trainer.model.weight.item() > 0.1


def test_the_best_checkpoint_is_the_first_of_the_highest_f1():
    task = Line(f1=(0.5, 0.7))
    trainer, _, saved = make(task, epochs=4)
    state = trainer.fit(TrainState())
    assert task.evaluated == [3, 6, 9, 12]
    assert saved == [(3, True), (6, True), (12, False)]
    assert (state.best_score, state.best_step) == (0.7, 6)


def test_a_task_that_does_not_select_keeps_its_last_weights():
    task = Line(f1=(0.5, 0.4))
    task.selects_by = None
    trainer, events, saved = make(task, save_steps=2)
    state = trainer.fit(TrainState())
    assert saved == [(2, True), (4, True), (6, True)]
    assert state.best_step == -1 and [line["f1"] for line in state.evals] == [0.5, 0.4]
    assert [fields["scores"]["f1"] for kind, fields in events if kind == "eval"] == [0.5, 0.4]


def test_without_validation_rows_there_is_no_evaluation():
    task = Line()
    task.selects_by, task.evaluate = None, lambda step: {}
    trainer, events, saved = make(task)
    state = trainer.fit(TrainState())
    assert saved == [(6, True)] and state.evals == []
    assert not [kind for kind, _ in events if kind == "eval"]


def test_loss_and_gradient_are_means_over_the_weight_of_the_global_batch():
    plain, light = Line(), Line()
    light.total_weight = lambda batch_rows: 10 * len(batch_rows)
    (one, first, _), (two, second, _) = (make(task, epochs=1) for task in (plain, light))
    one.fit(TrainState())
    two.fit(TrainState())
    a, b = (next(f for kind, f in found if kind == "step") for found in (first, second))
    assert b["loss"] == pytest.approx(a["loss"] / 10)
    assert b["grad_norm"] == pytest.approx(a["grad_norm"] / 10)


def test_ranks_speak_once_in_each_optimizer_step():
    trainer, _, _ = make(Line())
    assert trainer.fit(TrainState()).step == trainer.accelerator.reductions == 6


def test_evaluation_and_saving_count_optimizer_steps_not_micro_steps():
    task = Line()
    trainer, _, saved = make(task, eval_steps=4, save_steps=2)
    trainer.fit(TrainState())
    assert task.evaluated == [4, 6]
    assert [step for step, _ in saved] == [2, 4, 6]


def test_steps_that_are_named_are_all_that_is_made():
    task = Line()
    trainer, events, saved = make(task, save_steps=1)
    state = trainer.fit(TrainState(), only=[np.array([7, 8]), np.array([1]), np.array([2])])
    assert [f["examples"] for k, f in events if k == "step"] == [2, 3, 4]
    assert (state.step, task.evaluated, saved) == (3, [], [])
    trainer, _, saved = make(task, stop_at=2)
    with pytest.raises(Stopped):
        trainer.fit(TrainState(), only=[np.array([7, 8])] * 3)
    assert saved == []


def test_training_is_with_dropout_whatever_mode_the_model_came_in():
    trainer, _, _ = make(Line())
    trainer.model.eval()
    trainer.fit(TrainState())
    assert trainer.model.training


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_a_value_that_is_not_finite_stops_with_the_step_and_the_row(poison: float):
    trainer, _, saved = make(Line(poison))
    with pytest.raises(NonFinite, match=r"optimizer step [123] \(epoch 1\)") as error:
        trainer.fit(TrainState())
    assert "7" in error.value.details and "rows" in error.value.details
    assert not saved and torch.isfinite(trainer.model.weight).all()


class Ahead(Line):
    """Says which rows were made ahead, and which were asked for."""

    def __init__(self, poison: float | None = None) -> None:
        super().__init__(poison)
        self.ahead: list[list[int]] = []
        self.batches: list[list[int]] = []

    def prepare(self, rows: np.ndarray) -> None:
        self.ahead.append(rows.tolist())

    def batch(self, rows: np.ndarray) -> Any:
        self.batches.append(rows.tolist())
        return super().batch(rows)


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_update_that_does_not_wait_for_the_norm_is_the_same(is_fused: bool):
    """A fused optimizer leaves out by itself what is not finite; the host makes the next batch."""
    weights = []
    for fused in (False, is_fused):
        task = Ahead()
        trainer, _, _ = make(task, epochs=2)
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.1, fused=fused)
        trainer.fit(TrainState())
        weights.append(trainer.model.weight.detach().clone())
    torch.testing.assert_close(*weights, rtol=1e-6, atol=0.0)
    assert weights[0] != 0
    firsts = [task.batches[at] for at in (2, 4, 7, 9)]  # of all steps but the first of an epoch
    assert task.ahead == (firsts if is_fused else [])
    trainer, _, _ = make(Ahead(float("inf")))
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.1, fused=is_fused)
    with pytest.raises(NonFinite):
        trainer.fit(TrainState())
    assert torch.isfinite(trainer.model.weight).all()


def fused(trainer: Any, *, is_fused: bool = True) -> Any:
    """Return a trainer whose updates wait for no norm, or one that is like it in all else."""
    parameters = trainer.model.parameters()
    trainer.optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=is_fused)
    return trainer


@pytest.mark.parametrize("counts", [{}, {"eval_steps": 2}, {"save_steps": 3, "logging_steps": 2}])
def test_steps_that_are_read_late_are_told_saved_and_scored_as_others(counts: dict[str, int]):
    """Also their counts, rates and the weights that are scored and saved."""
    found = []
    for is_fused in (False, True):
        task = Line()
        trainer, events, saved = make(task, epochs=3, **counts)
        weights, evaluate, save = [], task.evaluate, trainer.hooks.save

        def seen(call: Any, trainer: Any = trainer, weights: Any = weights) -> Any:
            def act(*given: Any, **named: Any) -> Any:
                weights.append(round(trainer.model.weight.item(), 6))
                return call(*given, **named)

            return act

        task.evaluate, trainer.hooks.save = seen(evaluate), seen(save)
        state = fused(trainer, is_fused=is_fused).fit(TrainState())
        told = [{k: v for k, v in f.items() if k not in UNEQUAL} for _, f in events]
        found.append((told, saved, weights, state.step, state.examples, state.useful_tokens))
    (told, *others), (late, *late_others) = found
    assert others == late_others
    assert [line.keys() for line in told] == [line.keys() for line in late]
    for one, other in zip(told, late, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


UNEQUAL = ("elapsed_s", "useful_tokens_per_s", "scores", "split")


def test_the_next_step_is_launched_before_one_is_read(monkeypatch: pytest.MonkeyPatch):
    order: list[Any] = []
    real = loop.Launched.totals

    def totals(self: Any) -> Any:
        if self._totals is None:
            order.append(("read", self.rows.tolist()))
        return real(self)

    monkeypatch.setattr(loop.Launched, "totals", totals)
    trainer, _, _ = make(Line(), epochs=1)
    update = trainer.accelerator.clip_grad_norm_
    steps = iter([rows.tolist() for rows in trainer.task.global_batches(0)])

    def launched(*given: Any) -> torch.Tensor:
        order.append(("launched", next(steps)))
        return update(*given)

    trainer.accelerator.clip_grad_norm_ = launched
    fused(trainer).fit(TrainState())
    first, second, third = (rows.tolist() for rows in trainer.task.global_batches(0))
    assert order == [
        *(("launched", first), ("launched", second), ("read", first)),
        *(("launched", third), ("read", second), ("read", third)),
    ]


def test_a_stop_that_is_read_late_saves_the_step_after_and_goes_on_from_there():
    whole, _, _ = make(Line(), epochs=3)
    fused(whole).fit(TrainState())
    first, _, saved = make(Line(), stop_at=1, epochs=3)
    state = TrainState()
    with pytest.raises(Stopped, match="step 2 of 9"):
        fused(first).fit(state)
    assert (
        saved == [(2, False)]
        and state.step == 2 == first.optimizer.state[first.model.weight]["step"]
    )
    second, _, _ = make(Line(), epochs=3)
    fused(second)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert second.fit(state).step == 9
    torch.testing.assert_close(second.model.weight, whole.model.weight)


@pytest.mark.parametrize("flag", ["wants_stop", "save_is_due"])
def test_what_a_step_that_is_read_late_asks_for_is_done_though_the_next_does_not(flag: str):
    trainer, _, saved = make(Line(), epochs=3)
    asked = iter([True, *[False] * 8])
    setattr(trainer.hooks, flag, lambda: next(asked))
    with pytest.raises(Stopped) if flag == "wants_stop" else nullcontext():
        fused(trainer).fit(TrainState())
    assert saved[0] == (2, False)


def test_the_start_of_an_epoch_is_no_time_of_training():
    task = Line()
    task.start_epoch = lambda epoch: time.sleep(0.5) or False
    trainer, _, _ = make(task)
    assert trainer.fit(TrainState()).train_s < 0.5


def test_fp16_skips_a_few_steps_and_then_says_so():
    trainer, _, _ = make(Line(float("inf")), precision="fp16", max_skipped_steps=1, epochs=9)
    state = TrainState()
    with pytest.raises(NonFinite, match="2 steps in a row"):
        trainer.fit(state)
    assert state.skipped_steps == 2


def test_a_stop_saves_first_and_goes_on_from_there():
    whole, _, _ = make(Line())
    whole.fit(TrainState())
    first, _, saved = make(Line(), stop_at=2)
    state = TrainState()
    with pytest.raises(Stopped, match="step 2 of 6"):
        first.fit(state)
    assert saved[-1][0] == 2
    second, _, _ = make(Line())
    second.model.load_state_dict(first.model.state_dict())
    assert second.fit(state).step == 6
    assert torch.equal(second.model.weight, whole.model.weight)


@pytest.mark.parametrize("examples", [1, 3, 4, 63, 64, 65, 130])
@pytest.mark.parametrize(("world", "per_device"), [(1, 64), (1, 16), (2, 16), (3, 16), (4, 7)])
def test_every_example_is_used_once_an_epoch_however_it_is_split(examples, world, per_device):
    costs = np.random.default_rng(0).integers(5, 500, examples)
    for window in epoch_windows(examples, 64, seed=0, epoch=1):
        by_rank = [
            micro_batches(window, costs, rank=r, world_size=world, per_device=per_device)
            for r in range(world)
        ]
        assert len({len(parts) for parts in by_rank}) == 1  # collectives match
        rows = np.concatenate([part for parts in by_rank for part in parts])
        assert sorted(rows.tolist()) == sorted(window.tolist())
        assert max(len(part) for parts in by_rank for part in parts) <= per_device


def test_the_order_changes_with_epoch_and_seed_and_not_with_the_split():
    first = np.concatenate(epoch_windows(50, 8, seed=0, epoch=0))
    assert not np.array_equal(first, np.concatenate(epoch_windows(50, 8, seed=0, epoch=1)))
    assert not np.array_equal(first, np.concatenate(epoch_windows(50, 8, seed=1, epoch=0)))
    assert np.array_equal(first, np.concatenate(epoch_windows(50, 8, seed=0, epoch=0)))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_the_learning_rate_peaks_after_warm_up_and_stays_positive(schedule: str, warmup: float):
    rates = [
        learning_rate_at(i, 20, peak=1.0, warmup_ratio=warmup, schedule=schedule) for i in range(20)
    ]
    assert max(rates) == pytest.approx(1.0) and min(rates) > 0
    assert rates.index(max(rates)) == max(0, int(warmup * 20) - 1)
    if schedule != "constant":
        assert rates[-1] < 0.2
