"""Baselines that a trained model has to beat: of clone pairs and of a detector."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from nbhelpers.common.pool import begin, worthwhile
from nbhelpers.errors import DataError
from nbhelpers.metrics.detection import Floor, checked_rows, threshold_at_fpr
from nbhelpers.metrics.ngrams import NgramVectors, counted_rows
from nbhelpers.metrics.pairs import METRICS, Scorer, best_threshold, binary_scores, compare_scorers
from nbhelpers.metrics.stack import NGRAMS, Ngrams, masked

# ------------------------------------------------------------------------------------------------
# Cheap scorers that a trained model has to beat: always-yes, shared identifiers, TF-IDF.
#
# Each floor is treated like the model: fitted on train, its threshold chosen on valid, then frozen.
# All three ignore the order of a pair. Single machine, in memory.


MAX_TRAIN_PAIRS = 90_000
COMPONENTS = 100
CHUNK_PAIRS = 50_000
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
_TOKEN = re.compile(r"[A-Za-z_$][\w$]*|\d+|[^\s\w]")
_WORDS = (
    "abstract assert boolean break byte case catch char class const continue default do double "
    "else enum extends final finally float for goto if implements import instanceof int interface "
    "long native new package private protected public return short static strictfp super switch "
    "synchronized this throw throws transient try void volatile while true false null var"
)
JAVA_WORDS = frozenset(_WORDS.split())


class Pairs(Protocol):
    """What a split must offer: the two functions of each pair, by key, and 0 or 1."""

    left: Sequence[Any]
    right: Sequence[Any]
    label: Sequence[int]


Functions = Sequence[str] | Mapping[Any, str]


def always_yes(n_pairs: int) -> np.ndarray:
    """Return probability 1 for every pair: the floor that a share of clones alone sets."""
    return np.ones(n_pairs)


def identifier_overlap(
    functions: Functions, left: Sequence[Any], right: Sequence[Any]
) -> np.ndarray:
    """Return the Jaccard overlap of the identifiers of each pair, Java's keywords left out.

    Two functions without any identifier overlap fully. Pairs are counted in chunks, so that memory
    stays proportional to the functions and to one chunk.
    """
    from scipy.sparse import csr_matrix

    left, right = _listed(left), _listed(right)
    overlaps = np.ones(len(left))
    row_of = {key: row for row, key in enumerate(dict.fromkeys([*left, *right]))}
    column_of: dict[str, int] = {}
    columns: list[int] = []
    ends = [0]
    for key in row_of:
        names = frozenset(_IDENTIFIER.findall(functions[key])) - JAVA_WORDS
        columns += [column_of.setdefault(name, len(column_of)) for name in names]
        ends.append(len(columns))
    if not columns:
        return overlaps
    shape = (len(row_of), len(column_of))
    uses = csr_matrix((np.ones(len(columns), dtype=np.int32), columns, ends), shape=shape)
    uses.sort_indices()
    sizes = np.diff(ends)
    for start in range(0, len(left), CHUNK_PAIRS):
        rows = slice(start, start + CHUNK_PAIRS)
        a, b = (np.array([row_of[key] for key in side[rows]]) for side in (left, right))
        both = np.asarray(uses[a].multiply(uses[b]).sum(axis=1)).reshape(-1)
        either = sizes[a] + sizes[b] - both
        np.divide(both, either, out=overlaps[rows], where=either > 0)
    return overlaps


class TfidfClassifier:
    """A small network on what two functions' TF-IDF vectors share and where they differ.

    Tokens are identifiers, numbers and signs of the code. The vectoriser and the projection to at
    most 100 dimensions see train functions alone. Pair features are symmetric: the absolute
    difference and the product of both vectors.
    """

    def __init__(self, *, seed: int) -> None:
        """Prepare an unfitted classifier; equal seeds give equal scores."""
        self.seed = seed
        self._vectors: dict[Any, int] = {}
        self._matrix: Any = None

    def fit(self, functions: Functions, train: Pairs) -> TfidfClassifier:
        """Learn from at most 90,000 train pairs (drawn with the seed when there are more)."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier

        labels = np.asarray(train.label)
        rows = np.arange(len(labels))
        if len(rows) > MAX_TRAIN_PAIRS:
            rows = np.random.default_rng(self.seed).permutation(rows)[:MAX_TRAIN_PAIRS]
        left = _listed(np.asarray(train.left)[rows])
        right = _listed(np.asarray(train.right)[rows])
        self._fit_vectors(functions, sorted({*left, *right}))
        self._model = MLPClassifier(
            hidden_layer_sizes=(128,),
            batch_size=min(256, len(rows)),
            max_iter=_passes(len(rows)),
            n_iter_no_change=5,
            random_state=self.seed,
        )
        features = self._features(self._encode(functions, left), self._encode(functions, right))
        self._centre, self._scale = features.mean(axis=0), features.std(axis=0) + 1e-6
        with warnings.catch_warnings():
            # the number of passes is a budget here, not a promise to converge
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit((features - self._centre) / self._scale, labels[rows])
        return self

    def predict(
        self, functions: Functions, left: Sequence[Any], right: Sequence[Any]
    ) -> np.ndarray:
        """Return the probability of a clone per pair, in chunks of bounded memory."""
        a, b = self._encode(functions, _listed(left)), self._encode(functions, _listed(right))
        parts = []
        for start in range(0, len(a), CHUNK_PAIRS):
            part = slice(start, start + CHUNK_PAIRS)
            features = (self._features(a[part], b[part]) - self._centre) / self._scale
            parts.append(self._model.predict_proba(features)[:, 1])
        return np.concatenate(parts).astype(np.float64)

    def _fit_vectors(self, functions: Functions, keys: list[Any]) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._tfidf = TfidfVectorizer(
            tokenizer=_TOKEN.findall, token_pattern=None, lowercase=False, sublinear_tf=True
        )
        counts = self._tfidf.fit_transform(functions[key] for key in keys)
        size = min(COMPONENTS, min(counts.shape) - 1)
        self._project = None
        if size >= 1:
            self._project = TruncatedSVD(size, random_state=self.seed).fit(counts)
        self._add(keys, counts)

    def _encode(self, functions: Functions, keys: list[Any]) -> np.ndarray:
        """Return the row of each key in the matrix of vectors, adding what is not there yet."""
        new = sorted(set(keys) - set(self._vectors))
        if new:
            self._add(new, self._tfidf.transform(functions[key] for key in new))
        return np.array([self._vectors[key] for key in keys], dtype=np.int64)

    def _add(self, keys: list[Any], counts: Any) -> None:
        dense = self._project.transform(counts) if self._project else counts.toarray()
        dense = dense.astype(np.float32)
        self._vectors |= {key: len(self._vectors) + at for at, key in enumerate(keys)}
        old = () if self._matrix is None else (self._matrix,)
        self._matrix = np.concatenate([*old, dense])

    def _features(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        a, b = self._matrix[left], self._matrix[right]
        return np.concatenate([np.abs(a - b), a * b], axis=1)


def score_floors(
    functions: Functions,
    splits: Mapping[str, Pairs],
    *,
    seed: int,
    bootstrap_samples: int | None = None,
    model: Mapping[str, tuple[Sequence[float], float]] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return split → floor → scores with its `threshold`, for every split but train.

    A floor that cannot be computed has `skipped` with the reason in place of scores.

    Args:
        functions: Text by the keys that the splits use (a list when they are positions).
        splits: `train`, `valid` and any others, each with `left`, `right` and `label`.
        seed: Of the classifier and of the resampling.
        bootstrap_samples: Adds `intervals` (resampled functions); None leaves them out.
        model: Per split the trained model's (probabilities, threshold): with `bootstrap_samples`
            adds `lead`, the model's F1 minus the floor's, with the interval of that difference.

    Raises:
        DataError: There is no valid split to choose thresholds on.
    """
    if "valid" not in splits:
        raise DataError(
            f"floors need a valid split for their thresholds; there are {', '.join(splits)}",
            fix="Give the splits train, valid and test.",
        )
    scored = {name: pairs for name, pairs in splits.items() if name != "train"}
    probabilities, skipped = _probabilities(functions, splits, scored, seed)
    thresholds = {
        baseline: 0.5
        if baseline == "always_yes"
        else best_threshold(splits["valid"].label, by_split["valid"])
        for baseline, by_split in probabilities.items()
    }
    report: dict[str, dict[str, dict[str, Any]]] = {}
    for name, pairs in scored.items():
        scorers = {
            baseline: (p[name], thresholds[baseline]) for baseline, p in probabilities.items()
        }
        report[name] = _scored(
            pairs, scorers, ours=(model or {}).get(name), samples=bootstrap_samples, seed=seed
        )
        report[name] |= {baseline: {"skipped": reason} for baseline, reason in skipped.items()}
    return report


def _probabilities(
    functions: Functions, splits: Mapping[str, Pairs], scored: Mapping[str, Pairs], seed: int
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    probabilities = {
        "always_yes": {name: always_yes(len(pairs.label)) for name, pairs in scored.items()},
        "identifier_overlap": {
            name: identifier_overlap(functions, pairs.left, pairs.right)
            for name, pairs in scored.items()
        },
    }
    train = splits.get("train")
    classes = set(_listed(train.label)) if train is not None else set()
    if len(classes) < 2:
        return probabilities, {
            "tfidf_mlp": "there are no train pairs of both classes to learn from"
        }
    classifier = TfidfClassifier(seed=seed).fit(functions, train)
    probabilities["tfidf_mlp"] = {
        name: classifier.predict(functions, pairs.left, pairs.right)
        for name, pairs in scored.items()
    }
    return probabilities, {}


def _scored(
    pairs: Pairs,
    scorers: Mapping[str, Scorer],
    *,
    ours: Scorer | None,
    samples: int | None,
    seed: int,
) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for baseline, (probabilities, threshold) in scorers.items():
        scores = binary_scores(pairs.label, probabilities, threshold)
        table[baseline] = {name: scores[name] for name in METRICS} | {"threshold": threshold}
    if samples is None:
        return table
    compared = compare_scorers(
        pairs.left, pairs.right, pairs.label, scorers, ours=ours, samples=samples, seed=seed
    )
    return {baseline: scores | compared[baseline] for baseline, scores in table.items()}


def _passes(n_pairs: int) -> int:
    """Return passes over the pairs: enough updates for small data, bounded time for large."""
    return max(15, min(200, 1_000_000 // max(n_pairs, 1)))


def _listed(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


# ------------------------------------------------------------------------------------------------
# Cheap detectors that a trained one has to beat: length, layout, character n-grams.
#
# Each is treated like the model: fitted on train, its threshold fixed on the validation humans at
# the same false-positive rate, then frozen. Single machine, in memory.


FLOORS = ("length", "layout", *NGRAMS)
# Sizes of the n-grams, and whether every letter and digit is made alike.
MEMBERS = {"tfidf": ((1, 2, 3, 4, 5, 6), False), "masked_tfidf": ((1, 2, 3, 4, 5, 6, 7), True)}
MIN_TEXTS = 3
STRENGTHS = (3.0, 10.0, 30.0)  # of the fit (C): the best on valid is taken
MAX_CHOICE_ROWS = 12_000  # that the strength is chosen on
MAX_TRAIN_ROWS = 40_000  # of the last fit: memory and minutes grow with them
MANY_CPUS = 4  # machines with fewer seldom have the memory for two fits at once

Features = Callable[[str], Mapping[str, float]]


class DetectorFloors:
    """The fitted floors; each scores any programs, so edits and other splits are scored alike.

    Attributes:
        ngrams: Those that can be members of a detector's score, by name.
        strengths: Of their fits, by name.
        thresholds: By name of the floor, fixed on the validation humans.
        skipped: By name of the floor, why it could not be fitted.
    """

    def __init__(self, skipped: Mapping[str, str] | None = None) -> None:
        self._scorers: dict[str, Callable[[Sequence[str]], np.ndarray]] = {}
        self._known: dict[str, dict[str, float]] = {}
        self.ngrams: dict[str, Ngrams] = {}
        self.strengths: dict[str, float] = {}
        self.thresholds: dict[str, float] = {}
        self.skipped = dict(skipped or {})

    def scores(self, name: str, codes: Sequence[str]) -> np.ndarray:
        """Return (codes,) log odds of one floor, float64; a program is scored once."""
        known = self._known.setdefault(name, {})
        new = [code for code in dict.fromkeys(codes) if code not in known]
        known.update(zip(new, self._scorers[name](new).tolist(), strict=True))
        return np.array([known[code] for code in codes], dtype=np.float64)

    def score(self, codes: Sequence[str]) -> dict[str, Floor]:
        """Return by name (scores, threshold) of these programs, or why there is none.

        Scores are log odds, (n,) float64; above the threshold a program is called AI.
        """
        scores: dict[str, Floor] = dict(self.skipped)
        for name in self._scorers:
            scores[name] = (self.scores(name, codes), self.thresholds[name])
        return {name: scores[name] for name in FLOORS if name in scores}


def fit_floors(
    train: tuple[Sequence[str], Sequence[Any]],
    valid: tuple[Sequence[str], Sequence[Any]],
    *,
    features: Features,
    target_fpr: float,
    seed: int,
    names: Sequence[str] = FLOORS,
    known: Mapping[str, Ngrams] | None = None,
) -> DetectorFloors:
    """Fit the floors.

    Args:
        train: Codes, in the form that the model reads, and labels ("human", "ai" or 0, 1).
        valid: The same for validation.
        features: Layout features of one code, always of the same names
            (`data.layout_features.layout_features`).
        target_fpr: Share of the validation humans that may be called AI.
        seed: Of the fits.
        names: The floors to fit, of `FLOORS`.
        known: Those that are taken as they are: an evaluation's are its run's.

    Raises:
        ConfigError: The target is not between 0 and 1.
    """
    y, _ = checked_rows(train[1], [0.0] * len(train[0]))
    y_valid, _ = checked_rows(valid[1], [0.0] * len(valid[0]))
    reason = ""
    if len(set(y.tolist())) < 2:
        reason = "the train rows are of one class"
    elif not (y_valid == 0).any():
        reason = "no human row in validation to fix the threshold on"
    if reason:
        return DetectorFloors(dict.fromkeys(names, reason))
    floors, known = DetectorFloors(), known or {}
    unknown = [name for name in names if name in MEMBERS and known.get(name) is None]
    given = train[0], y, valid[0], y_valid, seed
    waits = {name: partial(fit_ngrams, name, *given) for name in unknown}
    if worthwhile(sum(map(len, train[0]))) >= MANY_CPUS:  # the first is fitted here meanwhile
        waits |= {name: begin(fit_ngrams, name, *given) for name in unknown[1:]}
    for name in names:
        if name in MEMBERS:
            member = known.get(name)
            if member is None:
                member, floors.strengths[name] = waits[name]()
            floors.ngrams[name], floors._scorers[name] = member, member.score
        else:
            numbers = _lengths if name == "length" else features
            model = _fit_numbers(train[0], y, numbers, seed)
            floors._scorers[name] = partial(_numbers_score, model, numbers)
        humans = [code for code, label in zip(valid[0], y_valid, strict=True) if label == 0]
        floors.thresholds[name] = threshold_at_fpr(floors.scores(name, humans), target_fpr)
    return floors


def _lengths(code: str) -> dict[str, float]:
    return {"characters": float(len(code)), "lines": float(code.count("\n") + 1)}


def _fit_numbers(codes: Sequence[str], y: np.ndarray, features: Features, seed: int) -> Any:
    """Fit boosted trees on a few numbers per program: what a threshold on each cannot see."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=200,
        learning_rate=0.05,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        random_state=seed,
    )
    return model.fit(_table(codes, features), y)


def _numbers_score(model: Any, features: Features, codes: Sequence[str]) -> np.ndarray:
    return model.decision_function(_table(codes, features)) if len(codes) else np.zeros(0)


def _table(codes: Sequence[str], features: Features) -> np.ndarray:
    return np.array([list(features(code).values()) for code in codes], dtype=np.float64)


def fit_ngrams(
    name: str,
    codes: Sequence[str],
    y: np.ndarray,
    valid: Sequence[str],
    y_valid: np.ndarray,
    seed: int,
) -> tuple[Ngrams, float]:
    """Fit logistic regression on character n-grams of one of `MEMBERS`; return its strength too.

    The strength is chosen on valid. With more than `MAX_CHOICE_ROWS` train rows it is chosen on a
    draw of as many, then fitted once on all of them, `MAX_TRAIN_ROWS` at most.
    """
    sizes, is_masked = MEMBERS[name]
    valid = [masked(code) for code in valid] if is_masked else valid
    drawn = np.random.default_rng(seed).permutation(len(codes))
    strengths, model = STRENGTHS, None
    for limit in sorted({min(MAX_CHOICE_ROWS, len(codes)), min(MAX_TRAIN_ROWS, len(codes))}):
        rows = np.sort(drawn[:limit])
        texts = [masked(codes[row]) if is_masked else codes[row] for row in rows]
        vectors = NgramVectors(sizes=sizes, min_texts=MIN_TEXTS)
        matrix = vectors.fit_transform(texts)
        valid_vectors = vectors.transform(valid)
        tried = [_regression(matrix, y[rows], strength) for strength in strengths]
        model = max(
            tried, key=lambda each: _quality(y_valid, each.decision_function(valid_vectors))
        )
        strengths = (model.C,)
    return vectors.classifier(model, is_masked=is_masked), model.C


class NgramFolds:
    """The n-grams of programs counted once, for fits without one part of them after another."""

    def __init__(self, name: str, codes: Sequence[str], y: np.ndarray, strength: float) -> None:
        """Count.

        Args:
            name: One of `MEMBERS`.
            codes: The programs, in the form that is read.
            y: (n,) 0 human, 1 AI.
            strength: Of each fit.
        """
        sizes, is_masked = MEMBERS[name]
        self._vectors = NgramVectors(sizes=sizes, min_texts=MIN_TEXTS)
        self._counted = self._vectors.count(
            [masked(code) for code in codes] if is_masked else codes
        )
        self._y, self._strength = y, strength

    def scores(self, train: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return (rows,) log odds of some programs, learnt from others."""
        matrix = self._vectors.fit(counted_rows(self._counted, train))
        model = _regression(matrix, self._y[train], self._strength)
        others = self._vectors.vectors(counted_rows(self._counted, rows))
        return model.decision_function(others).astype(np.float64)


def _regression(matrix: Any, y: np.ndarray, strength: float) -> Any:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    # More threads make sparse fits no faster, and take the cores from fits and training beside.
    with warnings.catch_warnings(), threadpool_limits(1):
        # the number of iterations is a budget here, not a promise to converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=200).fit(matrix, y)


def _quality(y: np.ndarray, scores: np.ndarray) -> float:
    """Return the ROC area on valid; 0 where one class alone cannot tell fits apart."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, scores)) if 0 < y.sum() < len(y) else 0.0
