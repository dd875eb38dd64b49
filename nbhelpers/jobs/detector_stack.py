"""The score that a detector is used by: its encoder, n-grams, or their sum, and why that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nbhelpers.common.pool import begin, worthwhile
from nbhelpers.data.canonical import canonical
from nbhelpers.data.layout_features import layout_features
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_inputs import LABELS, SCORED, Inputs
from nbhelpers.metrics.baselines import FLOORS, DetectorFloors, NgramFolds, fit_floors
from nbhelpers.metrics.detection import (
    Floor,
    choose_operating_point,
    score_detection,
    threshold_at_fpr,
)
from nbhelpers.metrics.registry import BASELINES
from nbhelpers.metrics.stack import ENCODER, NGRAMS, WEIGHTS, Stack
from nbhelpers.presets.schema import DetectorSettings

STACK = "stack"
MAX_COUNTED = 20_000  # programs that the n-grams without a source are fitted and scored on
TRAINED = ("train", "valid", "test")  # splits that share their sources
FIXED = (
    "fixed before this run: with MiniLM, on four sources left out, this sum was level with its "
    "best member and above the n-grams each time (docs/log/detector.md); evaluate_sources=full "
    "measures it on these data"
)

# ------------------------------------------------------------------------------------------------
# Each source of the data as one that the training has not seen.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A source that is left out: (n,) rows of the data; train and valid are those of the others."""

    source: str
    train: np.ndarray
    valid: np.ndarray
    rows: np.ndarray


Retrain = Callable[[Fold], tuple[np.ndarray, np.ndarray]]  # logits of valid, and of the source


def folds(inputs: Inputs) -> list[Fold]:
    """Return a fold for each source of train that has both classes, where others have them too."""
    data = inputs.data
    if not {"train", "valid"} <= set(data.splits):
        return []
    labels = np.array([LABELS[row.label] for row in data.rows])
    sources = np.array([row.source for row in data.rows])
    parts = {n: rows[labels[rows] >= 0] for n, rows in data.splits.items() if n in TRAINED}
    found = []
    for source in sorted({*sources[parts["train"]]} - {""}):
        own = np.concatenate([rows[sources[rows] == source] for rows in parts.values()])
        others = {name: rows[sources[rows] != source] for name, rows in parts.items()}
        sets = (own, others["train"], others["valid"])
        if all(len({*labels[rows]}) == 2 for rows in sets):
            found.append(
                Fold(source=source, train=others["train"], valid=others["valid"], rows=np.sort(own))
            )
    return found if len(found) > 1 else []


def score_sources(
    context: RunContext,
    inputs: Inputs,
    strengths: Mapping[str, float],
    encoder: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any] | None:
    """Return the scores of each source with the members fitted without it; rank 0 only.

    Each split has the sum of the members that were fitted, and beside it each of them. Thresholds
    come from validation humans of the other sources.

    Args:
        strengths: Of the n-grams' fits, by name.
        encoder: By source, logits of valid and of the source; {}: no encoder was trained anew.
    """
    s, parts = context.settings, folds(inputs)
    if not parts or not strengths:
        return None
    rows = inputs.data.rows
    y = np.array([LABELS[row.label] for row in rows])
    drawn = np.zeros(len(rows), dtype=bool)
    drawn[np.random.default_rng(s.seed).permutation(len(rows))[:MAX_COUNTED]] = True
    codes = [canonical(row.code, s.canonical) if drawn[at] else "" for at, row in enumerate(rows)]
    counted = {n: NgramFolds(n, codes, y, strength) for n, strength in strengths.items()}
    report, by_source = context.progress("leave out"), {}
    for number, fold in enumerate(parts, 1):
        logits = encoder.get(fold.source, ())
        kept = [drawn[part] for part in (fold.valid, fold.rows)]
        logits = [each[at] for each, at in zip(logits, kept, strict=False)]
        fold = replace(
            fold,
            train=fold.train[drawn[fold.train]],
            valid=fold.valid[kept[0]],
            rows=fold.rows[kept[1]],
        )
        at, cut = np.concatenate([fold.valid, fold.rows]), len(fold.valid)
        scores = {n: np.split(each.scores(fold.train, at), [cut]) for n, each in counted.items()}
        if logits:
            scores[ENCODER] = logits
        by_source[fold.source] = _scored(s, inputs, fold, y, scores)
        report(number, len(parts))
    names = [STACK, *scores]
    means = {
        name: float(np.mean([_area(one, name) for one in by_source.values()])) for name in names
    }
    return {"retrained": bool(encoder), "mean": means, "left_out": by_source}


