"""What would help: changed settings, each with its prediction; and a grid of what fits.

One ladder of changes serves both questions, whether a run fits and whether it ends in time. A goal
says how a changed run is predicted, what of it should become smaller, and when that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from nbhelpers.budget.memory import (
    DOES_NOT_FIT,
    ESTIMATE,
    FITS,
    GIB,
    INTERPOLATED,
    SIMULATION,
    TIGHT,
    MemoryBudget,
)
from nbhelpers.budget.shapes import find_shape
from nbhelpers.errors import ConfigError
from nbhelpers.plan import BatchPlan, split_batch
from nbhelpers.presets.jobs import ADAPTER, JOBS
from nbhelpers.presets.preset import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


Predict = Callable[["Preset", BatchPlan, "Hardware"], MemoryBudget | None]
Change = dict[str, Any]  # settings that change together


@dataclass(frozen=True, slots=True)
class State:
    """A preset with its plan and what is predicted for it."""

    preset: Preset
    plan: BatchPlan
    prediction: Any

    @property
    def settings(self) -> Any:
        """The preset's settings."""
        return self.preset.settings


class Goal(Protocol):
    """What is to be reached: predictions that are small enough."""

    hardware: Hardware
    helped_by: tuple[str, ...]  # names of the rungs that may help

    def predict(self, preset: Preset, plan: BatchPlan) -> Any | None:
        """Return what is predicted for a run; None: nothing is known, or it cannot be."""

    def size(self, prediction: Any) -> float:
        """Return what should become smaller."""

    def is_met(self, prediction: Any) -> bool:
        """Whether it is small enough."""

    def words(self, prediction: Any) -> str:
        """Say the size, and whether it is enough."""

    def note(self, prediction: Any) -> str:
        """Say where the prediction is from, where that is worth a word."""


@dataclass(frozen=True, slots=True)
class Fits:
    """The goal that a run fits its card; `source` gives None where it does not know."""

    hardware: Hardware
    source: Predict
    helped_by: tuple[str, ...] = (
        *("checkpointing", "loss", "attention", "precision"),
        *("batch", "method", "length"),
    )

    def predict(self, preset: Preset, plan: BatchPlan) -> MemoryBudget | None:
        """Return the budget of a run."""
        return self.source(preset, plan, self.hardware)

    def size(self, prediction: MemoryBudget) -> float:
        """Return the need in bytes."""
        return prediction.total_bytes

    def is_met(self, prediction: MemoryBudget) -> bool:
        """Whether the verdict is "fits"."""
        return prediction.verdict == FITS

    def words(self, prediction: MemoryBudget) -> str:
        """Say the need, and that it fits."""
        return f"{prediction.total_bytes / GIB:.1f} GiB" + ", fits" * self.is_met(prediction)

    def note(self, prediction: MemoryBudget) -> str:
        """Say that the budget was not simulated."""
        return {INTERPOLATED: "between simulated steps", ESTIMATE: "estimate"}.get(
            prediction.source, ""
        )


def changed(state: State, change: Change, goal: Goal) -> State | None:
    """Return the state with settings changed; None: not possible, or not known."""
    try:
        preset = state.preset.override(**change)
        plan = replan(preset.settings, state.plan)
        prediction = goal.predict(preset, plan)
    except ConfigError:
        return None
    return None if prediction is None else State(preset, plan, prediction)


def replan(settings: Settings, plan: BatchPlan) -> BatchPlan:
    """Return a plan with the settings' batch and the same processes.

    Raises:
        ConfigError: The global batch does not split evenly.
    """
    split = split_batch(
        settings.global_batch_size,
        settings.per_device_train_batch_size,
        plan.world_size,
        allow_uneven=settings.allow_uneven_split,
    )
    return replace(
        plan,
        per_device_train_batch_size=split.per_device_train_batch_size,
        gradient_accumulation_steps=split.gradient_accumulation_steps,
        global_batch_size=split.global_batch_size,
        is_exact=split.is_exact,
    )


def even_sizes(plan: BatchPlan) -> list[int]:
    """Return the per-device batches that split the global batch evenly, ascending."""
    share, rest = divmod(plan.global_batch_size, plan.world_size)
    return [] if rest or not share else list(divisors(share))


# ------------------------------------------------------------------------------------------------
# The ladder: changes that leave the experiment alone first, the change that helps most before the
# others, each on top of the one before, until the goal is met. The global batch stays.


