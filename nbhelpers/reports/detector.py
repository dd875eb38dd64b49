"""The report of a detector: what it opens with, and its blocks.

Values are selected and compared first (`Promise`, `Standing`); sentences are made of them last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count, interval, listed, number, written
from nbhelpers.common.result_files import FloorLead, FloorScores, PairFloor, Retrieval, Slice, Split
from nbhelpers.metrics.intervals import humans_needed
from nbhelpers.metrics.registry import BASELINES, DETECTOR_SCORES, EDITS, PAGE
from nbhelpers.metrics.slices import MIN_ROWS
from nbhelpers.reports import figures_detector as draw
from nbhelpers.reports import sections
from nbhelpers.reports.blocks import (
    NOTE,
    Block,
    Figure,
    KeyFigure,
    Section,
    Summary,
    Table,
    Text,
    listing,
    texts,
)
from nbhelpers.reports.figures import MODEL
from nbhelpers.reports.sections import AHEAD, standing_of
from nbhelpers.use.facts import NO_EVIDENCE, NO_EVIDENCE_SIMILAR

if TYPE_CHECKING:
    from nbhelpers.reports.facts import RunFacts

KEPT, OPEN, BROKEN = "kept", "open", "broken"
FEW = 100  # programs of one class
LARGE_LOSS = 0.5  # of the TPR, under an edit
COMPARED = ("test", "held_out")
STACK = "stack"  # in `sources`
MOST_FEATURES = 8
MFU = (
    "of the GPUs' half-precision peak, for useful tokens at 6 FLOPs per matrix parameter (2 while "
    "the encoder is frozen), attention left out"
)
RATES = {
    "programs_per_s": ("programs", "per s"),
    "useful_tokens_per_s": ("useful tokens", "per s"),
    "padded_tokens_per_s": ("tokens with padding", "per s"),
    "useful_share": ("useful tokens per padded token", "this run"),
    "mfu_6n": ("MFU", MFU),
}
INFERENCE = {
    "ms_per_file": "ms per file, in batches",
    "ms_alone": "ms per file, one at a time",
    "files_per_s": "files per s",
    "batch_size": "files per batch",
    "n_files": "files measured",
}
HEADS = {
    "roc_auc": "ROC-AUC",
    "tpr_at_fpr": "TPR at promised FPR",
    "tpr": "TPR",
    "fpr": "FPR",
    "f1": "F1",
    "mrr": "MRR",
    "map_at_r": "MAP@R",
    "n_human": "human",
    "n_ai": "AI",
    "ai": "AI",
}


def summary(facts: RunFacts) -> Summary:
    """Return what the report opens with."""
    splits = dict(scored_splits(facts))
    main = _main_split(facts)
    promises = sorted(_promises(facts), key=lambda promise: promise.split != "unseen_humans")
    alarms = [_broken_text(facts, p) for p in promises if p.verdict == BROKEN]
    alarms += [_audit_text(facts)] if facts.result.audit.verdict == "hopeless" else []
    return Summary(
        title=sections.title(facts),
        verdict=_verdict(facts, *main) if main else _similarity_verdict(facts),
        alarms=[*alarms, *sections.problems(facts)],
        caveat=next(iter(_caveats(facts)), ""),
        figures=sections.present(
            _sources_figure(facts),
            *(_key_figures(facts, *main) if main else []),
            _mrr_figure(facts),
            sections.memory_figure(facts),
            sections.time_figure(facts),
        ),
        picture=_roc(facts) if splits else _loss(facts),
        where=sections.where(facts),
    )


def blocks(facts: RunFacts) -> list[Block]:
    """Return the sections of the report."""
    is_similar_only = not facts.result.scores and facts.result.similarity.retrieval
    own = [
        Text(NO_EVIDENCE_SIMILAR if is_similar_only else NO_EVIDENCE),
        sections.targets(facts),
        _scores(facts),
        _sources(facts),
        _baselines(facts),
        _promise(facts),
        _edits(facts),
        _slices(facts),
        *_similarity(facts),
        sections.doubts(_doubts(facts)),
        _audit(facts),
    ]
    cost = sections.cost(facts, RATES, _loss(facts))
    inference = {what: facts.result.inference.get(name) for name, what in INFERENCE.items()}
    more = [
        Table("phases", sections.part_rows(facts.result.phases), {"phase": "of training"}),
        listing("inference", inference, {"what": "scoring, tokens at hand"}),
        listing("compile", _compiled(facts), {"what": ""}),
    ]
    phases = Section("Training by phase, and scoring", more, "phases")
    return [*own, *cost, phases, *sections.origin(facts, _data(facts))]


def scored_splits(facts: RunFacts) -> Iterator[tuple[str, Split]]:
    """Yield name and scores of each scored split: test, held-out, unseen humans, valid, others."""
    scores = facts.result.scores
    order = [name for name in DETECTOR_SCORES.splits if name in scores]
    for name in [*order, *sorted(set(scores) - set(order))]:
        if scores[name].metrics:
            yield name, scores[name]


def _main_split(facts: RunFacts) -> tuple[str, Split] | None:
    """Return the split that the report opens with: a source left out of training, else test."""
    splits = dict(scored_splits(facts))
    if "held_out" in splits and str(facts.result.settings.hold_out).startswith("source="):
        return "held_out", splits["held_out"]
    return next(iter(splits.items()), None)


def split_title(facts: RunFacts, name: str) -> str:
    """Return a split in words: what was held out is named."""
    held_out = facts.result.settings.hold_out if name == "held_out" else None
    title = DETECTOR_SCORES.splits.get(name, name.replace("_", " "))
    return f"{title} ({held_out})" if held_out else title


def _figure(name: str, draw_it: Callable[[], Any]) -> Figure:
    return Figure(name, draw.CAPTIONS[name], draw_it)


def _loss(facts: RunFacts) -> Figure:
    return _figure("loss", lambda: draw.loss_figure(facts.result.training))


@lru_cache(maxsize=1)
def _scored(facts: RunFacts) -> dict[str, draw.Scored]:
    """Return what two figures are drawn from, read once."""
    return draw.read_scored(facts.run.predictions_path)


def _roc(facts: RunFacts) -> Figure:
    def drawn() -> Any:
        scored = _scored(facts)
        curves = {split_title(facts, name): scored[name] for name in COMPARED if name in scored}
        target = facts.result.operating_point.target_fpr
        return draw.roc_figure(curves, target, facts.result.scores.get("test", Split()))

    return _figure("roc", drawn)


def _histogram(facts: RunFacts) -> Figure:
    def drawn() -> Any:
        test = _scored(facts).get("test")
        splits = {split_title(facts, name): scores for name, scores in scored_splits(facts)}
        return draw.scores_figure(test, facts.result.operating_point, splits)

    return _figure("scores", drawn)


# ------------------------------------------------------------------------------------------------
# How values are written.


def _metric(scores: Split | FloorScores, name: str, form: str = ".3f") -> Cell:
    """Return a score with its interval."""
    return Cell(scores.metrics.get(name), form, scores.intervals.get(name))


def _said(value: Cell) -> str:
    return str(value) or "undefined"


def _difference(values: Sequence[float | None] | None) -> Cell:
    """Return a difference, which stands before its interval, as a cell; 0 has no sign.

    >>> str(_difference([0.02, 0.01, 0.03])), str(_difference([-0.0002, None, None]))
    ('+0.020 (+0.010 to +0.030)', '0.000')
    """
    if not values or values[0] is None:
        return Cell()
    return Cell(values[0], "+.3f" if abs(values[0]) >= 0.0005 else "z.3f", values[1:])


def _percent(value: float | None) -> str:
    return "an unknown rate" if value is None else f"{100 * value:.3g} %"


def _place(name: str) -> str:
    return BASELINES.get(name, name)


# ------------------------------------------------------------------------------------------------
# The model beside baselines.


class Standing(NamedTuple):
    """How the model stands to a baseline in one metric; `difference` is ours less theirs."""

    metric: str
    other: float
    difference: Sequence[float | None] | None
    standing: str


def standings(scores: Split) -> dict[str, list[Standing]]:
    """Return by baseline how the model stands in each score that both have; best baseline first.

    Frozen thresholds realise different false-positive rates, so TPRs are compared at one rate, and
    at the frozen thresholds only where nothing else is known.
    """
    at_one_rate = scores.metrics.get("tpr_at_fpr") is not None
    by_name: dict[str, list[Standing]] = {}
    for name, baseline in scores.floors.items():
        for metric in ("roc_auc", "tpr_at_fpr" if at_one_rate else "tpr"):
            ours, other = scores.metrics.get(metric), baseline.metrics.get(metric)
            if ours is not None and other is not None:
                difference = getattr(baseline.lead, metric)
                stands = standing_of(ours, other, difference)
                row = Standing(metric, other, difference, stands)
                by_name.setdefault(name, []).append(row)
    return dict(sorted(by_name.items(), key=lambda item: [-each.other for each in item[1]]))


def _is_beaten(rows: Iterable[Standing]) -> bool:
    return all(row.standing == AHEAD for row in rows)


def _standing_text(rows: Iterable[Standing]) -> str:
    """Write `ahead in TPR; level in ROC-AUC`: what stands alike together."""
    metrics: dict[str, list[str]] = {}
    for row in rows:
        metrics.setdefault(row.standing, []).append(DETECTOR_SCORES.short(row.metric))
    return "; ".join(f"{standing} in {' and '.join(names)}" for standing, names in metrics.items())


# ------------------------------------------------------------------------------------------------
# The opening.


def _verdict(facts: RunFacts, name: str, scores: Split) -> str:
    """Return in one sentence how good it is on a split, beside its best baseline and on sources."""
    area = _metric(scores, "roc_auc")
    if not str(area):
        return _rates_text(facts, name, scores)
    own = "data like its own (test)" if name == "test" else split_title(facts, name)
    text = f"On {own} the detector has a ROC-AUC of {area}"
    if best := next(iter(standings(scores).items()), None):
        baseline, rows = best
        why = "" if _is_beaten(rows) else f": {_standing_text(rows)}"
        text += f" and {_beats(rows)} the best baseline, {_place(baseline)} "
        text += f"({rows[0].other:.3f}{why})"
    sources = facts.result.sources
    if sources.left_out:
        whose = "it has" if sources.retrained else "its n-grams alone have"
        mean = written(sources.mean[STACK], ".3f")
        text += f"; on sources that training had not seen {whose} {mean}"
    return f"{text}."


def _beats(rows: Sequence[Standing]) -> str:
    if _is_beaten(rows):
        return "beats"
    is_ahead = any(row.standing == AHEAD for row in rows)
    return "beats in part" if is_ahead else "does not beat"


def _rates_text(facts: RunFacts, name: str, scores: Split) -> str:
    """Return ROC-AUC, TPR and realised FPR of a split, beside its best baseline."""
    where = split_title(facts, name)
    if scores.n_ai == 0 or scores.n_human == 0:
        missing, metric = ("AI", "fpr") if scores.n_ai == 0 else ("human", "tpr")
        rate, title = _said(_metric(scores, metric, "share")), DETECTOR_SCORES.short(metric)
        return f"No ROC-AUC on {where}, which has no {missing} program: {title} {rate}."
    target = facts.result.operating_point.target_fpr
    text = (
        f"ROC-AUC {_said(_metric(scores, 'roc_auc'))} on {where}, and TPR "
        f"{_said(_metric(scores, 'tpr'))} at a realised false-positive rate of "
        f"{_said(_metric(scores, 'fpr', 'share'))}"
        + ("" if target is None else f", promised {_percent(target)}")
    )
    rows = standings(scores)
    if not rows:
        return f"{text}."
    best = next(iter(rows))
    values = ", ".join(f"{DETECTOR_SCORES.short(row.metric)} {row.other:.3f}" for row in rows[best])
    title = f"the best baseline, {_place(best)} ({values})"
    if _is_beaten(rows[best]):
        return f"{text}; it beats {title}{', in both' if len(rows[best]) > 1 else ''}."
    return f"{text}; it {_beats(rows[best])} {title}: {_standing_text(rows[best])}."


def _sources_text(facts: RunFacts) -> str:
    """Return how members do on sources that were left out, the best one named; "" without any."""
    sources = facts.result.sources
    if not sources.left_out:
        return ""
    n, means = len(sources.left_out), dict(sources.mean)
    ours = means.pop(STACK)
    best = max(means, key=lambda name: means[name])
    areas = [one.metrics["roc_auc"] for one in sources.left_out.values()]
    spread = f"{min(areas):.3f} to {max(areas):.3f}"
    member = f"the best member, {_place(best)}, {means[best]:.3f}"
    if sources.retrained:
        return (
            f"On sources that training had not seen, the mean ROC-AUC of the sum of all members is "
            f"{ours:.3f} ({n} sources, {spread}), of {member}."
        )
    return (
        f"On sources that training had not seen, n-grams alone have a mean ROC-AUC of {ours:.3f} "
        f"({n} sources, {spread}; {member}); the encoder was not trained without them "
        "(evaluate_sources=full)."
    )


def _sources_figure(facts: RunFacts) -> KeyFigure | None:
    sources = facts.result.sources
    if not sources.left_out:
        return None
    whose = "" if sources.retrained else " of n-grams"
    note = f"mean of {len(sources.left_out)} sources left out of training"
    return KeyFigure(f"ROC-AUC{whose} on unseen sources", written(sources.mean[STACK], ".3f"), note)


def _sources(facts: RunFacts) -> Section:
    """Return each source as one that training had not seen, by member."""
    sources, rows = facts.result.sources, []
    ours = "sum of all" if sources.retrained else "sum of n-grams"
    for source, scores in sources.left_out.items():
        for name, values in _scorers(scores):
            lead = FloorLead() if name == MODEL else values.lead
            row = {"source": source[:80], "scorer": ours if name == MODEL else _place(name)}
            row |= {metric: _metric(values, metric) for metric in ("roc_auc", "tpr_at_fpr")}
            row |= {"fpr": _metric(values, "fpr", "share")}
            rows.append(row | {"difference": _difference(lead.roc_auc)})
    means = [
        {"scorer": ours if name == STACK else _place(name), "roc_auc": Cell(value, ".3f")}
        for name, value in sources.mean.items()
    ]
    without = (
        "an encoder was trained without the source, too"
        if sources.retrained
        else "the encoder was not trained anew, so it is not in this table"
    )
    if sources.retrained and facts.result.settings.score == "auto":
        without += "; the score was chosen by these very figures, so its own is slightly optimistic"
    note = (
        "Each source with members that were fitted without it, on all of its programs: "
        f"{without}. Thresholds are those of the other sources' validation humans. Difference: "
        "ROC-AUC of the sum minus that member's."
    )
    content = [Table("source_means", means, HEADS), Table("sources", rows, HEADS)]
    return Section("Sources that training had not seen", content, "sources", note)


def _similarity_verdict(facts: RunFacts) -> str:
    main = _main_retrieval(facts)
    if main is not None:
        return _retrieval_text(main)
    area = next(_pair_rows(facts), {}).get("roc_auc")
    return f"Pairs of the same task: ROC-AUC {area}." if area else sections.unscored(facts)


def _key_figures(facts: RunFacts, name: str, scores: Split) -> list[KeyFigure]:
    where, target = split_title(facts, name), facts.result.operating_point.target_fpr
    rows = standings(scores)
    best = next(iter(rows), "")
    notes = {"roc_auc": "", "fpr": "" if target is None else f"promised {_percent(target)}"}
    if best:
        notes["roc_auc"] = f"best baseline {rows[best][0].other:.3f}"
    forms, figures = {"roc_auc": ".3f", "fpr": "share"}, []
    for metric, note in notes.items():
        value, edges = scores.metrics.get(metric), scores.intervals.get(metric)
        if value is not None:
            note = "; ".join(filter(None, [interval(edges, forms[metric]), note]))
            title = f"{DETECTOR_SCORES.short(metric)} on {where}"
            figures.append(KeyFigure(title, written(value, forms[metric]), note))
    return figures


def _mrr_figure(facts: RunFacts) -> KeyFigure | None:
    main = _main_retrieval(facts)
    if main is None or main.mrr is None:
        return None
    note = f"{interval(main.mrr_interval)}, {count(main.pool_size)} programs in the pool"
    return KeyFigure("MRR of similarity", f"{main.mrr:.3f}", note.strip(", "))


def _caveats(facts: RunFacts) -> list[str]:
    """Return what to hold against the verdict, the first of which opens the report."""
    return [*filter(None, [sections.caveat(facts.result)]), *_elsewhere(facts)]


# ------------------------------------------------------------------------------------------------
# Scores, baselines, and the promise of the threshold.


def _scores(facts: RunFacts) -> Section:
    rows, shown, main = [], DETECTOR_SCORES.names("test", PAGE), _main_split(facts)
    for split, scores in scored_splits(facts):
        for name in (name for name in shown if name in scores.metrics):
            value = scores.metrics[name]
            label = "–" if value is None else ""
            cell = Cell(value, ".3f", scores.intervals.get(name), label)
            metric = Cell(name, label=DETECTOR_SCORES.title(name))
            rows.append({"split": split, "metric": metric, "value": cell})
    sizes = [
        f"{split_title(facts, name)} {count(scores.n_human)} human and {count(scores.n_ai)} "
        f"AI programs" + (f" of {count(scores.n_tasks)} tasks" if scores.n_tasks else "")
        for name, scores in scored_splits(facts)
        if scores.n_human is not None and scores.n_ai is not None
    ]
    note = (
        "AI is the positive class; all at the frozen threshold, but for the areas. Intervals: "
        "95 %, by resampling tasks; Clopper-Pearson for FPR, which takes human programs as "
        "independent and so is too narrow where tasks or people repeat. TPR: the share of AI "
        "programs that are called AI; FPR: that of human programs; TPR at promised FPR: with a "
        "threshold that gives this rate on the split itself, so that scorers can be compared. A "
        "dash: undefined, as the split has one class."
    )
    bins = [
        {"split": split} | {key: one.get(key) for key in ("low", "high", "n", "mean_p", "share_ai")}
        for split, scores in scored_splits(facts)
        for one in scores.reliability
    ]
    return Section(
        "Scores",
        [
            Table("scores", rows, spread=("split", "value")),
            *texts([_sources_text(facts)]),
            *texts(
                [_rates_text(facts, *main)] if main and str(_metric(main[1], "roc_auc")) else []
            ),
            *texts([_score_text(facts), f"Scored: {'; '.join(sizes)}." if sizes else ""]),
            _histogram(facts),
            Section("Bins of probabilities", [Table("reliability", bins)], in_text=False),
        ],
        "scores",
        note,
        is_open=True,
    )


def _score_text(facts: RunFacts) -> str:
    """Say what the score is made of, and why that; "" of a run that knew one score alone."""
    score = facts.result.score
    if not score.uses:
        return ""
    parts = [
        f"{weight:g} x {_place(name).removeprefix('the ')}"
        for name, weight in score.weights.items()
    ]
    made = f"standardised: {' + '.join(parts)}" if len(parts) > 1 else _place(score.uses)
    return (
        f"The score, also of detect, calibrate and the sheets, is {made}. Reason: {score.reason}."
    )


def _baselines(facts: RunFacts) -> Section:
    """Return the model and its baselines by split, each at its own frozen threshold.

    On valid every threshold was chosen, so nothing is compared there.
    """
    areas, rates, frozen = [], [], []
    for split, scores in scored_splits(facts):
        for name, values in _scorers(scores) if split != "valid" else ():
            if name != MODEL and values.skipped:
                continue
            lead = FloorLead() if name == MODEL else values.lead
            row = {"split": split, "scorer": _place(name)}
            plain = {rate: Cell(values.metrics.get(rate), ".3f") for rate in ("tpr", "fpr")}
            for metric, rows in (("roc_auc", areas), ("tpr_at_fpr", rates)):
                difference = getattr(lead, metric)
                ours, other = scores.metrics.get(metric), values.metrics.get(metric)
                cells = {metric: _metric(values, metric), "difference": _difference(difference)}
                is_own = name == MODEL
                cells["standing"] = "" if is_own else standing_of(ours, other, difference)
                rows += [row | cells] if other is not None else []
            frozen.append(row | plain)
    note = (
        "Baselines: cheap scorers, trained on the same rows, that a model should beat; each has "
        "its own threshold, frozen at the same promise: TPR and FPR are of that. Difference: ours "
        "minus the baseline's, on the same resamples. Ahead or behind: its 95 % interval leaves "
        "out 0; level: it holds 0."
    )
    content = [
        Table("floors", areas, HEADS),
        Table("floors_at_fpr", rates, HEADS),
        Table("floors_frozen", frozen, {"tpr": "TPR at its threshold", "fpr": "FPR"}),
        *_skipped(s for _, scores in scored_splits(facts) for s in scores.floors.items()),
    ]
    return Section("Beside cheap scorers", content, "baselines", note)


def _skipped(floors: Iterable[tuple[str, Any]]) -> list[Text]:
    """Say which baselines have no scores, and why."""
    why = {f"{_place(name)} ({floor.skipped})": None for name, floor in floors if floor.skipped}
    return [Text(f"Not scored: {'; '.join(why)}.", NOTE)] if why else []


def _scorers(scores: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model and each baseline, where there are any, with their scores."""
    yield from {MODEL: scores, **scores.floors}.items() if scores.floors else ()


