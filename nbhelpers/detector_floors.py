"""Cheap detectors that a trained one has to beat: length, layout, character n-grams.

Each is treated like the model: fitted on train, its threshold fixed on the validation humans at
the same false-positive rate, then frozen. Single machine, in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_metrics import Floor
from nbhelpers.detector_ngrams import NgramVectors
from nbhelpers.detector_points import threshold_at_fpr
from nbhelpers.detector_rows import checked_rows

if TYPE_CHECKING:
    import numpy as np

FLOORS = ("length", "layout", "tfidf")
SIZES, MIN_TEXTS = (1, 2, 3, 4, 5, 6), 3
STRENGTHS = (3.0, 10.0, 30.0)  # of the fit (C): the best on valid is taken
MAX_CHOICE_ROWS = 12_000  # that the strength is chosen on
MAX_TRAIN_ROWS = 40_000  # of the last fit: memory and minutes grow with them

Features = Callable[[str], Mapping[str, float]]


class DetectorFloors:
    """The fitted floors; each scores any programs, so edits and other splits are scored alike.

    Attributes:
        thresholds: By name of the floor, fixed on the validation humans.
        skipped: By name of the floor, why it could not be fitted.
        seconds: By name of the floor, what fitting it took.
    """

    def __init__(
        self,
        scorers: Mapping[str, Callable[[Sequence[str]], np.ndarray]],
        thresholds: Mapping[str, float],
        skipped: Mapping[str, str],
        seconds: Mapping[str, float],
    ) -> None:
        self._scorers, self.thresholds = dict(scorers), dict(thresholds)
        self.skipped, self.seconds = dict(skipped), dict(seconds)

    def score(self, codes: Sequence[str]) -> dict[str, Floor]:
        """Return by name (scores, threshold) of these programs, or why there is none.

        Scores are log odds, (n,) float64; above the threshold a program is called AI.
        """
        found: dict[str, Floor] = dict(self.skipped)
        for name, scorer in self._scorers.items():
            found[name] = (scorer(codes), self.thresholds[name])
        return {name: found[name] for name in FLOORS}


def fit_floors(
    train: tuple[Sequence[str], Sequence[Any]],
    valid: tuple[Sequence[str], Sequence[Any]],
    *,
    features: Features,
    target_fpr: float,
    seed: int,
    report: Callable[[str], None] | None = None,
) -> DetectorFloors:
    """Fit the three floors.

    Args:
        train: Codes, in the form that the model reads, and labels ("human", "ai" or 0, 1).
        valid: The same for validation.
        features: Layout features of one code, always of the same names
            (`data.layout_features.layout_features`).
        target_fpr: Share of the validation humans that may be called AI.
        seed: Of the fits.
        report: Called with the name of each floor before it is fitted.

    Returns:
        The floors; without both classes in train, or a human in valid, all are skipped.
    """
    y, _ = checked_rows(train[1], [0.0] * len(train[0]))
    y_valid, _ = checked_rows(valid[1], [0.0] * len(valid[0]))
    reason = ""
    if len(set(y.tolist())) < 2:
        reason = "the train rows are of one class"
    elif not (y_valid == 0).any():
        reason = "no human row in validation to fix the threshold on"
    if reason:
        return DetectorFloors({}, {}, dict.fromkeys(FLOORS, reason), {})
    scorers, thresholds, seconds = {}, {}, {}
    for name in FLOORS:
        if report is not None:
            report(name)
        start = time.perf_counter()
        if name == "tfidf":
            scorers[name], scores = _fit_tfidf(train[0], y, valid[0], y_valid, seed)
        else:
            numbers = _lengths if name == "length" else features
            scorers[name] = _fit_numbers(train[0], y, numbers, seed)
            scores = scorers[name](valid[0])
        thresholds[name] = threshold_at_fpr(scores[y_valid == 0], target_fpr)
        seconds[name] = time.perf_counter() - start
    return DetectorFloors(scorers, thresholds, {}, seconds)


def _lengths(code: str) -> dict[str, float]:
    return {"characters": float(len(code)), "lines": float(code.count("\n") + 1)}


def _fit_numbers(
    codes: Sequence[str], y: np.ndarray, features: Features, seed: int
) -> Callable[[Sequence[str]], np.ndarray]:
    """Fit boosted trees on a few numbers per program: what a threshold on each cannot see."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=200,
        learning_rate=0.05,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        random_state=seed,
    )
    model.fit(_table(codes, features), y)

    def score(codes: Sequence[str]) -> np.ndarray:
        import numpy as np

        return model.decision_function(_table(codes, features)) if len(codes) else np.zeros(0)

    return score


def _table(codes: Sequence[str], features: Features) -> np.ndarray:
    import numpy as np

    return np.array([list(features(code).values()) for code in codes], dtype=np.float64)


def _fit_tfidf(
    codes: Sequence[str], y: np.ndarray, valid: Sequence[str], y_valid: np.ndarray, seed: int
) -> tuple[Callable[[Sequence[str]], np.ndarray], np.ndarray]:
    """Fit logistic regression on character n-grams; return it and its scores of valid.

    The strength is chosen on valid. With more than `MAX_CHOICE_ROWS` train rows it is chosen on a
    draw of as many, then fitted once on all of them, `MAX_TRAIN_ROWS` at most.
    """
    import numpy as np

    drawn = np.random.default_rng(seed).permutation(len(codes))
    strengths, model = STRENGTHS, None
    for limit in sorted({min(MAX_CHOICE_ROWS, len(codes)), min(MAX_TRAIN_ROWS, len(codes))}):
        rows = np.sort(drawn[:limit])
        vectors = NgramVectors(sizes=SIZES, min_texts=MIN_TEXTS)
        matrix = vectors.fit_transform([codes[row] for row in rows])
        held = vectors.transform(valid)
        tried = [_regression(matrix, y[rows], strength) for strength in strengths]
        model = max(tried, key=lambda each: _quality(y_valid, each.decision_function(held)))
        strengths = (model.C,)

    def score(codes: Sequence[str]) -> np.ndarray:
        found = model.decision_function(vectors.transform(codes)) if len(codes) else np.zeros(0)
        return found.astype(np.float64)

    return score, model.decision_function(held).astype(np.float64)


def _regression(matrix: Any, y: np.ndarray, strength: float) -> Any:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # the number of iterations is a budget here, not a promise to converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=200).fit(matrix, y)


def _quality(y: np.ndarray, scores: np.ndarray) -> float:
    """Return the ROC area on valid; 0 where one class alone cannot tell fits apart."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, scores)) if 0 < y.sum() < len(y) else 0.0
