"""The report of clone detection: what it opens with, and its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count, interval, share, written
from nbhelpers.common.result_files import FloorScores, PointScores, Split
from nbhelpers.metrics.registry import BASELINES, CLONES_SCORES
from nbhelpers.reports import figures, sections
from nbhelpers.reports.blocks import Block, Figure, KeyFigure, Section, Summary, Table, texts
from nbhelpers.reports.figures import MODEL
from nbhelpers.reports.sections import ABOVE, AHEAD, BEHIND, LEVEL, NOT_ABOVE, standing_of

if TYPE_CHECKING:
    from nbhelpers.reports.facts import RunFacts

FEW_FUNCTIONS = 100
CURVES = "Precision-recall and ROC curve on test, pairs as given; baselines at their thresholds."
CRITIQUES = (
    "Two critiques belong beside any score on BigCloneBench. Krinke and Ragkhitwetsagul "
    "(arXiv 2505.04311) checked 406 of its weak pairs by hand and found 93 % mislabelled; "
    "Sonnekalb et al. (arXiv 2208.12588) show that F1 falls clearly on functionality that was not "
    "in training."
)
RATES = {
    "pairs_per_s": ("pairs", "per s"),
    "useful_tokens_per_s": ("useful tokens", "per s"),
    "padded_tokens_per_s": ("tokens with padding", "per s"),
    "useful_share": ("useful tokens per padded token", "this run"),
    "fixed_padding_useful_share": ("useful tokens per padded token", "if padded to seq_len"),
}
HEADS = {"f1": "F1", "roc_auc": "ROC-AUC", "pr_auc": "PR-AUC", "difference": "difference in F1"}
HEADS |= {"standing": "it is"}
ORDERS = ("given", "reversed", "mean")
BINARY = ("precision", "recall", "f1")
VERBS = {
    **{AHEAD: "beats", LEVEL: "is level with", BEHIND: "is behind"},
    **{ABOVE: "scores above", NOT_ABOVE: "scores no higher than"},
}


def summary(facts: RunFacts) -> Summary:
    """Return what the report opens with."""
    splits = sections.ordered_splits(facts)
    curves = Figure("curves", CURVES, lambda: figures.curves_figure(facts))
    alarms = [text for name, scores in splits if (text := _chance(name, scores))]
    return Summary(
        title=sections.title(facts),
        verdict=_verdict(splits) if splits else sections.standing(facts),
        alarms=[*alarms, *sections.problems(facts)],
        caveat=_caveat(facts),
        figures=sections.present(
            _main_score(*splits[0]) if splits else None,
            sections.memory_figure(facts),
            sections.time_figure(facts),
            sections.data_figure(facts, "pairs"),
        ),
        picture=curves if splits else _loss(facts),
        where=sections.where(facts),
    )


def _loss(facts: RunFacts) -> Figure:
    caption = "Training loss per logged step, and F1 on valid while training."
    loss, f1 = {"loss": "loss (mean cross-entropy per pair, nats)"}, {"f1": "F1 (binary)"}
    return Figure("loss", caption, lambda: figures.loss_figure(facts.result.training, loss, f1))


def blocks(facts: RunFacts) -> list[Block]:
    """Return the sections of the report."""
    return [
        sections.targets(facts),
        _scores(facts),
        _baselines(facts),
        *_parts(facts),
        sections.doubts(_doubts(facts)),
        *sections.cost(facts, RATES, _loss(facts)),
        *sections.origin(facts, [Table("data", _data_rows(facts))], _functions_of_data(facts)),
    ]


# ------------------------------------------------------------------------------------------------
# The opening.


def _given(scores: Split) -> dict[str, float | None]:
    """Return the scores of pairs in the order in which the data holds them."""
    return scores.orders.get("given", {})


def _verdict(splits: list[tuple[str, Split]]) -> str:
    """Return F1 on test beside its best baseline, and the same of what is unlike training."""
    (name, scores), *rest = splits
    edges = interval(scores.intervals.get("f1"))
    f1 = written(_given(scores).get("f1"), ".3f") or "undefined"
    text = f"F1 {f1} on {name} (binary{f', 95 % interval {edges}' if edges else ''})"
    text += f": it {beside}" if (beside := _beside(scores)) else ""
    unseen = dict(rest).get("test_unseen")
    if unseen is not None and (f1 := written(_given(unseen).get("f1"), ".3f")):
        beside = f", where it {beside}" if (beside := _beside(unseen)) else ""
        text += f". On families of tasks that are not in training F1 is {f1}{beside}"
    return f"{text}."


def _beside(scores: Split) -> str:
    """Say how a split stands to its best baseline; nothing without one."""
    best = _best_baseline(scores)
    if best is None:
        return ""
    title = f"{BASELINES.get(best, best)} (F1 {scores.floors[best].f1:.3f})"
    verb = VERBS[_standing(scores, scores.floors[best])]
    return f"{verb} the best baseline, {title}"


def _best_baseline(scores: Split) -> str | None:
    f1 = {name: each.f1 for name, each in scores.floors.items() if each.f1 is not None}
    return max(f1, key=f1.__getitem__) if f1 and _given(scores).get("f1") is not None else None


def _main_score(name: str, scores: Split) -> KeyFigure:
    edges, best = interval(scores.intervals.get("f1")), _best_baseline(scores)
    notes = [f"{edges}" if edges else ""]
    notes.append(f"best baseline {scores.floors[best].f1:.3f}" if best else "")
    value = written(_given(scores).get("f1"), ".3f") or "undefined"
    return KeyFigure(f"F1 on {name}", value, "; ".join(filter(None, notes)))


def _caveat(facts: RunFacts) -> str:
    splits = sections.ordered_splits(facts)[:1]
    disputed = "Its labels are disputed: see what to hold against these scores."
    few = (text for name, scores in splits for text in _few(name, scores))
    own = [disputed] if _is_bigclonebench(facts) and splits else few
    return sections.caveat(facts.result) or next(iter(own), "")


def _chance(name: str, scores: Split) -> str:
    """Return that the ranking of a test split is no better than chance; nothing where it is."""
    edges = interval(scores.intervals.get("roc_auc"))
    if not edges or (scores.intervals["roc_auc"] or [1])[0] > 0.5 or not name.startswith("test"):
        return ""
    value = written(_given(scores).get("roc_auc"), ".3f")
    return f"Not better than chance on {name} (ROC-AUC {value}, {edges})."


# ------------------------------------------------------------------------------------------------
# Scores, beside baselines and by part.


def _scores(facts: RunFacts) -> Section:
    rows = []
    for split, scores in sections.ordered_splits(facts):
        for name in (name for name in CLONES_SCORES.names() if name in _given(scores)):
            plain = name.removesuffix("_macro")
            cell = Cell(_given(scores)[name], ".3f", scores.intervals.get(name))
            average = "macro" if plain != name else "binary" if plain in BINARY else ""
            metric = Cell(plain, label=CLONES_SCORES.title(plain))
            rows.append({"split": split, "metric": metric, "average": average, "value": cell})
    note = (
        "As given: the two functions in the order in which the data holds them. Binary scores "
        "are of the class clone; macro is the mean over both classes: do not compare one with the "
        "other. In brackets 95 % intervals, from resampling functions, because pairs share them."
    )
    caption = "Scores by label, and how often a pair of a given score is a clone."
    return Section(
        "Scores, pairs as given",
        [
            Table("scores", rows, spread=("split", "value")),
            *texts([_size_of_splits(facts), _threshold(facts)]),
            Figure("scores", caption, lambda: figures.scores_figure(facts)),
        ],
        "scores",
        note,
        is_open=True,
    )


def _size_of_splits(facts: RunFacts) -> str:
    sizes = [
        f"{name} {count(scores.n_pairs)} pairs of {count(scores.n_functions)} functions, "
        f"{share(scores.prior)} clones"
        for name, scores in sections.ordered_splits(facts)
        if scores.n_pairs is not None
    ]
    return f"Scored: {'; '.join(sizes)}." if sizes else ""


def _threshold(facts: RunFacts) -> str:
    threshold = facts.result.threshold
    if threshold.value is None:
        return ""
    if threshold.chosen_on == "valid":
        return (
            f"The threshold {threshold.value:.4g} was chosen on valid and frozen for test: pairs "
            "above it are called clones; test pairs had no say in it."
        )
    return f"The threshold {threshold.value:.4g} was not chosen on valid."


def _baselines(facts: RunFacts) -> Section:
    note = (
        "Baselines: cheap scorers that a trained model should beat, each at its own threshold from "
        "valid. Difference: our F1 minus the baseline's with its 95 % interval. Ahead or behind: "
        "it leaves out 0; level: it holds 0."
    )
    rows = [
        row for name, scores in sections.ordered_splits(facts) for row in _against(name, scores)
    ]
    return Section("Beside cheap scorers", [Table("floors", rows, HEADS)], "baselines", note)


def _against(split: str, scores: Split) -> Iterator[dict[str, object]]:
    """Yield the model and each baseline of a split."""
    if not scores.floors:
        return
    own = PointScores(**_given(scores), intervals=scores.intervals)
    yield {"split": split, "scorer": MODEL, **_point(own)}
    for name, baseline in scores.floors.items():
        yield {
            "split": split,
            "scorer": BASELINES.get(name, name),
            **_point(baseline),
            "difference": Cell(baseline.lead.f1, "+.3f", baseline.lead.interval),
            "standing": _standing(scores, baseline),
            "note": baseline.skipped or "",
        }


def _point(scores: PointScores) -> dict[str, Cell]:
    f1 = Cell(scores.f1, ".3f", scores.intervals.get("f1"))
    return {"f1": f1, "roc_auc": Cell(scores.roc_auc, ".3f")}


def _standing(scores: Split, baseline: FloorScores) -> str:
    edges = baseline.lead.interval or (None, None)
    return standing_of(_given(scores).get("f1"), baseline.f1, (baseline.lead.f1, *edges))


def _parts(facts: RunFacts) -> list[Section]:
    """Return the scores at other shares of clones, by texts seen in train, and by order."""
    priors, strata, orders = [], [], []
    for split, scores in sections.ordered_splits(facts):
        own = PointScores(**_given(scores), intervals=scores.intervals, prior=scores.prior)
        for name, values in {"this sample": own, **scores.at_prior}.items():
            row = {"split": split, "prior": name, "share of clones": Cell(values.prior, "share")}
            rates = {key: Cell(getattr(values, key), ".3f") for key in ("precision", "recall")}
            f1 = Cell(values.f1, ".3f", values.intervals.get("f1"))
            priors.append(row | rates | {"f1": f1})
        for members, values in scores.strata.items():
            row = {"split": split, "texts seen in train": members, "pairs": values.n_pairs}
            row |= {"share of clones": Cell(values.prior, "share")}
            f1 = Cell(values.f1, ".3f", values.intervals.get("f1"))
            row |= {"f1": f1, "roc_auc": Cell(values.roc_auc, ".3f")}
            strata += [row] if values.n_pairs != 0 else []
        for order in (name for name in ORDERS if name in scores.orders):
            names = ("precision", "recall", "f1", "roc_auc", "pr_auc")
            row = {name: Cell(scores.orders[order].get(name), ".3f") for name in names}
            orders += [{"split": split, "order": order} | row] if len(scores.orders) > 1 else []
    return [
        Section(
            "At other shares of clones",
            [Table("priors", priors, HEADS)],
            "priors",
            "Prior: the share of clones among all pairs. Natural: an estimate, about that of "
            "BigCloneBench's full test list. Recall does not depend on it; precision and F1 do. "
            "Compare scores only at equal shares.",
        ),
        Section(
            "By texts seen in train",
            [Table("strata", strata, HEADS)],
            "strata",
            "Seen in train: how many of a pair's two texts (0, 1 or 2) also occur in train, white "
            "space aside. Pairs with none come nearest to a new code base.",
            in_text=False,
        ),
        Section(
            "Order of a pair",
            [Table("orders", orders, HEADS)],
            "orders",
            "Given: as in the data; reversed: the two functions swapped; mean: of both "
            "probabilities. The head reads in order; a clone does not depend on it.",
            in_text=False,
        ),
    ]


# ------------------------------------------------------------------------------------------------
# Doubts and data.


def _doubts(facts: RunFacts) -> list[str]:
    note, splits = facts.result.data.note, sections.ordered_splits(facts)
    sentences = [str(note)] if facts.is_sample and note else []
    for name, scores in splits:
        sentences += [*_few(name, scores), *_fewer_areas(name, scores)]
    sentences += [CRITIQUES] if _is_bigclonebench(facts) else []
    return sentences + [f"Warning: {warning}" for warning in facts.result.warnings]


def _few(name: str, scores: Split) -> Iterator[str]:
    if scores.n_functions is not None and scores.n_functions < FEW_FUNCTIONS:
        yield f"The {name} split has only {scores.n_functions} functions: its intervals are rough."


def _fewer_areas(name: str, scores: Split) -> Iterator[str]:
    """Say so where the areas of a long list have intervals from fewer resamples than the rest."""
    drawn, areas = scores.resamples.all, scores.resamples.areas
    if drawn is not None and areas is not None and areas < drawn:
        yield (
            f"The {name} split is long: the intervals of its two areas come from {areas:,} "
            f"resamples, the others from {drawn:,}."
        )


def _is_bigclonebench(facts: RunFacts) -> bool:
    """Say whether the data is BigCloneBench, by its source or by what was asked for."""
    names = (facts.result.data.source, facts.result.settings.data)
    spelled = [str(name).lower().replace("_", "").replace("-", "") for name in names]
    return any("bigclonebench" in name for name in spelled)


def _data_rows(facts: RunFacts) -> list[dict[str, object]]:
    rows = sections.split_rows(facts, ("pairs", "clones", "functions"))
    for row in rows:
        known = row["pairs"] and row["clones"] is not None
        row["share of clones"] = Cell(row["clones"] / row["pairs"] if known else None, "share")
    return rows


def _functions_of_data(facts: RunFacts) -> str:
    """Explain why the functions of the splits need not add up to those of the data."""
    functions = facts.result.data.n_functions
    if functions is None:
        return ""
    return (
        f"The data has {functions:,} functions. The table counts those that a split's pairs "
        "use: one without a pair counts nowhere, one in two splits counts in both."
    )
