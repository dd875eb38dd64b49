"""The memory of a run's largest batch, simulated before its model is loaded.

A child process runs one step of that batch on the run's card, without the card, and ends before the
model is there. It is started with the worker, so that its libraries load while data are read.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list

from nbhelpers.budget.formulas import MemoryLine, ledger
from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.budget.shapes import find_shape
from nbhelpers.budget.store import card_name, installed_versions, model_stamp, source_stamp
from nbhelpers.common.child import Child
from nbhelpers.common.files import cached
from nbhelpers.errors import NbhelpersError
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import Forecast, RunContext
from nbhelpers.jobs.loop import Task, TrainState
from nbhelpers.jobs.probe import probed_steps
from nbhelpers.jobs.schedule import micro_batches
from nbhelpers.presets.schema import Settings

LIMIT_S = 10.0  # so long does a run wait for its simulation
TRL_LIMIT_S = 30.0  # of TRL's trainer, another library that the child has to load
Simulate = Callable[..., MemoryBudget | None]  # of shapes, with some settings changed


def make_forecast(context: RunContext, job: Any, inputs: Any, child: Child | None) -> Forecast:
    """Return the forecast of a run whose data are known, on every rank; rank 0 tells it.

    Args:
        job: The job's module; its `forecast` names the shapes of the largest batch.
        child: The process that simulates, on rank 0; rank 0 has the longest rows of every
            micro-batch, so its memory is that of the fullest rank.
    """
    forecast = Forecast()
    if child is not None:
        began = time.monotonic()
        try:
            forecast = job.forecast(context, inputs, partial(_simulate, context, child))
        except Exception as error:  # whatever it is: it stops no run
            why = error.message if isinstance(error, NbhelpersError) else repr(error)
            context.warn(f"The memory of the largest batch is unknown: {why}")
        forecast = replace(forecast, seconds=time.monotonic() - began)
        _tell(context, forecast)
    return of_rank_0(context, forecast)


def _simulate(
    context: RunContext, child: Child, shapes: dict[str, Any], **changes: Any
) -> MemoryBudget | None:
    """Simulate shapes with some settings changed; None: it failed, and a warning says so.

    What this code has simulated here before with these libraries is read from the cache.
    """
    settings = context.settings.model_copy(update=changes)
    request = {
        "preset": replace(context.preset, settings=settings).to_dict(),
        "plan": context.plan.to_dict(),
        "hardware": context.hardware.to_dict(),
        "shapes": shapes,
    }
    sizes = [settings.model_dump(mode="json"), model_stamp(settings.model), request["plan"], shapes]
    place = [card_name(context.hardware.gpu), context.precision, installed_versions()]
    try:
        values = cached(
            "forecasts",
            [json.dumps([*sizes, *place]), source_stamp()],
            lambda: _simulated(child, settings, request),
            load=lambda path: json.loads(path.read_text(encoding="utf-8")),
            save=lambda path, values: path.write_text(json.dumps(values), encoding="utf-8"),
            suffix=".json",
        )
    except NbhelpersError as error:
        context.warn(f"The memory of the largest batch is unknown: {error.message}")
        return None
    return MemoryBudget.from_dict(values)


def _simulated(child: Child, settings: Settings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the budget that the child simulates.

    Raises:
        NbhelpersError: It fails, or takes too long.
    """
    limit_s = LIMIT_S if settings.has_own_loop else TRL_LIMIT_S
    limit, began = threading.Timer(limit_s, child.kill), time.monotonic()
    limit.start()
    try:
        return child.call("simulate", **request)
    except NbhelpersError as error:
        if time.monotonic() - began < limit_s:
            raise
        raise NbhelpersError(f"simulating it took more than {limit_s:g} s.") from error
    finally:
        limit.cancel()


def _tell(context: RunContext, forecast: Forecast) -> None:
    budget = forecast.budget
    if budget is not None:
        context.emit(
            "memory",
            predicted_bytes=budget.allocated_bytes,
            reserved_bytes=budget.reserved_bytes,
            phases={line.name: line.size_bytes for line in budget.phases},
            source=budget.source,
            simulated_s=forecast.seconds,
        )


def of_rank_0(context: RunContext, value: Any) -> Any:
    """Return rank 0's value on every rank."""
    if context.plan.world_size == 1:
        return value
    values = [value]
    broadcast_object_list(values)
    return values[0]


def coming_steps(context: RunContext, task: Task) -> list[np.ndarray]:
    """Return the rows of each optimizer step that this run has still to make; see `full_steps`."""
    if context.is_probe:
        batches = probed_steps(context, task.costs, task.global_batches(0), examples=task.examples)
        return full_steps(task, TrainState(), batches.batches)
    state = _state(context)
    return full_steps(task, state, steps_after(task, state, context.settings.epochs))


