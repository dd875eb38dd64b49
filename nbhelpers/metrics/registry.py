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


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Numbers that stand together in a result, or in the scores of one split.

    `path` leads to the mapping that holds them, and `prefix` is what their names begin with. A `*`
    in both is any of `members`, or what matches `pattern` where a run chooses the members. Of a
    list the first number counts (a difference, then its interval).
    """

    names: tuple[str, ...]
    path: str = ""
    prefix: str = ""
    members: tuple[str, ...] = ()
    pattern: str = ""

    def all_names(self) -> list[str]:
        """Return the names of all numbers but of members that a run chooses."""
        members = self.members if "*" in self.prefix else ("",)
        prefixes = [self.prefix.replace("*", member) for member in members]
        return [f"{prefix}.{name}".lstrip(".") for prefix in prefixes for name in self.names]

    def has(self, name: str) -> bool:
        """Say whether a number could have this name."""
        prefix, _, last = name.rpartition(".")
        members = self.pattern or "|".join(self.members)
        wanted = re.escape(self.prefix).replace(r"\*", f"(?:{members})")
        return last in self.names and re.fullmatch(wanted, prefix) is not None

    def numbers(self, data: Any) -> dict[str, float | None]:
        """Return the numbers that are there, by name; None for one that is undefined."""
        places = {self.prefix: data}
        for key in filter(None, self.path.split(".")):
            if key == "*":
                places = {
                    prefix.replace("*", member): value
                    for prefix, parent in places.items()
                    for member, value in (parent.items() if isinstance(parent, Mapping) else ())
                }
            else:
                places = {prefix: part(parent, key) for prefix, parent in places.items()}
        by_name: dict[str, float | None] = {}
        for prefix, values in places.items():
            for name in self.names if isinstance(values, Mapping) else ():
                value = values.get(name, "")
                value = value[0] if isinstance(value, list) and value else value
                if value is None or (
                    isinstance(value, int | float) and not isinstance(value, bool)
                ):
                    by_name[f"{prefix}.{name}".lstrip(".")] = value
        return by_name


# Costs and losses that are measured beside the scores: less is better.
_LOWER_GROUPS = ("memory.", "timing.", "phases.")
_LOWER = {"valid_fpr", "ms_per_file", "ms_alone", "recompiles"}
_LOWER |= {"skipped_steps", "first_loss", "last_loss", "fpr_unedited", "tpr_loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The metrics of a job, and how a result of the job names them.

    A result holds `scores`: by split `metrics`, and beside them counts such as `n_samples`.

    `splits` gives the title of each split, the test split first. `headline`: the scores that a
    result is known by, as (split, metric). `compared`: those that runs are compared in first, the
    headline where none is named. `path`: where a split holds its metrics. `nested`: other scores of
    a split. `beside`: what is measured beside the splits. `names_test`: a headline names the test
    split. `card_first`: the metrics that a card begins with. `unmeasured` and `to_measure`: the
    words for a score of the job that a run lacks, and what to change for it.
    """

    metrics: tuple[Metric, ...]
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test", "valid": "valid"})
    headline: tuple[tuple[str, str], ...] = ()
    compared: tuple[tuple[str, str], ...] = ()
    path: str = "metrics"
    counts: tuple[str, ...] = ("n_samples",)
    nested: tuple[Group, ...] = ()
    beside: tuple[Group, ...] = ()
    card_first: tuple[str, ...] = ()
    names_test: bool = True
    unmeasured: str = "measured"
    to_measure: str = ""

    def __post_init__(self) -> None:
        """Compare runs in the headline where nothing else is named."""
        object.__setattr__(self, "compared", self.compared or self.headline)

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

    def may_exist(self, name: str) -> bool:
        """Say whether some result of the job could hold a number of this name.

        >>> FINETUNE_SCORES.may_exist("humaneval.pass@1"), FINETUNE_SCORES.may_exist("f1")
        (True, False)
        >>> CLONES_SCORES.may_exist("floors.tfidf_mlp.f1")
        True
        >>> DETECTOR_SCORES.may_exist("at_prevalence.0.05.precision")
        True
        """
        split, _, rest = name.partition(".")
        split, rest = (split, rest) if split in self.splits else ("test", name)
        return any(group.has(rest) for group in self._of_split(split)) or any(
            group.has(name) for group in self.beside
        )

    def score_names(self) -> list[str]:
        """Return the names of all numbers, but of what a run names: `f1` and `test.f1` are one."""
        names = self.short_names()
        for split in self.splits:
            of_split = [name for group in self._of_split(split) for name in group.all_names()]
            names += of_split if split == "test" else []
            names += [f"{split}.{name}" for name in of_split]
        return list(dict.fromkeys([*names, *self._beside_names()]))

    def short_names(self) -> list[str]:
        """Return the names of the scores that a message lists: each metric once."""
        of_test, own = self.names(), {metric.name for metric in self.metrics}
        others = [f"{s}.{n}" for s in self.splits for n in self.names(s) if n not in of_test]
        others += [name for name in self._beside_names() if name.rpartition(".")[2] in own]
        return [*of_test, *others]

    def listed(self) -> str:
        """Return the names that a message offers, and how the others are made."""
        groups = ", ".join(dict.fromkeys(group.prefix for group in self.beside))
        beside = f"; what is measured beside them as GROUP.NAME, GROUP: {groups}" if groups else ""
        return (
            f"Names: {', '.join(self.short_names())}; scores also as SPLIT.NAME, SPLIT: "
            f"{', '.join(self.splits)}{beside}."
        )

    def available(self, data: Mapping[str, Any]) -> dict[str, float | None]:
        """Return every named number of a result, or of one split's scores (read as the test split).

        A score that is undefined, such as the ROC-AUC of a single class, is there with None.
        """
        is_one_split = "orders" in data or "metrics" in data
        splits = {"test": data} if is_one_split else part(data, "scores")
        by_name: dict[str, float | None] = {}
        for split, scores in splits.items():
            for group in self._of_split(split):
                for name, value in group.numbers(scores).items():
                    by_name |= {f"{split}.{name}": value} | (
                        {name: value} if split == "test" else {}
                    )
        for group in self.beside:
            by_name |= group.numbers(data)
        return by_name

    def _of_split(self, split: str) -> tuple[Group, ...]:
        metrics = Group(names=self.names(split), path=self.path)
        return (metrics, Group(names=self.counts), *self.nested)

    def _beside_names(self) -> list[str]:
        return [name for group in self.beside for name in group.all_names()]


