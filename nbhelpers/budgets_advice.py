"""What would make a run fit: changes that leave the experiment alone first, each one predicted.

The change that helps most comes first, the next ones on top of it, until the run fits; then the
largest batch that still does. The global batch stays whatever is advised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbhelpers.budgets_search import Predict, Search, State, even_sizes
from nbhelpers.job_specs import ADAPTER, JOBS
from nbhelpers.ledger import GIB

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.memory import MemoryBudget
    from nbhelpers.presets import Preset

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
    told = [_told(start, chain)] if chain else []
    told += [_told(start, [(change, state)]) for change, state in singles if state.fits]
    return tuple(dict.fromkeys(told)), _end(start, chain).fits


def _end(start: State, chain: Chain) -> State:
    return chain[-1][1] if chain else start


def _singles(search: Search, start: State) -> Chain:
    """Each harmless change alone, the one that saves most first."""
    found = []
    for change in _harmless(start, search.hardware):
        state = search.changed(start, change)
        if state is not None and start.gain(state) > LEAST_GAIN:
            found.append((change, state))
    return sorted(found, key=lambda pair: pair[1].budget.total_bytes)


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
        found = search.largest(state, changes)
    else:
        smaller = [size for size in sizes if size < state.batch]
        found = search.largest(state, [{name: size} for size in smaller])
        found = found or search.largest(state, [_smaller(state, size) for size in smaller])
    return chain if found is None else [*chain, found]


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
    found = search.largest(state, [{"seq_len": n} for n in LENGTHS if n < _settings(state).seq_len])
    return chain if found is None else [*chain, found]


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