LEAST_GAIN = 0.01  # a change that saves less is not worth a word
MOST = 4  # ways that are named
LENGTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SCORED = ("per_device_eval_batch_size", "generation_batch_size")
BATCHES = ("per_device_train_batch_size", *SCORED)
SCORED_ROWS = 8  # for each row that is trained on; scoring keeps no activations
WORDS = {
    "gradient_checkpointing": "checkpointing",
    "loss": "fused loss",
    "attention": "fused attention",
    "precision": "half precision",
    "packing": "packed rows",
    "padding": "less padding",
    "compile_layers": "compiled blocks",
    "cuda_graphs": "CUDA graphs",
    "per_device_eval_batch_size": "scoring fewer rows at once",
    "generation_batch_size": "generating fewer answers at once",
    "method": "base in 4 bits",
    "epochs": "fewer epochs",
    "train_fraction": "fewer rows",
    "max_train_samples": "fewer rows",
    "seq_len": "shorter texts",
}
EXPERIMENT = {"method", "epochs", "train_fraction", "max_train_samples", "seq_len"}

Step = tuple[Change, State]
Rung = list[Change]  # one thing in several degrees, the one that helps most first


def advise(
    preset: Preset, plan: BatchPlan, prediction: Any, goal: Goal, *, examples: int | None = None
) -> tuple[tuple[str, ...], bool]:
    """Return what would meet a goal, as chains of changes, and whether one of them does.

    Args:
        preset: What to do.
        plan: How its global batch is split.
        prediction: For the run as it is.
        goal: What is to be met.
        examples: Training examples of an epoch, where they are known.
    """
    start = State(preset, plan, prediction)
    singles = _singles(start, goal)
    free = _chain(start, [[change] for change, _ in singles], goal)
    free = _with_batch(start, free, goal)
    ways = [free] if free and goal.is_met(free[-1][1].prediction) else []
    if not ways:
        costly = _costly(start, examples)
        rungs = [rung for name, rung in costly if name in goal.helped_by and rung]
        for first in range(len(rungs)):
            way = _chain(start, rungs[first:], goal, free)
            if len(way) > len(free) and (goal.is_met(way[-1][1].prediction) or not ways):
                ways.append(way)
        ways = [way for way in ways if goal.is_met(way[-1][1].prediction)] or ways[:1]
        ways = ways or ([free] if free else [])
    is_met = bool(ways) and goal.is_met(ways[0][-1][1].prediction)
    ways += [[step] for step in singles if goal.is_met(step[1].prediction)]
    return tuple(dict.fromkeys(_words(start, way, goal) for way in ways))[:MOST], is_met


def _gain(before: State, after: State, goal: Goal) -> float:
    """The share that a change saves."""
    size = goal.size(before.prediction)
    return 1.0 - goal.size(after.prediction) / size if size else 0.0


def _singles(start: State, goal: Goal) -> list[Step]:
    """Each change that leaves what is learnt alone, by itself, the one that saves most first."""
    changes = [c for name, c in _free(start, goal.hardware) if name in goal.helped_by]
    steps = [(c, after) for c in changes if (after := changed(start, c, goal)) is not None]
    steps = [step for step in steps if _gain(start, step[1], goal) > LEAST_GAIN]
    return sorted(steps, key=lambda step: goal.size(step[1].prediction))


def _free(state: State, hardware: Hardware) -> Iterator[tuple[str, Change]]:
    s, is_causal = state.settings, JOBS[state.preset.job].formulas == ADAPTER
    if s.gradient_checkpointing:
        yield "no checkpointing", {"gradient_checkpointing": False}
    else:
        yield "checkpointing", {"gradient_checkpointing": True}
    if getattr(s, "loss", "") == "plain":
        yield "loss", {"loss": "chunked"}
    if s.attention == "eager" and (not is_causal or hardware.precision == "bf16"):
        yield "attention", {"attention": "auto" if is_causal else "sdpa"}
    if s.precision == "fp32" and hardware.precision != "fp32":
        yield "precision", {"precision": "auto"}
    if is_causal and not s.packing and state.plan.use_gpu:
        unpadded = {"padding": "dynamic"} if s.padding == "fixed" else {}
        yield "padding", {"packing": True} | unpadded
    elif s.padding == "fixed":
        yield "padding", {"padding": "dynamic"}
    if is_causal and s.compile_layers == "off":
        yield "compiled", {"compile_layers": "auto"}
    elif is_causal and not s.cuda_graphs:
        yield "compiled", {"cuda_graphs": True}


def _chain(start: State, rungs: Sequence[Rung], goal: Goal, chain: Sequence[Step] = ()) -> list:
    """Add a change of each rung that helps, the mildest that suffices, until the goal is met."""
    steps = list(chain)
    for rung in rungs:
        before = steps[-1][1] if steps else start
        if goal.is_met(before.prediction):
            break
        step = _climbed(before, rung, goal)
        if step is not None and _gain(before, step[1], goal) > LEAST_GAIN:
            steps.append(step)
    return steps