class Promise(NamedTuple):
    """The false-positive rate of a split beside the promised one.

    `verdict`: broken, where the whole interval lies above the promise; kept, where it lies below;
    else open.
    """

    split: str
    scores: Split
    promised: float
    verdict: str


def _promises(facts: RunFacts) -> Iterator[Promise]:
    """Yield the promise of the threshold beside what each split realised, but for valid."""
    target = facts.result.operating_point.target_fpr
    for name, scores in scored_splits(facts):
        if target is None or scores.metrics.get("fpr") is None or name == "valid":
            continue  # the threshold was chosen on valid: there it holds by construction
        low, high = scores.intervals.get("fpr") or (None, None)
        verdict = BROKEN if (low or 0) > target else OPEN
        verdict = KEPT if high is not None and high <= target else verdict
        yield Promise(name, scores, target, verdict)


def _broken_text(facts: RunFacts, promise: Promise) -> str:
    """Say that the promise of the threshold is broken on a split."""
    where, scores = split_title(facts, promise.split), promise.scores
    humans = f" of {count(scores.n_human)}" if scores.n_human is not None else ""
    tasks = f" of {count(scores.n_tasks)} tasks" if scores.n_tasks is not None else ""
    realised = (
        f"{_said(_metric(scores, 'fpr', 'share'))}{humans} human programs{tasks} are called AI, "
        f"promised {_percent(promise.promised)}"
    )
    return (
        f"The promise is broken on {where}: {realised}. Flag nobody like them with this "
        "threshold; nbhelpers calibrate (in a shell) fixes one on their own human code."
    )


