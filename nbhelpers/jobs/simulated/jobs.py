"""Our own jobs under simulation: the memory of a preset on a card, by running what trains it.

The longest batch that the settings allow is taken, or the shapes of a run's largest one; there are
no data files and no hub, only configurations and rows of token ids. Limit: one process of one node.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.errors import ConfigError
from nbhelpers.presets.jobs import JOBS, resolve
from nbhelpers.simulate.data_dependent import ONLY_RUN
from nbhelpers.simulate.step import simulate_step

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

# Source: a compiled detector on an H200 needed 0.02 % less at its peak than simulated, and 1 % less
# was reserved; a detector's fused blocks need 4.1 % less than plain ones (docs/log/speed.md).
COMPILED = "Blocks that a long run compiles are simulated uncompiled, which needs about as much."


def simulate_settings(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    shapes: dict[str, Any] | None = None,
    steps: int = 2,
    expandable_segments: bool = True,
) -> MemoryBudget:
    """Return the simulated memory of one process that trains a preset.

    Args:
        shapes: Of the largest batch of a run's data, as the job's `batch_shapes` says; None: every
            row is as long as the settings allow.
        steps: Optimizer steps; the last is judged.
        expandable_segments: As `jobs.worker` sets it for every run.

    Raises:
        ConfigError: The plan uses no GPU, or the sizes of the model cannot be read.
    """
    gpu = hardware.gpu if plan.use_gpu else None
    if gpu is None:
        raise ConfigError(
            "The memory of a GPU is simulated, and the plan uses none.",
            fix="plan for a GPU, as in --gpu t4",
        )
    place = JOBS[preset.job].simulation
    if not place:
        raise ConfigError(
            f"A training step of the job {preset.job} cannot be simulated.",
            fix="launch it; the report shows the measured memory",
        )
    how = {"gpu": gpu, "steps": steps, "world_size": plan.world_size}
    how["expandable_segments"] = expandable_segments
    budget = resolve(place)(preset, plan, hardware, shapes=shapes, **how)
    # Our loops read losses and norms to log them.
    return replace(budget, notes=tuple(note for note in budget.notes if ONLY_RUN not in note))


def simulate_clones(preset: Preset, *where: Any, **how: Any) -> MemoryBudget:
    """Return the memory of one process that trains on pairs; see `simulate_settings`."""
    from nbhelpers.jobs.simulated.clones import build_clones

    return _simulated(build_clones, preset, *where, **how)


def simulate_detector(preset: Preset, *where: Any, **how: Any) -> MemoryBudget:
    """Return the memory of one process that trains a detector; see `simulate_settings`."""
    from nbhelpers.jobs.simulated.detector import build_detector_step

    return _simulated(build_detector_step, preset, *where, **how)


def _simulated(
    make: Callable[..., Any],
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    shapes: dict[str, Any] | None,
    **how: Any,
) -> MemoryBudget:
    """Simulate steps of our loop; `make` builds it, and libraries are imported before."""
    from nbhelpers.jobs.models.encoders import encoder_class
    from nbhelpers.jobs.simulated.inputs import simulated_tokeniser
    from nbhelpers.jobs.simulated.step import simulated_context

    settings: Any = preset.settings
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    tokeniser = simulated_tokeniser(settings, vocab=shapes["vocab"] if shapes else None)
    encoder_class(tokeniser.config)
    with ExitStack() as stack:

        def build() -> Any:
            context = simulated_context(settings, plan, hardware, precision=precision)
            step, evaluate = make(stack.enter_context(context), tokeniser, shapes)
            return step.trainer.model, step, evaluate

        return simulate_step(build, _Steps(how["steps"]), **how)


class _Steps:
    """One optimizer step at each call; after the last, the scoring."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, model: Any, step: Any, evaluate: Callable[[], None]) -> None:
        from nbhelpers.simulate.state import EVALUATION, current

        step()
        self.left -= 1
        state = current()
        if self.left == 0 and state is not None:
            if getattr(step.trainer.settings, "compile_layers", "off") != "off":
                state.note(COMPILED)
            with state.phase(EVALUATION):
                evaluate()