def _climbed(before: State, rung: Rung, goal: Goal) -> Step | None:
    """Return the mildest change of a rung that meets the goal, else the one that helps most."""
    low, high, best = 0, len(rung) - 1, None
    while low <= high:
        middle = (low + high) // 2
        after = changed(before, rung[middle], goal)
        if after is not None and goal.is_met(after.prediction):
            best, low = (rung[middle], after), middle + 1
        else:
            high = middle - 1
    if best is None and rung and (after := changed(before, rung[0], goal)) is not None:
        best = rung[0], after
    return best


def _with_batch(start: State, chain: list[Step], goal: Goal) -> list[Step]:
    """Add another per-device batch: a larger one where it helps or still fits, else a smaller one.

    A smaller one may need smaller scored batches beside it, or these alone suffice.
    """
    name, state = "per_device_train_batch_size", chain[-1][1] if chain else start
    size, sizes = state.settings.per_device_train_batch_size, even_sizes(state.plan)
    larger, smaller = [n for n in sizes if n > size], [n for n in sizes if n < size]
    if not isinstance(goal, Fits):
        ways = (_chain(start, [[{name: n}]], goal, chain) for n in reversed(larger))
        return next((way for way in ways if len(way) > len(chain)), chain)
    if not goal.is_met(state.prediction):
        for rung in (
            [change for k in (4, 3, 2, 1) if (change := _scored(state, share=4**k))],
            [{name: n} for n in smaller],
            [{name: n} | _scored(state, SCORED_ROWS * n) for n in smaller],
        ):
            way = _chain(start, [rung], goal, chain)
            if len(way) > len(chain) and goal.is_met(way[-1][1].prediction):
                chain, state = way, way[-1][1]
                break
    if not goal.is_met(state.prediction) or state.settings.per_device_train_batch_size != size:
        return chain
    step = _climbed(state, [{name: n} for n in larger], goal)
    return [*chain, step] if step and goal.is_met(step[1].prediction) else chain