def _promise(facts: RunFacts) -> Section:
    rows = [
        {
            "split": split,
            "human_programs": scores.n_human,
            "tasks": scores.n_tasks,
            "promised": Cell(promised, label=_percent(promised)),
            "realised": _metric(scores, "fpr", "share"),
            "promise": verdict,
        }
        for split, scores, promised, verdict in _promises(facts)
    ]
    precision = [
        {
            "split": split,
            "share_of_AI": Cell(prevalence, label=f"{100 * float(prevalence):g} %"),
            "precision": Cell(values.precision, ".3f", values.precision_interval),
        }
        for split, scores in scored_splits(facts)
        for prevalence, values in scores.at_prevalence.items()
    ]
    note = (
        "Kept: the whole interval lies below the promise; broken: above it; else open. It takes "
        "programs as independent: of few tasks, or few people, even a kept promise says little. "
        "Precision, the share of calls that are right, depends on how much of the code is AI code. "
        "Undecided: neither called AI nor cleared."
    )
    content = [
        listing("threshold", _point(facts), {"what": ""}),
        Table("promise", rows, {"promised": "promised FPR", "realised": "realised FPR"}),
        Table("prevalence", precision, spread=("split", "precision")),
    ]
    return Section("Threshold, promise and precision", content, "promise", note)