def part(data: Any, name: str) -> Mapping[str, Any]:
    """Return a mapping inside another; an empty one where there is none."""
    value = data.get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _beside(**names: Iterable[str]) -> tuple[Group, ...]:
    return tuple(Group(path=key, prefix=key, names=tuple(n)) for key, n in names.items())


def _seconds(phases: str) -> tuple[str, ...]:
    return tuple(f"{phase}_s" for phase in phases.split())


_MEMORY = ("predicted_bytes", "measured_bytes", "error_percent")
_TRAINING = ("optimizer_steps", "epochs", "skipped_steps", "first_loss", "last_loss")

CLONES_METRICS = (
    Metric(name="precision"),
    Metric(name="recall"),
    Metric(name="f1", title="F1"),
    Metric(name="precision_macro"),
    Metric(name="recall_macro"),
    Metric(name="f1_macro"),
    Metric(name="accuracy"),
    Metric(name="roc_auc", title="ROC-AUC"),
    Metric(name="pr_auc", title="PR-AUC"),
)
ORDERS = ("given", "reversed", "mean")  # of the two functions of a pair
_OF_PAIRS = (*(metric.name for metric in CLONES_METRICS), "n_pairs", "prior")
CLONES_SCORES = Scores(
    metrics=CLONES_METRICS,
    splits={"valid": "valid", "test": "test", "test_unseen": "test unseen"},
    headline=(("test", "f1"),),
    path="orders.given",
    counts=("prior", "n_pairs", "n_functions", "n_samples"),
    nested=(
        Group(path="orders.*", prefix="*", members=ORDERS, names=_OF_PAIRS[:-2]),
        Group(path="strata.*", prefix="strata.*", pattern="[012]", names=_OF_PAIRS),
        Group(path="at_prior.*", prefix="at_prior.*", pattern=".+", names=_OF_PAIRS),
        Group(path="floors.*", prefix="floors.*", pattern=".+", names=_OF_PAIRS),
    ),
    beside=_beside(
        memory=_MEMORY,
        timing=_seconds("start check data model pretrain train evaluate floors total"),
        throughput=(
            *("pairs_per_s", "useful_tokens_per_s", "padded_tokens_per_s", "useful_share"),
            "fixed_padding_useful_share",
        ),
        training=(*_TRAINING, "best_step"),
        threshold=("value",),
    ),
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
    compared=(
        *(("test", name) for name in ("syntax_accuracy", "bleu", "exact_match")),
        *((task, "pass@1") for task in TASKS),
    ),
    beside=_beside(
        memory=_MEMORY,
        timing=_seconds("start check data model pretrain train evaluate total"),
        throughput=(
            *("useful_tokens_per_s", "padded_tokens_per_s", "samples_per_s", "useful_share"),
            *("mfu_4n", "tokens_per_update", "samples_per_update"),
        ),
        training=_TRAINING,
        adapter=("trainable_parameters", "total_parameters"),
        energy=("joules", "watts_mean"),
    ),
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


_OF_SPACE = {"splits": ("similarity",), "shown_in": ()}
DETECTOR_METRICS = (
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
)
BASELINES = {  # of clones and of a detector, with their titles
    "always_yes": "always yes",
    "identifier_overlap": "identifier overlap",
    "tfidf_mlp": "TF-IDF classifier",
    "length": "length",
    "layout": "layout features",
    "tfidf": "TF-IDF",
    "masked_tfidf": "TF-IDF of masked letters",
    "encoder": "the encoder alone",
    "raw_encoder": "raw encoder",
}
DETECTOR_BASELINES = ("length", "layout", "tfidf", "masked_tfidf", "encoder")
EDITS = {  # that keep a program's meaning, with their titles
    "reformat": "reformatted",
    "strip_comments": "stripped of comments",
    "rename": "renamed",
    "rename_reformat": "renamed and reformatted",
}
_OF_DETECTOR = tuple(metric.name for metric in DETECTOR_METRICS if not metric.splits)
_OF_EDITS = ("roc_auc", "tpr", "tpr_unedited", "tpr_loss", "fpr", "fpr_unedited")
DETECTOR_SCORES = Scores(
    metrics=DETECTOR_METRICS,
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
    nested=(
        Group(
            path="at_prevalence.*",
            prefix="at_prevalence.*",
            pattern=r"0?\.\d+",
            names=("precision",),
        ),
        Group(
            path="edits.*",
            prefix="edits.*",
            members=tuple(EDITS),
            names=_OF_EDITS,
        ),
        Group(
            path="floors.*.metrics",
            prefix="floors.*",
            members=DETECTOR_BASELINES,
            names=_OF_DETECTOR,
        ),
        Group(
            path="floors.*.lead",
            prefix="floors.*.lead",
            members=DETECTOR_BASELINES,
            names=tuple(metric.name for metric in DETECTOR_METRICS if metric.has_difference),
        ),
    ),
    beside=(
        Group(
            path="similarity.headline",
            prefix="similarity",
            names=tuple(metric.name for metric in DETECTOR_METRICS if metric.splits),
        ),
        *_beside(
            operating_point=("threshold", "temperature", "n_humans", "valid_fpr"),
            memory=_MEMORY,
            timing=_seconds(
                "start check data audit model pretrain train evaluate floors scores similarity "
                "total"
            ),
            phases=_seconds("data forward backward optimizer evaluate"),
            throughput=(
                *("programs_per_s", "useful_tokens_per_s", "padded_tokens_per_s"),
                *("useful_share", "mfu_6n"),
            ),
            inference=("ms_per_file", "files_per_s", "ms_alone"),
            compile=("recompiles",),
            training=(*_TRAINING, "best_step"),
        ),
    ),
    to_measure="Settings decide what is measured: objective, hold_out, unseen_humans, floors, "
    "edit_suite.",
)
