"""The scores of each job: one list of metrics, from which everything that names a score is made.

A metric stands here once and is computed in one place. By that it is in `result.json`, in the
tables of a report, in `--require` and `targets` of a preset, and in the card of a trained model.
Nothing here needs numpy or a file: presets are checked with it.

A name is read from the right: `f1` is of the test split, `mean.f1` of the mean of both orders of a
pair, `valid.roc_auc` of another split, `memory.error_percent` something measured beside the scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TEXT, PAGE, CARD = "text", "page", "card"  # terminal text, HTML page, model card


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a job.

    `title` in tables and `short` in narrow ones and in sentences default to the name; `card_title`
    to the title. `maximum` is the largest value, None for a count without one. `is_neutral`:
    neither more nor less is better. `splits` hold it; empty: every split of the job.
    `has_difference`: the difference to each baseline is resampled too. `alias_of`: another name of
    the same number, without a row of its own. `shown_in` lists the places that show it.
    """

    name: str
    title: str = ""
    short: str = ""
    card_title: str = ""
    decimals: int = 3
    maximum: float | None = 1.0
    lower_is_better: bool = False
    is_neutral: bool = False
    splits: tuple[str, ...] = ()
    has_difference: bool = False
    alias_of: str = ""
    shown_in: tuple[str, ...] = (TEXT, PAGE, CARD)