def _point(facts: RunFacts) -> dict[str, Any]:
    """Return the threshold, what it was chosen on, and what that can promise."""
    point = facts.result.operating_point
    target, promised = point.target_fpr, point.promised_fpr
    humans = "" if point.n_humans is None else f"{count(point.n_humans)} human programs"
    rows = {
        "threshold, frozen": Cell(point.threshold),
        "chosen on": ", ".join(filter(None, [humans, point.chosen_on])),
        "promised false-positive rate": Cell(target, label=_percent(target) if target else ""),
        "realised there": Cell(point.valid_fpr, "share", point.valid_fpr_interval),
        "what so many humans promise, one-sided": Cell(promised, "share"),
    }
    if target and promised is not None and promised > target and 0 < target < 1:
        rows["humans needed for the promise, none above the threshold"] = humans_needed(target)
    rows["temperature, fitted on valid"] = Cell(point.temperature, ".3g")
    if point.abstain and None not in point.abstain:
        rows["undecided: probabilities"] = interval(point.abstain, ".4g")
        rows["of validation's AI programs below these, at most"] = Cell(
            point.target_miss_rate, label=_percent(point.target_miss_rate)
        )
    return rows


# ------------------------------------------------------------------------------------------------
# Edits and slices.


def _edits(facts: RunFacts) -> Section:
    """Return what each edit does: to AI programs, and to human programs."""
    edits = facts.result.scores.get("test", Split()).edits
    of_ai, of_humans = [], []
    for name, edit in edits.items():
        for scorer, scores in {MODEL: edit, **edit.floors}.items():
            row = {"edit": Cell(name, label=EDITS.get(name, name)), "scorer": _place(scorer)}
            before, after, loss = scores.tpr_unedited, scores.tpr, scores.tpr_loss_interval
            lost = None if before is None or after is None else before - after
            if lost is not None:
                rates = {"TPR_before": Cell(before, ".3f"), "TPR_after": Cell(after, ".3f")}
                rates |= {"lost": _difference([lost, *(loss or (None, None))])}
                of_ai.append(row | {"programs": edit.n_ai} | rates)
            if scores.fpr is not None:
                rates = {"FPR_before": Cell(scores.fpr_unedited, ".3f")}
                rates |= {"FPR_after": Cell(scores.fpr, ".3f", scores.fpr_interval)}
                of_humans.append(row | {"programs": edit.n_human} | rates)
    note = (
        "Test programs after an edit that keeps their meaning, at the same threshold. Before and "
        "after are the programs that the edit changes."
    )
    content = [
        Table("edits", of_ai, {"programs": "AI", "lost": "TPR lost"}),
        Table("edits_of_humans", of_humans, {"programs": "human"}),
        _figure("edits", lambda: draw.edits_figure(edits)),
    ]
    return Section("Edits", content, "edits", note)