def _scored(
    s: DetectorSettings,
    inputs: Inputs,
    fold: Fold,
    y: np.ndarray,
    scores: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, Any]:
    weights = {name: WEIGHTS[name] for name in scores}
    valid = {name: each[0] for name, each in scores.items()}
    stack = Stack.fixed_on(valid, y[fold.valid], weights=weights)
    humans = y[fold.valid] == 0
    point = choose_operating_point(
        y[fold.valid],
        stack.combined(valid),
        target_fpr=s.target_fpr,
        target_miss_rate=s.target_miss_rate,
    )
    members: dict[str, Floor] = {
        name: (each[1], threshold_at_fpr(each[0][humans], s.target_fpr))
        for name, each in scores.items()
    }
    return score_detection(
        y[fold.rows],
        stack.combined({name: each[1] for name, each in scores.items()}),
        point,
        tasks=[inputs.data.rows[row].task for row in fold.rows],
        prevalences=[],
        resamples=s.bootstrap_samples,
        seed=s.seed,
        floors=members,
    )


def _area(scores: Mapping[str, Any], name: str) -> float:
    of = scores if name == STACK else scores["floors"][name]
    return float(of["metrics"]["roc_auc"])


# ------------------------------------------------------------------------------------------------
# The score that is used, and why.


@dataclass(slots=True, kw_only=True)
class Scoring:
    """What turns the members of a detector into its score.

    Args:
        uses: `stack`, or the name of the member that is the score.
        stack: None: the encoder's logits are the score.
        floors: Cheap scorers beside it; None: there are none.
        sources: What `score_sources` returned.
        thresholds: By member, fixed on the validation humans.
    """

    uses: str
    reason: str
    stack: Stack | None = None
    floors: DetectorFloors | None = None
    sources: dict[str, Any] | None = None
    thresholds: dict[str, float] = field(default_factory=dict)

    def score(
        self, codes: Sequence[str], encoder: np.ndarray
    ) -> tuple[dict[str, Floor], np.ndarray]:
        """Return (codes,) scores of programs, and those of what stands beside it, by name."""
        beside = {} if self.floors is None else self.floors.score(codes)
        if self.stack is None:
            return beside, encoder
        scores = {ENCODER: np.asarray(encoder, dtype=np.float64)}
        for name, member in self.stack.ngrams.items():
            floor = beside.get(name)
            scores[name] = floor[0] if isinstance(floor, tuple) else member.score(codes)
        beside |= {
            n: (each, self.thresholds[n]) for n, each in scores.items() if n in self.thresholds
        }
        beside.pop(self.uses, None)
        return beside, self.stack.combined(scores)

    def to_dict(self) -> dict[str, Any]:
        """JSON values for `result.json`."""
        weights = {ENCODER: 1.0} if self.stack is None else self.stack.weights
        return {"uses": self.uses, "reason": self.reason, "weights": weights}