# Costs and losses that are measured beside the scores: less is better.
_LOWER_GROUPS = ("memory.", "timing.", "phases.")
_LOWER = {"valid_fpr", "ms_per_file", "ms_alone", "recompiles"}
_LOWER |= {"skipped_steps", "first_loss", "last_loss", "fpr_unedited", "tpr_loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The metrics of a job, and how a result of the job names them.

    A result holds `scores`: by split `metrics`, and beside them counts such as `n_samples`.

    `splits` gives the title of each split, the test split first. `headline`: the scores that a
    result is known by, as (split, metric). `beside`: what is measured beside the scores, by group.
    `names_test`: a headline names the test split. `card_first`: the metrics that a card begins
    with. `unmeasured` and `to_measure`: the words for a score of the job that a run lacks, and what
    to change for it.
    """

    metrics: tuple[Metric, ...]
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test", "valid": "valid"})
    headline: tuple[tuple[str, str], ...] = ()
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: tuple[str, ...] = ("n_samples",)
    card_first: tuple[str, ...] = ()
    names_test: bool = True
    unmeasured: str = "measured"
    to_measure: str = ""

    def metric(self, name: str) -> Metric:
        """Return a metric by its name; one with defaults where the job has none of that name."""
        return next((m for m in self.metrics if m.name == name), Metric(name=name))

    def names(self, split: str = "test", place: str = "") -> tuple[str, ...]:
        """Return the metrics that a split holds, those only that a place shows."""
        return tuple(
            metric.name
            for metric in self.metrics
            if split in (metric.splits or self.splits)
            and (not place or (place in metric.shown_in and not metric.alias_of))
        )

    def title(self, name: str) -> str:
        """Return the title of a metric in tables."""
        return self.metric(name).title or name

    def short(self, name: str) -> str:
        """Return the title of a metric in sentences."""
        return self.metric(name).short or self.title(name)

    def title_of(self, split: str, name: str) -> str:
        """Return the title of a metric with that of its split, for a headline."""
        if split == "test" and not self.names_test:
            return self.title(name)
        return f"{self.splits.get(split, split)} {self.title(name)}"

    def written(self, name: str, value: float | None) -> str:
        """Write a score with the decimals that it bears."""
        decimals = self.metric(name.rpartition(".")[2]).decimals
        return "undefined" if value is None else f"{value:.{decimals}f}"

    def card(self, split: str = "test") -> dict[str, str]:
        """Return the metrics of a card in their order, with their titles there."""
        shown = self.names(split, CARD)
        order = [*(name for name in self.card_first if name in shown), *shown]
        return {name: self.metric(name).card_title or self.title(name) for name in order}

    def differences(self) -> tuple[str, ...]:
        """Return the metrics whose difference to a baseline is resampled."""
        return tuple(metric.name for metric in self.metrics if metric.has_difference)

    def is_upper_bound(self, name: str) -> bool:
        """Say whether a target of this name is reached from below: errors, losses, times, memory.

        >>> DETECTOR_SCORES.is_upper_bound("unseen_humans.fpr")
        True
        >>> CLONES_SCORES.is_upper_bound("timing.total_s")
        True
        >>> DETECTOR_SCORES.is_upper_bound("floors.tfidf.lead.tpr")
        False
        """
        last = name.rpartition(".")[2]
        is_cost = name.startswith(_LOWER_GROUPS) or last in _LOWER
        return is_cost or self.metric(last).lower_is_better

    def is_reached(self, name: str, value: float | None, target: float) -> bool:
        """Say whether a score reaches its target: at least so much, of an error or cost at most.

        >>> CLONES_SCORES.is_reached("f1", 0.9, 0.85), DETECTOR_SCORES.is_reached("fpr", 0.02, 0.01)
        (True, False)
        >>> CLONES_SCORES.is_reached("f1", None, 0.1)
        False
        """
        if value is None:
            return False
        return value <= target if self.is_upper_bound(name) else value >= target

    def target_names(self) -> list[str]:
        """Return the scores that a preset may name, those of the test split first."""
        names = list(self.names())
        return names + [f"{split}.{name}" for split in self.splits for name in self.names(split)]

    def is_target(self, name: str) -> bool:
        """Say whether a preset may name this score under `targets`.

        >>> FINETUNE_SCORES.is_target("humaneval.pass@1"), FINETUNE_SCORES.is_target("f1")
        (True, False)
        """
        return name in self.target_names()

    def score_names(self) -> list[str]:
        """Return every name of a score that a result can hold by its form."""
        plain = list(self.counts)
        return [*self.target_names(), *plain, *(f"{s}.{n}" for s in self.splits for n in plain)]

    def beside_names(self) -> list[str]:
        """Return the names of what is measured beside the scores."""
        return [f"{group}.{name}" for group, names in self.beside.items() for name in names]

    def may_exist(self, name: str) -> bool:
        """Say whether some result of the job could hold this name."""
        return name in self.score_names() or name in self.beside_names()

    def is_long(self, name: str) -> bool:
        """Say whether a message that lists the names leaves this one out."""
        return name.startswith("test.")

    def listed(self, known: Iterable[str]) -> str:
        """Return the names that a message offers."""
        return f"Names: {', '.join(name for name in known if not self.is_long(name))}."

    def measured(self, known: Iterable[str]) -> str:
        """Return the names that a run measured, for a message."""
        return self.listed(known)

    def available(self, data: Mapping[str, Any]) -> dict[str, float | None]:
        """Return every named number of a result, or of one split's scores (read as the test split).

        A score that is undefined, such as the ROC-AUC of a single class, is there with None.
        """
        is_one_split = "orders" in data or "metrics" in data
        splits = {"test": data} if is_one_split else part(data, "scores")
        named: dict[str, float | None] = {}
        for split, scores in splits.items():
            if isinstance(scores, Mapping):
                named |= {f"{split}.{name}": v for name, v in self.of_split(scores).items()}
        plain = {name[5:]: value for name, value in named.items() if name.startswith("test.")}
        return plain | self._of_beside(data) | named

    def _of_beside(self, data: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the named numbers that were measured beside the scores."""
        by_name: dict[str, float | None] = {}
        for group, names in self.beside.items():
            by_name |= _named(group, data.get(group), names)
        return by_name

    def of_split(self, scores: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the named numbers of one split's scores."""
        return numbers(scores.get("metrics")) | numbers(scores, self.counts)


def part(data: Any, name: str) -> Mapping[str, Any]:
    """Return a mapping inside another; an empty one where there is none."""
    value = data.get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def numbers(values: Any, names: Iterable[str] | None = None) -> dict[str, float | None]:
    """Return the wanted values that are numbers or null; `names` None: all of them."""
    if not isinstance(values, Mapping):
        return {}
    wanted = values if names is None else names
    return {n: values[n] for n in wanted if n in values and _is_number(values[n])}


def _named(place: str, values: Any, names: Iterable[str]) -> dict[str, float | None]:
    return {f"{place}.{name}": value for name, value in numbers(values, names).items()}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


_MEMORY = ("predicted_bytes", "measured_bytes", "error_percent")
_TRAINING = ("optimizer_steps", "epochs", "skipped_steps", "first_loss", "last_loss")


def _seconds(*phases: str) -> tuple[str, ...]:
    return tuple(f"{phase}_s" for phase in phases)


class ClonesScores(Scores):
    """Scores of pairs: in both orders, at other shares of clones, by stratum, beside baselines."""

    ORDERS = ("given", "reversed", "mean")
    NESTED = ("strata", "at_prior", "floors")

    def target_names(self) -> list[str]:
        """Return the metrics; a preset may also name them dotted, such as `mean.f1`."""
        return list(self.names())

    def is_target(self, name: str) -> bool:
        """Say whether the scores of the test split may hold this name.

        >>> CLONES_SCORES.is_target("mean.f1"), CLONES_SCORES.is_target("floors.tfidf_mlp.f1")
        (True, True)
        >>> CLONES_SCORES.is_target("valid.f1")
        False
        """
        plain = name.removeprefix("test.")
        is_other = plain.startswith(tuple(f"{split}." for split in self.splits))
        return plain.rpartition(".")[2] in self.names() and not is_other and self.may_exist(plain)

    def score_names(self) -> list[str]:
        """Return the names but for those of baselines, priors and strata, which a run names."""
        metrics = self.names()
        plain = [*metrics, "prior", "n_pairs", "n_functions"]
        plain += [f"{order}.{metric}" for order in self.ORDERS for metric in metrics]
        return [*plain, *(f"{split}.{name}" for split in self.splits for name in plain)]

    def may_exist(self, name: str) -> bool:
        """Say whether some result could hold this name: baselines and priors a run names."""
        if Scores.may_exist(self, name):
            return True
        parts = name.split(".")
        nested = parts[1:] if parts[0] in self.splits else parts
        is_nested = len(nested) >= 3 and nested[0] in self.NESTED
        return is_nested and nested[-1] in (*self.names(), "n_pairs", "prior")

    def is_long(self, name: str) -> bool:
        """Say whether a message leaves this name out: those of a split."""
        return name.startswith(tuple(self.splits))

    def listed(self, known: Iterable[str]) -> str:
        """Return the names that a message offers, and how the others are made."""
        names = Scores.listed(self, known).rstrip(".")
        return f"{names}; scores also as SPLIT.NAME, SPLIT: {', '.join(self.splits)}."

    def of_split(self, scores: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the named numbers of one split's scores."""
        orders = part(scores, "orders")
        by_name = numbers(orders.get("given") or scores.get("metrics"))
        by_name |= numbers(scores, self.counts)
        groups = dict(orders)
        for group in self.NESTED:
            groups |= {f"{group}.{key}": values for key, values in part(scores, group).items()}
        for group, values in groups.items():
            by_name |= _named(group, values, values if isinstance(values, Mapping) else ())
        return by_name


CLONES_SCORES = ClonesScores(
    metrics=(
        Metric(name="precision"),
        Metric(name="recall"),
        Metric(name="f1", title="F1"),
        Metric(name="precision_macro"),
        Metric(name="recall_macro"),
        Metric(name="f1_macro"),
        Metric(name="accuracy"),
        Metric(name="roc_auc", title="ROC-AUC"),
        Metric(name="pr_auc", title="PR-AUC"),
    ),
    splits={"valid": "valid", "test": "test", "test_unseen": "test unseen"},
    headline=(("test", "f1"),),
    counts=("prior", "n_pairs", "n_functions", "n_samples"),
    beside={
        "memory": _MEMORY,
        "timing": _seconds(
            *("start", "check", "data", "model", "pretrain", "train", "evaluate", "floors"),
            "total",
        ),
        "throughput": (
            *("pairs_per_s", "useful_tokens_per_s", "padded_tokens_per_s", "useful_share"),
            "fixed_padding_useful_share",
        ),
        "training": (*_TRAINING, "best_step"),
        "threshold": ("value",),
    },
)

TASKS = ("humaneval", "mbpp", "sample")  # sets of problems whose programs are run
FINETUNE_SCORES = Scores(
    metrics=(
        Metric(name="pass@1", short="p@1", splits=TASKS),
        Metric(name="syntax_accuracy", title="syntax accuracy", short="syntax"),
        Metric(name="bleu", title="BLEU", decimals=1, maximum=100.0, splits=("test",)),
        Metric(name="chrf", title="chrF", decimals=1, maximum=100.0, splits=("test",)),
        Metric(name="exact_match", title="exact match", short="exact", splits=("test",)),
        Metric(name="stopped", title="stopped by itself"),
        Metric(
            name="mean_new_tokens",
            title="mean new tokens",
            decimals=1,
            maximum=None,
            is_neutral=True,
        ),
    ),
    splits={
        "test": "test",
        "humaneval": "HumanEval",
        "mbpp": "MBPP",
        "sample": "sample problems",
    },
    headline=(
        ("test", "syntax_accuracy"),
        ("test", "bleu"),
        *((task, "pass@1") for task in TASKS),
    ),
    beside={
        "memory": _MEMORY,
        "timing": _seconds(
            *("start", "check", "data", "model", "pretrain", "train", "evaluate", "total")
        ),
        "throughput": (
            *("useful_tokens_per_s", "padded_tokens_per_s", "samples_per_s", "useful_share"),
            *("mfu_4n", "tokens_per_update", "samples_per_update"),
        ),
        "training": _TRAINING,
        "adapter": ("trainable_parameters", "total_parameters"),
        "energy": ("joules", "watts_mean"),
        "gpu_baseline": ("before_bytes", "after_bytes"),
    },
    names_test=False,
    unmeasured="evaluated",
    to_measure="Evaluate the run with evaluate=all and the set of problems in tasks.",
)
# Titles of a fine-tuning's metrics and splits.
TITLES = {m.name: m.title for m in FINETUNE_SCORES.metrics if m.title} | dict(
    FINETUNE_SCORES.splits
)


def written(metric: str, value: float | None) -> str:
    """Write a score of a fine-tuning with the decimals that it bears.

    >>> written("bleu", 31.26), written("humaneval.pass@1", 0.25), written("bleu", None)
    ('31.3', '0.250', 'undefined')
    """
    if value is None and metric.endswith("pass@1"):
        return "not run"
    return FINETUNE_SCORES.written(metric, value)


class DetectorScores(Scores):
    """Scores of a detector: by split, after edits, beside baselines, and of the similarity space.

    `unseen_humans.fpr` is of another split, `edits.rename.tpr_loss` of the test programs after an
    edit, `floors.tfidf.lead.tpr` the difference to a baseline, `similarity.mrr` of the similarity
    space.
    """

    BASELINES = ("length", "layout", "tfidf")
    EDITS = ("reformat", "strip_comments", "rename", "rename_reformat")
    EDIT_SCORES = ("roc_auc", "tpr", "tpr_unedited", "tpr_loss", "fpr", "fpr_unedited")
    SIMILARITY = "similarity"
    AT_PREVALENCE = re.compile(r"at_prevalence\.(0?\.\d+)\.precision")

    def similarity(self) -> list[str]:
        """Return the names of the scores of the similarity space."""
        return [f"{self.SIMILARITY}.{name}" for name in self.names(self.SIMILARITY)]

    def target_names(self) -> list[str]:
        """Return the names by which a message lists the scores, those of the test split first."""
        return [*self.names(), *self.similarity(), *self.beside_names()]

    def is_target(self, name: str) -> bool:
        """Say whether a preset may name this score; prevalences are named by the run."""
        return self.may_exist(name)

    def score_names(self) -> list[str]:
        """Return every name that a result can hold, but for the free ones of `may_exist`."""
        metrics = self.names()
        nested = [f"edits.{edit}.{name}" for edit in self.EDITS for name in self.EDIT_SCORES]
        nested += [f"floors.{each}.{name}" for each in self.BASELINES for name in metrics]
        differences = self.differences()
        nested += [f"floors.{each}.lead.{name}" for each in self.BASELINES for name in differences]
        plain = [*metrics, *self.counts, *nested]
        of_splits = [f"{split}.{name}" for split in self.splits for name in plain]
        return list(dict.fromkeys([*self.target_names(), *plain, *of_splits]))

    def may_exist(self, name: str) -> bool:
        """Say whether a result could hold this name; prevalences are named by the run.

        >>> DETECTOR_SCORES.may_exist("at_prevalence.0.05.precision")
        True
        """
        split, _, rest = name.partition(".")
        inner = rest if split in self.splits else name
        return bool(self.AT_PREVALENCE.fullmatch(inner)) or name in self.score_names()

    def is_long(self, name: str) -> bool:
        """Say whether a message leaves this name out: those of a split, and nested ones."""
        if name.startswith(("valid", "test")):
            return True
        return name in set(self.score_names()) - {*self.target_names(), "n_samples"}

    def listed(self, known: Iterable[str]) -> str:
        """Return the scores that a message offers, and how the other names are made."""
        scores = [*self.names(), *self.similarity()]
        names = ", ".join(name for name in scores if name in set(known))
        return (
            f"Names: {names}; scores also as SPLIT.NAME, SPLIT: {', '.join(self.splits)}; what was "
            "measured beside them as GROUP.NAME, such as timing.total_s, GROUP: "
            f"{', '.join(self.beside)}."
        )

    def measured(self, known: Iterable[str]) -> str:
        """Return the names that a run measured, for a message."""
        return f"Measured: {', '.join(name for name in known if not self.is_long(name))}."

    def _of_beside(self, data: Mapping[str, Any]) -> dict[str, float | None]:
        headline = part(part(data, self.SIMILARITY), "headline")
        names = self.names(self.SIMILARITY)
        return Scores._of_beside(self, data) | _named(self.SIMILARITY, headline, names)

    def of_split(self, scores: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the named numbers of one split's scores."""
        metrics, differences = self.names(), self.differences()
        by_name = numbers(scores.get("metrics"), metrics) | numbers(scores, self.counts)
        for metric in self.metrics:
            if metric.alias_of in by_name:
                by_name.setdefault(metric.name, by_name[metric.alias_of])
        for prevalence, values in part(scores, "at_prevalence").items():
            by_name |= _named(f"at_prevalence.{prevalence}", values, ("precision",))
        for edit, values in part(scores, "edits").items():
            by_name |= _named(f"edits.{edit}", values, self.EDIT_SCORES)
        for baseline, values in part(scores, "floors").items():
            by_name |= _named(f"floors.{baseline}", part(values, "metrics"), metrics)
            for metric, difference in part(values, "lead").items():
                if metric in differences and isinstance(difference, list) and difference:
                    first = {metric: difference[0]}
                    by_name |= _named(f"floors.{baseline}.lead", first, differences)
        return by_name


_OF_SPACE = {"splits": ("similarity",), "shown_in": ()}
DETECTOR_SCORES = DetectorScores(
    metrics=(
        Metric(name="roc_auc", title="ROC-AUC", has_difference=True),
        Metric(name="pr_auc", title="PR-AUC"),
        Metric(name="accuracy"),
        # The mean of the TPR and the complement of the FPR, which have rows of their own.
        Metric(name="balanced_accuracy", title="balanced accuracy", shown_in=(CARD,)),
        Metric(name="f1", title="F1"),
        Metric(name="precision", shown_in=(CARD,)),
        Metric(name="recall", alias_of="tpr"),
        Metric(
            name="tpr",
            title="TPR (recall)",
            short="TPR",
            card_title="AI code that is called AI (TPR)",
            has_difference=True,
        ),
        Metric(
            name="tpr_at_fpr",
            title="TPR at promised FPR",
            card_title="TPR with the FPR held on this very split",
            has_difference=True,
        ),
        Metric(
            name="fpr",
            title="FPR",
            card_title="human code that is called AI (FPR)",
            lower_is_better=True,
        ),
        Metric(name="specificity", shown_in=()),
        Metric(
            name="ece",
            title="ECE",
            card_title="calibration error (ECE)",
            lower_is_better=True,
            shown_in=(TEXT, CARD),
        ),
        Metric(
            name="brier",
            title="Brier score",
            lower_is_better=True,
            shown_in=(CARD,),
        ),
        Metric(
            name="abstain_share",
            title="undecided share",
            card_title="share left undecided",
            lower_is_better=True,
            shown_in=(CARD,),
        ),
        Metric(
            name="accuracy_decided",
            title="accuracy, decided",
            card_title="accuracy on the rest",
            shown_in=(PAGE, CARD),
        ),
        Metric(name="mrr", title="MRR", **_OF_SPACE),
        Metric(name="map_at_r", title="MAP@R", **_OF_SPACE),
        Metric(name="pair_roc_auc", **_OF_SPACE),
        Metric(name="pair_accuracy", **_OF_SPACE),
        Metric(name="pair_f1", **_OF_SPACE),
    ),
    splits={
        "test": "test",
        "held_out": "held-out data",
        "unseen_humans": "unseen humans",
        "valid": "valid",
    },
    headline=(("test", "roc_auc"), ("test", "tpr"), ("test", "fpr"), ("similarity", "mrr")),
    counts=("n_samples", "n_human", "n_ai", "n_tasks"),
    card_first=(
        *("roc_auc", "pr_auc", "tpr", "fpr", "tpr_at_fpr"),
        *("accuracy", "balanced_accuracy", "precision"),
    ),
    beside={
        "operating_point": ("threshold", "temperature", "n_humans", "valid_fpr"),
        "memory": _MEMORY,
        "timing": _seconds(
            *("start", "check", "data", "audit", "model", "pretrain", "train", "evaluate"),
            *("floors", "scores", "similarity", "total"),
        ),
        "phases": _seconds("data", "forward", "backward", "optimizer", "evaluate"),
        "throughput": (
            *("programs_per_s", "useful_tokens_per_s", "padded_tokens_per_s", "useful_share"),
            "mfu_6n",
        ),
        "inference": ("ms_per_file", "files_per_s", "ms_alone"),
        "compile": ("recompiles",),
        "training": (*_TRAINING, "best_step"),
    },
    to_measure="Settings decide what is measured: objective, hold_out, unseen_humans, floors, "
    "edit_suite.",
)