def _slices(facts: RunFacts) -> Section:
    """Return where the detector works, and where it fails worst."""
    rows, means = [], []
    for split, scores in scored_splits(facts):
        for one in scores.slices:
            place = (one.by, one.value)
            worst = [name for name, w in _worst(scores) if (w.by, w.value) == place]
            row = {"split": split, "by": str(one.by or ""), "value": str(one.value or "")[:80]}
            row |= {"n_human": one.n_human, "n_ai": one.n_ai, "roc_auc": Cell(one.roc_auc, ".3f")}
            row |= {"tpr": Cell(one.tpr, ".3f", one.tpr_interval)}
            row |= {"fpr": Cell(one.fpr, ".3f", one.fpr_interval)}
            row |= {"worst": ", ".join(map(DETECTOR_SCORES.short, worst))}
            rows.append(row)
        for kind, values in scores.macro.items():
            mean = {name: Cell(values.get(name), ".3f") for name in ("roc_auc", "tpr", "fpr")}
            is_known = any(cell.value is not None for cell in mean.values())
            means += [{"split": split, "by": kind} | mean] if is_known else []
    main = next(scored_splits(facts), None)
    test, target = facts.result.scores.get("test", Split()), facts.result.operating_point.target_fpr
    content = [
        *texts([_worst_text(main[1])] if main else []),
        _figure("slices", lambda: draw.slices_figure(test.slices, target)),
        Table("slices", rows, HEADS),
        Section("Means, each slice counted once", [Table("macro", means, HEADS)], in_text=False),
    ]
    return Section("Slices", content, "slices", in_text=False)