def choose_scoring(
    context: RunContext,
    inputs: Inputs,
    valid_logits: np.ndarray | None,
    frozen: Stack | None,
    encoder: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> Scoring:
    """Fit the n-grams, score the sources, and say which score is used; rank 0 only.

    Args:
        valid_logits: (valid,) the encoder's; None: there is no valid.
        frozen: Of an evaluation: that of its run, which stays as it is.
        encoder: By source left out, logits of the encoders that were trained without it.
    """
    s, is_trained = context.settings, context.checkpoint is None
    floors, sources = fit_scorers(context, inputs, frozen, encoder)
    ngrams = {} if floors is None else floors.ngrams
    if is_trained:
        can_stack = valid_logits is not None and set(ngrams) == set(NGRAMS)
        uses, reason = chosen(s, sources)
        if uses != ENCODER and not can_stack:
            why = (
                next(iter(floors.skipped.values()), "") if floors else "there is no train or valid"
            )
            uses, reason = ENCODER, f"no n-grams could be fitted: {why}"
        scoring = Scoring(uses=uses, reason=reason, sources=sources)
    else:
        uses = ENCODER if frozen is None else frozen.name
        scoring = Scoring(uses=uses, reason="that of its run", stack=frozen)
    scoring.floors = floors if s.floors else None
    if uses != ENCODER and valid_logits is not None:
        rows = inputs.split_rows("valid")
        logits = valid_logits[np.array([row.label is not None for row in rows])]
        codes, labels = _of(inputs, s.canonical, "valid")
        y = np.array([LABELS[label] for label in labels])
        members = frozen.ngrams if frozen else ngrams
        scores = {
            name: floors.scores(name, codes) if name in ngrams else each.score(codes)
            for name, each in members.items()
        }
        scores[ENCODER] = logits
        if is_trained:
            weights = WEIGHTS if uses == STACK else {uses: 1.0}
            scoring.stack = Stack.fixed_on(
                scores, y, weights=weights, form=s.canonical, ngrams=ngrams
            )
        scoring.thresholds = {
            name: threshold_at_fpr(each[y == 0], s.target_fpr) for name, each in scores.items()
        }
    return scoring


def chosen(s: DetectorSettings, sources: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the name of the score that is used, and the reason."""
    if s.score != "auto":
        return s.score, f"score={s.score} was asked for"
    if sources is None or not sources["retrained"]:
        return STACK, FIXED
    means = sources["mean"]
    best = max((name for name in means if name != STACK), key=means.__getitem__)
    uses = STACK if means[STACK] >= means[best] else best
    n = len(sources["left_out"])
    return uses, (
        f"mean ROC-AUC of {n} sources left out: the sum {means[STACK]:.3f}, its best member "
        f"({BASELINES[best]}) {means[best]:.3f}"
    )


def begin_floors(context: RunContext, inputs: Inputs) -> Callable[[], Any] | None:
    """Fit and score the floors beside the training, for which they need no GPU; rank 0 only.

    Return what waits for `fit_scorers`; None where a process of its own would not pay, or the CPU
    trains.
    """
    if not may_begin(context) or context.settings.objective == "similar":
        return None
    if worthwhile(sum(len(row.code) for row in inputs.split_rows("train"))) < 2:
        return None
    return begin(_fit_beside, silent(context), replace(inputs, table=None, found=None))


def may_begin(context: RunContext) -> bool:
    """Whether this process trains on a GPU, so that its CPUs can work for the scores meanwhile."""
    is_trained = context.checkpoint is None and not context.is_probe
    return is_trained and context.is_main and context.plan.use_gpu


def silent(context: RunContext) -> RunContext:
    """Return the context for another process: it says nothing, and has no devices."""
    return RunContext(
        settings=context.settings, plan=context.plan, accelerator=None, precision=context.precision
    )


def _fit_beside(context: RunContext, inputs: Inputs) -> Any:
    floors, sources = fit_scorers(context, inputs, None, {})
    form = context.settings.canonical
    codes = [
        row.code for name in SCORED if name in inputs.data.splits for row in inputs.split_rows(name)
    ]
    codes += [row.code for row in inputs.others.get("unseen_humans", ((), ()))[0]]
    codes += [
        code for edited in inputs.edited_codes.values() for code in edited if code is not None
    ]
    if floors is not None:
        floors.score([canonical(code, form) for code in codes])
    return floors, sources, context.warnings


def fit_scorers(
    context: RunContext,
    inputs: Inputs,
    frozen: Stack | None,
    encoder: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> tuple[DetectorFloors | None, dict[str, Any] | None]:
    """Return the fitted floors, and of a run that trains what `score_sources` returns."""
    s, sources = context.settings, None
    if inputs.floors is None:
        floors = _fit_floors(context, inputs, frozen)
    else:
        context.clock.phase("floors")
        floors, sources, warnings = inputs.floors()
        for text in warnings:
            context.warn(text)
    is_asked = context.checkpoint is None and (s.evaluate_sources == "auto" or encoder)
    if is_asked and sources is None and floors is not None and set(floors.ngrams) == set(NGRAMS):
        context.clock.phase("sources")
        sources = score_sources(context, inputs, floors.strengths, encoder)
    return floors, sources


def _fit_floors(context: RunContext, inputs: Inputs, frozen: Stack | None) -> DetectorFloors | None:
    s, is_trained = context.settings, context.checkpoint is None
    is_needed = is_trained and (s.score != ENCODER or s.evaluate_sources == "full")
    if not s.floors and not is_needed:
        return None
    if "train" not in inputs.data.splits or "valid" not in inputs.data.splits:
        context.warn("The baselines need train and valid programs and were left out.")
        return None
    context.clock.phase("floors")
    return fit_floors(
        _of(inputs, s.canonical, "train"),
        _of(inputs, s.canonical, "valid"),
        features=layout_features,
        target_fpr=s.target_fpr,
        seed=s.seed,
        names=FLOORS if s.floors else NGRAMS,
        known=frozen.ngrams if frozen else None,
    )


def _of(inputs: Inputs, form: str, split: str) -> tuple[list[str], list[Any]]:
    rows = [row for row in inputs.split_rows(split) if row.label is not None]
    return [canonical(row.code, form) for row in rows], [row.label for row in rows]