def _scored(state: State, most: int = 0, *, share: int = 1) -> Change:
    """Scored batches of at most so many rows, or of such a part of them, where they are larger."""
    sizes = {name: getattr(state.settings, name, 1) for name in SCORED}
    fewer = {name: most or max(1, size // share) for name, size in sizes.items()}
    return {name: rows for name, rows in fewer.items() if rows < sizes[name]}


def _costly(start: State, examples: int | None) -> Iterator[tuple[str, Rung]]:
    """Name what is left: the smallest batches, then what changes the experiment."""
    s, least = start.settings, min(even_sizes(start.plan), default=0)
    smallest = _scored(start, 1)
    if 0 < least < s.per_device_train_batch_size:
        smallest = {"per_device_train_batch_size": least} | smallest
    yield "batch", [smallest] if smallest else []
    yield "method", [{"method": "qlora"}] if getattr(s, "method", "") == "lora" else []
    # A detector that is frozen in all its epochs would train the heads alone.
    first = getattr(s, "freeze_epochs", 0) + 1
    yield "epochs", [{"epochs": n} for n in range(first, s.epochs)]
    if examples and s.max_train_samples is None:
        yield "rows", [{"train_fraction": round(s.train_fraction * x, 6)} for x in SHARES]
    elif examples:
        batches = sorted({max(1, int(examples * x) // s.global_batch_size) for x in SHARES})
        yield "rows", [{"max_train_samples": n * s.global_batch_size} for n in batches]
    yield "length", [{"seq_len": n} for n in LENGTHS if n < s.seq_len]


def _words(start: State, way: Sequence[Step], goal: Goal) -> str:
    """Write a way: "checkpointing (…): 52.3 to 26.4 GiB; fused loss (…): to 9.4 GiB, fits"."""
    first = goal.words(start.prediction).partition(",")[0].removesuffix(" GiB")
    parts, before, was_met = [], f"{first} ", False
    for change, state in way:
        name, typed = next(iter(change)), ", ".join(f"{n}={v!r}" for n, v in change.items())
        if was_met:
            size = goal.words(state.prediction).partition(",")[0]
            what = f"batch {change[name]}" if name in BATCHES else WORDS.get(name, name)
            parts.append(f"then {what} fits too ({typed}, {size})")
        else:
            word = WORDS.get(name) or _batch_word(start, change)
            parts.append(f"{word} ({typed}): {before}to {goal.words(state.prediction)}")
        before, was_met = "", goal.is_met(state.prediction)
    end = way[-1][1]
    words = [f"same global batch of {end.plan.global_batch_size}"]
    if any(EXPERIMENT & change.keys() for change, _ in way):
        words.append("changes the experiment")
    if not was_met:
        words.append("not enough")
    words += dict.fromkeys(note for _, s in way if (note := goal.note(s.prediction)))
    return f"{'; '.join(parts)} ({'; '.join(words)})"


def _batch_word(start: State, change: Change) -> str:
    is_larger = change["per_device_train_batch_size"] > start.settings.per_device_train_batch_size
    return "larger batch" if is_larger else "smaller batch"


# ------------------------------------------------------------------------------------------------
# What fits on a card: the verdict for each batch and length of a preset, as a table.


SHORT = {FITS: "fits", TIGHT: "tight", DOES_NOT_FIT: "no"}
MARKS = {SIMULATION: "", INTERPOLATED: "~"}
LEGEND = "GiB and verdict; ~ between simulated steps, ? an estimate; - is not possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One batch and length; `budget` is None where the model or the global batch forbids it."""

    batch: int
    seq_len: int
    budget: MemoryBudget | None
    is_preset: bool = False

    @property
    def text(self) -> str:
        """The need with its mark, and the verdict; a star marks the preset itself."""
        if self.budget is None or not self.budget.total_bytes:
            return "-"
        need = f"{MARKS.get(self.budget.source, '?')}{self.budget.total_bytes / GIB:.1f}"
        verdict = SHORT.get(self.budget.verdict, self.budget.verdict)
        return f"{need} {verdict}{' *' * self.is_preset}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        names = ("total_bytes", "verdict", "source")
        facts = {n: getattr(self.budget, n) if self.budget else None for n in names}
        return {"batch": self.batch, "seq_len": self.seq_len} | facts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BudgetGrid:
    """Budgets by per-device batch and length; the global batch is the same in all cells."""

    cells: tuple[GridCell, ...]
    global_batch_size: int
    title: str = ""
    unit: str = ""

    @property
    def batches(self) -> list[int]:
        """The per-device batches, ascending."""
        return sorted({cell.batch for cell in self.cells})

    @property
    def lengths(self) -> list[int]:
        """The lengths in tokens, ascending."""
        return sorted({cell.seq_len for cell in self.cells})

    def __repr__(self) -> str:
        verdicts = [cell.budget.verdict for cell in self.cells if cell.budget]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (FITS, TIGHT, DOES_NOT_FIT))
        return f"BudgetGrid({self.title}: {counts})"

    def rows(self) -> list[dict[str, str]]:
        """Return the table: a row for each length."""
        by_length: dict[int, dict[str, str]] = {}
        for cell in sorted(self.cells, key=lambda cell: (cell.seq_len, cell.batch)):
            row = by_length.setdefault(cell.seq_len, {"tokens": f"{cell.seq_len:,}"})
            row[f"batch {cell.batch}"] = cell.text
        return list(by_length.values())


def budget_grid(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    predict: Predict,
    batches: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    title: str = "",
) -> BudgetGrid:
    """Return the budgets of per-device batches and lengths.

    Args:
        preset: What to do.
        plan: How its global batch is split.
        hardware: The card.
        predict: Gives a budget, such as `predict.predict_memory`.
        batches: None: all that split the global batch evenly, and the preset's own.
        lengths: Tokens; longer ones than the model has positions are left out. None: usual ones,
            and the preset's own.
        title: What the grid is of.
    """
    s, goal, own = preset.settings, Fits(hardware, predict), plan.per_device_train_batch_size
    shape = find_shape(s)
    most = shape.code_positions if shape is not None else max(lengths or LENGTHS)
    used = {n for n in lengths or LENGTHS if n <= most} | (
        {s.seq_len} if lengths is None else set()
    )
    start, cells = State(preset, plan, predict(preset, plan, hardware)), []
    for seq_len in sorted(used):
        for batch in sorted({*even_sizes(plan), own}) if batches is None else batches:
            is_preset = (batch, seq_len) == (own, s.seq_len)
            change = {"per_device_train_batch_size": batch, "seq_len": seq_len}
            state = start if is_preset else changed(start, change, goal)
            budget = None if state is None else state.prediction
            cells.append(GridCell(batch=batch, seq_len=seq_len, budget=budget, is_preset=is_preset))
    return BudgetGrid(
        cells=tuple(cells),
        global_batch_size=plan.global_batch_size,
        title=title,
        unit=JOBS[preset.job].unit,
    )