def _worst(scores: Split) -> Iterator[tuple[str, Slice]]:
    """Yield the worst slice of each score, where another large slice does better."""
    classes = {"tpr": ("n_ai",), "fpr": ("n_human",), "roc_auc": ("n_ai", "n_human")}
    for name, counts in classes.items():
        worst = scores.worst.get(name)
        value = getattr(worst, name, None)
        large = {
            getattr(one, name)
            for one in scores.slices
            if all((getattr(one, number) or 0) >= MIN_ROWS for number in counts)
        }
        if worst is not None and value is not None and large - {None, value}:
            yield name, worst


def _worst_text(scores: Split) -> str:
    clauses = []
    for name, one in _worst(scores):
        cell = Cell(getattr(one, name), ".3f", getattr(one, f"{name}_interval", None))
        clauses.append(f"{DETECTOR_SCORES.short(name)} {cell} at {one.by} = {one.value}")
    limit = f"of at least {MIN_ROWS} programs of each class that counts"
    return f"Worst slices, {limit}: {'; '.join(clauses)}." if clauses else ""


# ------------------------------------------------------------------------------------------------
# The similarity space.


def _main_retrieval(facts: RunFacts) -> Retrieval | None:
    """Return the row of all languages on test, else the first one."""
    rows = facts.result.similarity.retrieval
    order = sorted(rows, key=lambda row: (not row.query == row.pool == "all", row.split != "test"))
    return next(iter(order), None)


