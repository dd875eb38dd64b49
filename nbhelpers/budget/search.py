"""What would fit: presets that differ in a few settings, each with its predicted memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import GIB
from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, TIGHT, MemoryBudget
from nbhelpers.budget.shapes import find_shape
from nbhelpers.errors import ConfigError
from nbhelpers.plan import BatchPlan, split_batch
from nbhelpers.presets.jobs import ADAPTER, JOBS
from nbhelpers.presets.preset import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


# ------------------------------------------------------------------------------------------------
# Presets that differ from one another in a few settings, each with its predicted memory.


Predict = Callable[["Preset", BatchPlan, "Hardware"], MemoryBudget | None]


@dataclass(frozen=True, slots=True)
class State:
    """A preset with its plan and what that needs."""

    preset: Preset
    plan: BatchPlan
    budget: MemoryBudget

    @property
    def fits(self) -> bool:
        """Whether the verdict is "fits"."""
        return self.budget.verdict == FITS

    @property
    def batch(self) -> int:
        """Examples that a process holds at once."""
        return self.plan.per_device_train_batch_size

    def gain(self, after: State) -> float:
        """Return the share of the memory that another state saves."""
        need = self.budget.total_bytes
        return (need - after.budget.total_bytes) / need if need else 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """How states are predicted: `predict` gives None where it does not know."""

    hardware: Hardware
    predict: Predict

    def changed(self, state: State, changes: dict[str, Any]) -> State | None:
        """Return the state with settings changed; None: not possible, or not known."""
        try:
            preset = state.preset.override(**changes)
            plan = replan(preset.settings, state.plan)
        except ConfigError:
            return None
        budget = self.predict(preset, plan, self.hardware)
        return None if budget is None else State(preset, plan, budget)

    def largest(
        self, state: State, changes: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Any], State] | None:
        """Return the last of ascending changes that fits: a later one never needs less."""
        low, high, best = 0, len(changes) - 1, None
        while low <= high:
            middle = (low + high) // 2
            after = self.changed(state, changes[middle])
            if after is not None and after.fits:
                best, low = (changes[middle], after), middle + 1
            else:
                high = middle - 1
        return best


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
# What would make a run fit: changes that leave the experiment alone first, each one predicted.
#
# The change that helps most comes first, the next ones on top of it, until the run fits; then the
# largest batch that still does. The global batch stays whatever is advised.


LEAST_GAIN = 0.01  # of the need; a change that saves less is not worth a word
LENGTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
WORDS = {
    "gradient_checkpointing": "checkpointing",
    "loss": "fused loss",
    "attention": "fused attention",
    "precision": "half precision",
    "per_device_train_batch_size": "smaller batch",
    "per_device_eval_batch_size": "scoring fewer rows at once",
    "generation_batch_size": "generating fewer answers at once",
    "method": "base in 4 bits",
    "seq_len": "shorter texts",
}
SOURCES = {"interpolated": "between simulated steps", "ledger": "by the ledger, not simulated"}

SCORED = ("per_device_eval_batch_size", "generation_batch_size")
SCORED_ROWS = 8  # for each row that is trained on; scoring keeps no activations

Change = dict[str, Any]  # of one setting, and of the scored batches beside it
Chain = list[tuple[Change, State]]


def advise(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    budget: MemoryBudget,
    predict: Predict,
) -> tuple[tuple[str, ...], bool]:
    """Return what would make a run fit, as chains of changes, and whether one of them does.

    The first chain is the way with the most savings; single changes that do alone follow.

    Args:
        preset: What to do.
        plan: How its global batch is split.
        hardware: The card.
        budget: What the run needs as it is.
        predict: Gives the budget of a changed run; None where it does not know.
    """
    search, start = Search(hardware, predict), State(preset, plan, budget)
    singles = _singles(search, start)
    chain = _with_batch(search, start, _chain(search, start, singles))
    if not _end(start, chain).fits:
        chain = _other_experiment(search, start, chain)
    texts = [_told(start, chain)] if chain else []
    texts += [_told(start, [(change, state)]) for change, state in singles if state.fits]
    return tuple(dict.fromkeys(texts)), _end(start, chain).fits


def _end(start: State, chain: Chain) -> State:
    return chain[-1][1] if chain else start


def _singles(search: Search, start: State) -> Chain:
    """Each harmless change alone, the one that saves most first."""
    candidates = []
    for change in _harmless(start, search.hardware):
        state = search.changed(start, change)
        if state is not None and start.gain(state) > LEAST_GAIN:
            candidates.append((change, state))
    return sorted(candidates, key=lambda pair: pair[1].budget.total_bytes)


def _harmless(state: State, hardware: Hardware) -> Iterator[Change]:
    """Changes that leave what is learnt alone."""
    s, is_causal = state.preset.settings, JOBS[state.preset.job].formulas == ADAPTER
    if not s.gradient_checkpointing:
        yield {"gradient_checkpointing": True}
    if getattr(s, "loss", "") == "plain":
        yield {"loss": "chunked"}
    if s.attention == "eager" and (not is_causal or hardware.precision == "bf16"):
        yield {"attention": "auto" if is_causal else "sdpa"}
    if s.precision == "fp32" and hardware.precision != "fp32":
        yield {"precision": "auto"}


def _is_scoring_the_peak(budget: MemoryBudget) -> bool:
    phases = {line.name: line.size_bytes for line in budget.phases}
    most = max(phases.values(), default=0)
    return bool(most) and phases.get("evaluation", 0) == most


def _chain(search: Search, start: State, singles: Chain) -> Chain:
    """Changes on top of one another, in the order of what each saves alone, until it fits."""
    chain: Chain = []
    for change, single in singles:
        before = _end(start, chain)
        if before.fits:
            break
        after = search.changed(before, change) if chain else single
        if after is not None and before.gain(after) > LEAST_GAIN:
            chain.append((change, after))
    return _with_less_scoring(search, start, chain)


def _with_less_scoring(search: Search, start: State, chain: Chain) -> Chain:
    """Score fewer rows at once for as long as scoring is what needs most."""
    while _is_scoring_the_peak((state := _end(start, chain)).budget) and not state.fits:
        least = _scored(state, {name: getattr(_settings(state), name, 1) // 4 for name in SCORED})
        longer = _added(search, start, chain, least) if least else chain
        if len(longer) == len(chain):
            break
        chain = longer
    return chain


def _settings(state: State) -> Any:
    return state.preset.settings


def _scored(state: State, wanted: dict[str, int]) -> Change:
    """Scored batches of at most so many rows, where they are larger; at least one row."""
    s = _settings(state)
    return {n: max(1, most) for n, most in wanted.items() if getattr(s, n, 1) > max(1, most)}


def _with_batch(search: Search, start: State, chain: Chain) -> Chain:
    """Add the largest batch that fits: a larger one where there is room, else a smaller one.

    A smaller one may need smaller scored batches beside it.
    """
    state = _end(start, chain)
    name, sizes = "per_device_train_batch_size", even_sizes(state.plan)
    if state.fits:
        changes = [{name: size} for size in sizes if size > state.batch]
        step = search.largest(state, changes)
    else:
        smaller = [size for size in sizes if size < state.batch]
        step = search.largest(state, [{name: size} for size in smaller])
        step = step or search.largest(state, [_smaller(state, size) for size in smaller])
    return chain if step is None else [*chain, step]


def _smaller(state: State, size: int) -> Change:
    """A smaller batch with scored batches that go with it."""
    scored = _scored(state, dict.fromkeys(SCORED, SCORED_ROWS * size))
    return {"per_device_train_batch_size": size} | scored


def _other_experiment(search: Search, start: State, chain: Chain) -> Chain:
    """Last: the smallest batches, then what changes the result: four bits, shorter texts."""
    state = _end(start, chain)
    smallest = _scored(state, dict.fromkeys(SCORED, 1))
    least = min(even_sizes(state.plan), default=state.batch)
    if least < state.batch:
        smallest = {"per_device_train_batch_size": least} | smallest
    chain = _added(search, start, chain, smallest) if smallest else chain
    if getattr(_settings(state), "method", "") == "lora":
        chain = _added(search, start, chain, {"method": "qlora"})
    state = _end(start, chain)
    if state.fits:
        return chain
    step = search.largest(state, [{"seq_len": n} for n in LENGTHS if n < _settings(state).seq_len])
    return chain if step is None else [*chain, step]


def _added(search: Search, start: State, chain: Chain, change: Change) -> Chain:
    before = _end(start, chain)
    after = search.changed(before, change)
    if after is None or before.gain(after) <= LEAST_GAIN:
        return chain
    return [*chain, (change, after)]


def _told(start: State, chain: Chain) -> str:
    """Write a chain: "checkpointing: 52.3 to 26.4 GiB; fused loss: to 9.4 GiB, fits; then …"."""
    parts, first, has_fitted = [], f"{start.budget.total_bytes / GIB:.1f} ", False
    for change, state in chain:
        name, value = next(iter(change.items()))
        need = f"{state.budget.total_bytes / GIB:.1f} GiB"
        typed = ", ".join(f"{n}={v!r}" for n, v in change.items())
        if has_fitted:  # what comes after is a larger batch
            parts.append(f"then batch {value} fits too ({typed}, {need})")
        else:
            parts.append(f"{WORDS[name]} ({typed}): {first}to {need}{', fits' * state.fits}")
        first, has_fitted = "", state.fits
    end = _end(start, chain)
    words = [f"same global batch of {end.plan.global_batch_size}"]
    if any({"method", "seq_len"} & change.keys() for change, _ in chain):
        words.append("changes the experiment")
    if not end.fits:
        words.append(f"still {end.budget.verdict}")
    words += {SOURCES[s.budget.source]: 0 for _, s in chain if s.budget.source in SOURCES}
    return f"{'; '.join(parts)} ({'; '.join(words)})"


# ------------------------------------------------------------------------------------------------
# What fits on a card: the verdict for each batch and length of a preset, as a table.


SHORT = {FITS: "fits", TIGHT: "tight", DOES_NOT_FIT: "no"}
MARKS = {"interpolated": "~", "simulation": ""}
LEGEND = "GiB and verdict; ~ between simulated steps, ? by the ledger; - is not possible"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitGrid:
    """Budgets by micro-batch and length, with what they are for."""

    title: str
    unit: str
    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    cells: Mapping[tuple[int, int], MemoryBudget]

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(v)} {v}" for v in (FITS, TIGHT, DOES_NOT_FIT))
        return f"FitGrid({self.title}: {counts})"

    def count(self, verdict: str) -> int:
        """Return in how many cells this is the verdict."""
        return sum(budget.verdict == verdict for budget in self.cells.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One batch and length; `budget` is None where the model or the global batch forbids it."""

    batch: int
    seq_len: int
    budget: MemoryBudget | None
    is_preset: bool

    @property
    def text(self) -> str:
        """The need with its mark, and the verdict; a star marks the preset itself."""
        if self.budget is None:
            return "-"
        mark = MARKS.get(self.budget.source, "?")
        need = f"{mark}{self.budget.total_bytes / GIB:.1f}"
        verdict = SHORT.get(self.budget.verdict, self.budget.verdict)
        return f"{need} {verdict}{' *' * self.is_preset}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        known = self.budget
        return {
            "batch": self.batch,
            "seq_len": self.seq_len,
            "total_bytes": known.total_bytes if known else None,
            "verdict": known.verdict if known else None,
            "source": known.source if known else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGrid:
    """Cells of equal length are a row, of equal batch a column; the global batch is the same."""

    cells: tuple[GridCell, ...]
    global_batch_size: int

    @property
    def batches(self) -> list[int]:
        """The per-device batches, ascending."""
        return sorted({cell.batch for cell in self.cells})

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
    lengths: Sequence[int] = LENGTHS,
) -> BudgetGrid:
    """Return the budgets of every even per-device batch and of usual lengths.

    Args:
        preset: What to do; its own batch and length are in the grid too.
        plan: How its global batch is split.
        hardware: The card.
        predict: Gives a budget, such as `predict.predict_memory`.
        lengths: Tokens; longer ones than the model has positions are left out.
    """
    s, own = preset.settings, plan.per_device_train_batch_size
    shape = find_shape(s)
    most = shape.code_positions if shape is not None else max(lengths)
    used = sorted({*(n for n in lengths if n <= most), s.seq_len})
    start = State(preset, plan, predict(preset, plan, hardware))
    search, cells = Search(hardware, predict), []
    for seq_len in used:
        for batch in sorted({*even_sizes(plan), own}):
            is_preset = (batch, seq_len) == (own, s.seq_len)
            change = {"per_device_train_batch_size": batch, "seq_len": seq_len}
            state = start if is_preset else search.changed(start, change)
            budget = None if state is None else state.budget
            cells.append(GridCell(batch=batch, seq_len=seq_len, budget=budget, is_preset=is_preset))
    return BudgetGrid(cells=tuple(cells), global_batch_size=plan.global_batch_size)