def full_steps(task: Task, state: TrainState, steps: list[np.ndarray]) -> list[np.ndarray]:
    """Return those of the steps after a point in which all that a run keeps is there.

    That is after all parameters have begun to learn, and after the first step in which they do, as
    it makes the optimizer's state.
    """
    full = max(0, task.first_full_step - state.step)
    makes_state = state.step <= task.first_full_step
    return steps[full + makes_state :] or steps[full:] or steps[-1:]


def steps_after(task: Task, state: TrainState, epochs: int) -> list[np.ndarray]:
    """Return the rows of each optimizer step after a point of the training."""
    return [
        batch_rows
        for epoch in range(state.epoch, epochs)
        for batch_rows in task.global_batches(epoch)[state.window if epoch == state.epoch else 0 :]
    ]


def _state(context: RunContext) -> TrainState:
    """Return where the newest checkpoint stands; a damaged one is told when it is loaded."""
    for path in reversed(ck.list_checkpoints(context.run.checkpoints_path)):
        try:
            values = json.loads((path / "state.json").read_text(encoding="utf-8"))
            return TrainState.from_dict(values["train"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return TrainState()


def tokens_of(extent: Any) -> tuple[int, int]:
    """Return what a micro-batch's memory grows with: its tokens, then attention's squares."""
    return extent.tokens, extent.squares


def largest_micro_batches(
    task: Task,
    batches: Iterable[np.ndarray],
    *,
    world_size: int,
    per_device: int,
    size_of: Callable[[Any], Any] = tokens_of,
) -> list[np.ndarray]:
    """Return the rows of rank 0's largest first micro-batch, and of its largest second one.

    A second one meets the gradients of the first, and a third is no larger: the longest come first.
    Where no step has a second one there is none; without steps the list is empty.

    Args:
        size_of: Given an extent of the task, returns what is compared.
    """
    largest: dict[int, tuple[Any, np.ndarray]] = {}
    for batch_rows in batches:
        parts = micro_batches(
            batch_rows, task.costs, rank=0, world_size=world_size, per_device=per_device
        )
        for place, rows in enumerate(parts[:2]):
            if not len(rows):
                continue
            size = size_of(task.extent(rows))
            if place not in largest or size > largest[place][0]:
                largest[place] = size, rows
    return [largest[place][1] for place in sorted(largest)]


def largest_rows(
    context: RunContext,
    task: Task,
    *,
    of_whole_run: bool = False,
    size_of: Callable[[Any], Any] = tokens_of,
) -> list[np.ndarray]:
    """Return the rows of the largest micro-batches that are still to come, or of the whole run."""
    plan, start = context.plan, TrainState()
    if of_whole_run:
        steps = full_steps(task, start, steps_after(task, start, context.settings.epochs))
    else:
        steps = coming_steps(context, task)
    return largest_micro_batches(
        task,
        steps,
        world_size=plan.world_size,
        per_device=plan.per_device_train_batch_size,
        size_of=size_of,
    )


def encoder_forecast(
    context: RunContext,
    task: Task,
    simulate: Simulate,
    shapes_of: Callable[..., dict[str, Any]],
) -> Forecast:
    """Return the simulated memory of an encoder's largest batch.

    Args:
        shapes_of: The job's `batch_shapes`.
    """
    parts = largest_rows(context, task)
    if not parts:
        return Forecast()
    return Forecast(budget=simulate(shapes_of(task, parts, is_scored=not context.is_probe)))


# ------------------------------------------------------------------------------------------------
# The same on a CPU, by formulas: live bytes of the steps that are counted there.


def encoder_estimate(
    context: RunContext, task: Task, steps: list[np.ndarray]
) -> MemoryBudget | None:
    """Return what an encoder's largest micro-batch of some steps needs; scoring is not counted."""
    shape, extent = find_shape(context.settings), largest_extent(context, task, steps)
    if shape is None or extent is None:
        return None
    how = {"precision": context.precision, "extent": extent}
    return estimate(ledger(context.settings, context.plan, shape, **how))


def largest_extent(context: RunContext, task: Task, steps: Iterable[np.ndarray]) -> Any:
    """Return the extent of this rank's largest micro-batch of some steps; None without one."""
    plan = context.plan
    extents = [
        task.extent(rows)
        for batch_rows in steps
        for rows in micro_batches(
            batch_rows,
            task.costs,
            rank=context.rank,
            world_size=plan.world_size,
            per_device=plan.per_device_train_batch_size,
        )
        if len(rows)
    ]
    return max(extents, key=tokens_of, default=None)


def estimate(lines: tuple[MemoryLine, ...]) -> MemoryBudget:
    """Return lines of the formulas as a budget without a verdict."""
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())