def _direction(row: Retrieval) -> str:
    """Write which queries look into which pool."""
    query, pool = row.query or "all", row.pool or "all"
    return "all languages" if query == pool == "all" else f"{query} to {pool}"


def _retrieval_text(row: Retrieval) -> str:
    clauses = [
        f"MRR {_said(Cell(row.mrr, '.3f', row.mrr_interval))}, MAP@R "
        f"{_said(Cell(row.map_at_r, '.3f', row.map_at_r_interval))} for {count(row.n_queries)} "
        f"queries in a pool of {count(row.pool_size)} programs ({row.split or 'test'}, "
        f"{_direction(row)})"
    ]
    for name, baseline in row.floors.items():
        stands = standing_of(row.mrr, baseline.mrr, baseline.lead)
        if baseline.mrr is not None and stands:
            verb, difference = "beats" if stands == AHEAD else "does not beat", baseline.lead
            by = f", difference {cell}" if str(cell := _difference(difference)) else ""
            clauses.append(f"it {verb} {_place(name)} (MRR {baseline.mrr:.3f}{by})")
    return f"{'; '.join(clauses)}."


def _pair_difference(baseline: PairFloor) -> Cell:
    """Return the difference in ROC-AUC, which stands alone or by metric."""
    lead = baseline.lead
    return _difference(lead.get("roc_auc") if isinstance(lead, Mapping) else lead)


def _similarity(facts: RunFacts) -> list[Section]:
    main = _main_retrieval(facts)
    note = (
        "Every query looks for programs of its own task among the others of the pool. MRR: the "
        "mean of 1 / rank of the first of these. MAP@R: the mean precision over the first R ranks, "
        "R being their number. Ahead or behind: the interval of the difference leaves out 0; "
        "level: it holds 0. Raw encoder: the same model before this training."
    )
    pair_note = (
        "Pairs of one task against hard negatives of another: same language, like length. The "
        "threshold is from validation tasks."
    )
    retrieval = [*texts([_retrieval_text(main)] if main else []), *_retrieval_tables(facts)]
    floors = facts.result.similarity.pairs.floors
    pairs = [Table("pairs", list(_pair_rows(facts)), HEADS), *_skipped(floors.items())]
    return [
        Section("Similarity: finding programs of the same task", retrieval, "retrieval", note),
        Section("Similarity: pairs of the same task", pairs, "pairs", pair_note),
    ]


def _retrieval_tables(facts: RunFacts) -> list[Block]:
    """Return one row per retrieval and scorer, baselines below the model; all languages first."""
    ranks, precisions = [], []
    rows = facts.result.similarity.retrieval
    for row in sorted(rows, key=lambda row: row.query != "all"):
        for name, values in _scorers(row):
            of_pool = {"split": row.split, "query": row.query, "pool": row.pool}
            scorer = {"scorer": _place(name)}
            if values.mrr is not None:
                lead = None if name == MODEL else values.lead
                mrr = Cell(values.mrr, ".3f", values.mrr_interval)
                stands = "" if name == MODEL else standing_of(row.mrr, values.mrr, lead)
                cells = {"mrr": mrr, "difference": _difference(lead), "standing": stands}
                ranks.append(of_pool | scorer | cells)
                of_pool |= {"queries": row.n_queries, "pool_size": row.pool_size}
                map_at_r = Cell(values.map_at_r, ".3f", values.map_at_r_interval)
                precisions.append(of_pool | scorer | {"map_at_r": map_at_r})
    floors = [floor for row in rows for floor in row.floors.items()]
    return [
        Table("retrieval", ranks, HEADS),
        Table("retrieval_precision", precisions, HEADS),
        *_skipped(floors),
    ]


def _pair_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    pairs = facts.result.similarity.pairs
    for name, values in {MODEL: pairs, **pairs.floors}.items() if pairs.roc_auc is not None else ():
        area = Cell(values.roc_auc, ".3f", values.roc_auc_interval)
        if values.roc_auc is None:
            continue
        others = ("average_precision", "accuracy", "f1")
        yield {
            "scorer": _place(name),
            "roc_auc": area,
            "difference": Cell() if name == MODEL else _pair_difference(values),
            **{other: Cell(getattr(values, other), ".3f") for other in others},
        }


# ------------------------------------------------------------------------------------------------
# What to hold against the scores.


def _doubts(facts: RunFacts) -> list[str]:
    """Return what to hold against the scores, but for what the opening has already."""
    note, known = facts.result.data.note, facts.result.operating_point.warnings
    sentences = [str(note)] if facts.is_sample and note else []
    sentences += _caveats(facts)[1:]
    sentences += [*_few_programs(facts), *_worst_edits(facts)]
    if facts.result.settings.class_weights == "balanced":
        sentences.append(
            "Both classes weigh alike in training, so a probability is meant for equal shares of "
            "human and AI code; where the shares differ, that adds to the calibration error."
        )
    skipped = facts.result.training.skipped_steps
    if skipped:
        sentences.append(f"{count(skipped)} optimizer steps were skipped, as gradients overflowed.")
    return sentences + [text for text in facts.result.warnings if text not in known]


def _elsewhere(facts: RunFacts) -> Iterator[str]:
    """Tell how the detector does on data of another kind, beside test."""
    splits = dict(scored_splits(facts))
    other = splits.get("held_out")
    if "test" in splits and other and other.metrics.get("roc_auc") is not None:
        yield (
            f"On {split_title(facts, 'held_out')} ROC-AUC is {_metric(other, 'roc_auc')} and "
            f"TPR {_said(_metric(other, 'tpr'))}."
        )


def _few_programs(facts: RunFacts) -> Iterator[str]:
    few: dict[str, list[str]] = {}
    for name, scores in scored_splits(facts):
        where = split_title(facts, name)
        for n, title in ((scores.n_human, "human"), (scores.n_ai, "AI")):
            if n == 0 and name != "unseen_humans":
                yield f"No {title} program in {where}: what needs both classes is undefined."
            elif n and n < FEW:
                few.setdefault(where, []).append(f"{count(n)} {title}")
    if few:
        clauses = [f"{' and '.join(counts)} programs in {where}" for where, counts in few.items()]
        yield f"Only {listed(clauses)}: intervals are rough."


def _worst_edits(facts: RunFacts) -> Iterator[str]:
    """Name the edit that costs most of the detected programs, where it is half of them."""
    for name, scores in scored_splits(facts):
        known = {
            edit: (values.tpr_unedited, values.tpr)
            for edit, values in scores.edits.items()
            if values.tpr_unedited and values.tpr is not None
        }
        edit = max(known, key=lambda edit: known[edit][0] - known[edit][1], default="")
        before, after = known.get(edit, (0.0, 0.0))
        if edit and before - after >= LARGE_LOSS * before:
            yield (
                f"An edit hides AI programs: once they are {EDITS.get(edit, edit)}, TPR on "
                f"{split_title(facts, name)} falls from {before:.3f} to {after:.3f}."
            )


def _audit_text(facts: RunFacts) -> str:
    """Return the verdict of the audit with its reasons."""
    audit = facts.result.audit
    if not audit.verdict:
        return ""
    went_on = facts.result.settings.on_failed_audit == "go_on" and audit.verdict == "hopeless"
    text = f"Audit of the data: {audit.verdict}"
    text += ", and the run went on as it was told" if went_on else ""
    reasons = "; ".join(reason.rstrip(".") for reason in audit.reasons)
    return f"{text}: {reasons}." if reasons else f"{text}."


def _audit(facts: RunFacts) -> Section:
    audit = facts.result.audit
    rows = [
        {
            "feature": str(one.feature or "")[:80],
            "AUC_raw": Cell(one.raw, ".3f"),
            "AUC_canonical": Cell(one.canonical, ".3f"),
            "higher_in": one.higher_in,
        }
        for one in audit.facts.features[:MOST_FEATURES]
    ]
    note = (
        "Area under the ROC curve of each of these features alone, of the code as it is and in the "
        "form that the model reads."
    )
    content = [
        *texts([_audit_text(facts), *audit.warnings]),
        *([Text(note, NOTE)] if rows else []),
        Table("features", rows),
    ]
    return Section("Audit of the data", content, "audit")


# ------------------------------------------------------------------------------------------------
# Cost and data.


def _compiled(facts: RunFacts) -> dict[str, Any]:
    """Return how often layers were compiled anew, and how compiled compares with eager."""
    compiled = facts.result.compile
    test = {f"compiled beside eager, {k}": v for k, v in compiled.self_test.items() if k != "is_on"}
    rows = {"torch.compile": {True: "on", False: "off"}.get(compiled.is_on)}
    rows |= {"recompiles": compiled.recompiles, **test}
    return {what.replace("_", " "): value for what, value in rows.items()}


def _data(facts: RunFacts) -> list[Block]:
    """Return the programs by language and the like, what splits share, and what was cut."""
    data, rows = facts.result.data, []
    for split, values in data.splits.items():
        for kind in ("languages", "sources", "generators"):
            for value, labels in getattr(values, kind).items():
                row = {"split": split, "by": kind.removesuffix("s"), "value": value}
                rows.append(row | {key: labels.get(key) for key in ("human", "ai", "unlabelled")})
    shared = {
        pair: ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in kinds.items() if n)
        for pair, kinds in data.overlap.items()
    }
    common = "; ".join(f"{pair} {kinds}" for pair, kinds in shared.items() if kinds)
    nothing = "The splits share no code, nearly equal code, task or author." if shared else ""
    length = facts.result.settings.seq_len
    n = data.truncated or 0
    verb = "is" if n == 1 else "are"
    cut = f"{number(n, 'program')} {verb} longer than {count(length)} tokens, and cut."
    counts = ("rows", "human", "ai", "unlabelled", "tasks")
    return [
        Table("data", sections.split_rows(facts, counts), HEADS),
        Table("data_parts", rows, HEADS),
        *texts([f"Splits share: {common}." if common else nothing, cut if n else ""]),
    ]
