"""Names of scores, targets of a preset, and the requirements of a nightly run.

A name is read from the right: `f1` is the test split in the given order, `mean.f1` the mean of both
orders, `valid.roc_auc` another split, `memory.error_percent` something measured beside the scores.
Of a fine-tuning, `bleu` is of the test split, `humaneval.pass@1` of a set of test problems. The
names of a detector stand in `targets_detector`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.files import is_number
from nbhelpers.targets_detector import (
    DETECTOR_BESIDE,
    OTHER_NAMES,
    all_detector_names,
    available_of_detector,
    detector_names,
    is_score,
    is_upper_bound,
    may_be_detector,
)

METRICS = (
    "precision",
    "recall",
    "f1",
    "precision_macro",
    "recall_macro",
    "f1_macro",
    "accuracy",
    "roc_auc",
    "pr_auc",
)
# Of a fine-tuning: the generated answers of the test split, and the programs of the problem sets.
TEXT_METRICS = ("syntax_accuracy", "bleu", "chrf", "exact_match", "stopped", "mean_new_tokens")
TASK_METRICS = ("pass@1", "syntax_accuracy", "stopped", "mean_new_tokens")
TASKS = ("humaneval", "mbpp", "sample")
TITLES = {
    "syntax_accuracy": "syntax accuracy",
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "stopped": "stopped by itself",
    "mean_new_tokens": "mean new tokens",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "sample": "sample problems",
}
ONE_DECIMAL = ("bleu", "chrf", "mean_new_tokens")  # 0 to 100, or a count; the others are 0 to 1
SPLITS = ("valid", "test", "test_unseen")
ORDERS = ("given", "reversed", "mean")
NESTED = ("strata", "at_prior", "floors")
BESIDE = {
    "memory": ("predicted_bytes", "measured_bytes", "error_percent"),
    "timing": tuple(
        f"{phase}_s"
        for phase in (
            "start",
            "check",
            "data",
            "model",
            "pretrain",
            "train",
            "evaluate",
            "floors",
            "total",
        )
    ),
    "throughput": (
        "pairs_per_s",
        "useful_tokens_per_s",
        "padded_tokens_per_s",
        "useful_share",
        "fixed_padding_useful_share",
    ),
    "training": (
        "optimizer_steps",
        "epochs",
        "skipped_steps",
        "first_loss",
        "last_loss",
        "best_step",
    ),
    "threshold": ("value",),
}
FINETUNE_BESIDE = {
    "memory": BESIDE["memory"],
    "timing": tuple(
        f"{phase}_s"
        for phase in ("start", "check", "data", "model", "pretrain", "train", "evaluate", "total")
    ),
    "throughput": (
        "useful_tokens_per_s",
        "padded_tokens_per_s",
        "samples_per_s",
        "useful_share",
        "mfu_4n",
        "tokens_per_update",
        "samples_per_update",
    ),
    "training": ("optimizer_steps", "epochs", "skipped_steps", "first_loss", "last_loss"),
    "adapter": ("trainable_parameters", "total_parameters"),
    "energy": ("joules", "watts_mean"),
    "gpu_baseline": ("before_bytes", "after_bytes"),
}
_COMPARE = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
    "==": lambda value, bound: value == bound,
}
_FORM = re.compile(r"^\s*([A-Za-z_][\w.@\- ]*?)\s*(>=|<=|==|>|<)\s*([^\s<>=]+)\s*$")


def available(data: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every named number of a result, or of one split's scores (read as the test split).

    A score that is undefined, such as the ROC-AUC of a single class, is there with None.
    """
    if data.get("job") == "detector":
        return available_of_detector(data)
    is_one_split = "orders" in data or "metrics" in data
    splits = {"test": data} if is_one_split else data.get("scores") or {}
    found: dict[str, float | None] = {}
    for split, scores in splits.items():
        found |= {f"{split}.{name}": value for name, value in _of_split(scores or {}).items()}
    plain = {name[5:]: value for name, value in found.items() if name.startswith("test.")}
    for group, names in _beside(data.get("job")).items():
        measured = data.get(group)
        if not isinstance(measured, Mapping):  # one split's scores have a number for a threshold
            continue
        plain |= {f"{group}.{name}": measured[name] for name in names if name in measured}
    return plain | found


def written(metric: str, value: float | None) -> str:
    """Write a score of a fine-tuning with the decimals that it bears.

    >>> written("bleu", 31.26), written("humaneval.pass@1", 0.25), written("bleu", None)
    ('31.3', '0.250', 'undefined')
    """
    if value is None:
        return "not run" if metric.endswith("pass@1") else "undefined"
    return f"{value:.1f}" if metric.rpartition(".")[2] in ONE_DECIMAL else f"{value:.3f}"


def _beside(job: str | None) -> dict[str, tuple[str, ...]]:
    """Return what a job measures beside its scores; of an unknown job, what any job measures."""
    of_jobs = {"finetune": FINETUNE_BESIDE, "detector": DETECTOR_BESIDE}
    if job is not None:
        return of_jobs.get(job, BESIDE)
    all_jobs: dict[str, dict[str, None]] = {}
    for beside in (BESIDE, *of_jobs.values()):
        for group, names in beside.items():
            all_jobs[group] = all_jobs.get(group, {}) | dict.fromkeys(names)
    return {group: tuple(names) for group, names in all_jobs.items()}


def _of_split(scores: Mapping[str, Any]) -> dict[str, float | None]:
    orders = scores.get("orders") or {}
    found = dict(orders.get("given") or scores.get("metrics") or {})
    counts = ("prior", "n_pairs", "n_functions", "n_samples")
    found |= {name: scores[name] for name in counts if name in scores}
    groups = orders | {
        f"{group}.{key}": values
        for group in NESTED
        for key, values in (scores.get(group) or {}).items()
    }
    for group, values in groups.items():
        for name, value in (values or {}).items():
            if value is None or is_number(value):
                found[f"{group}.{name}"] = value
    return found


def lookup(data: Mapping[str, Any], name: str) -> float | None:
    """Return the number called `name` in a result or in one split's scores.

    Raises:
        ConfigError: There is no such number; the message names the nearest and all there are.
    """
    known = available(data)
    if name in known:
        return known[name]
    if data.get("job") == "finetune" and name in score_names("finetune"):
        text = f"the run evaluated no {name}, so it cannot be compared"
        raise ConfigError(text, fix=f"{_TO_EVALUATE} {_listed(known)}")
    if data.get("job") == "detector" and may_be_detector(name):
        text = f"the run measured no {name}, so it cannot be compared"
        raise ConfigError(text, fix=f"{_TO_MEASURE} Measured: {', '.join(_short(known))}.")
    raise _unknown(name, known)


_TO_EVALUATE = "Evaluate the run with evaluate=all and the set of problems in tasks."

_TO_MEASURE = (
    "Settings decide what is measured: objective, hold_out, unseen_humans, floors, edit_suite."
)


def check_targets(
    targets: Mapping[str, float], scores_test: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return per target its measured value and whether it was reached, see `is_reached`.

    Raises:
        ConfigError: A target names a score that does not exist.
    """
    rows = []
    for metric, target in targets.items():
        value = lookup(scores_test, metric)
        passed = is_reached(metric, value, target)
        rows.append({"metric": metric, "target": target, "value": value, "passed": passed})
    return rows


def is_reached(metric: str, value: float | None, target: float) -> bool:
    """Say whether a score reaches its target: at least so much, of an error or a cost at most.

    >>> is_reached("f1", 0.9, 0.85), is_reached("fpr", 0.02, 0.01), is_reached("f1", None, 0.1)
    (True, False, False)
    """
    if value is None:
        return False
    return value <= target if is_upper_bound(metric) else value >= target


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on a finished run, such as `f1>=0.9`."""

    metric: str
    op: str
    value: float

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.metric}{self.op}{self.value:g}"

    def check(self, result_data: Mapping[str, Any]) -> dict[str, Any]:
        """Return metric, op, target, the measured value and whether it passed; undefined fails.

        Raises:
            ConfigError: The result has no number of that name.
        """
        measured = lookup(result_data, self.metric)
        passed = measured is not None and _COMPARE[self.op](measured, self.value)
        row = {"metric": self.metric, "op": self.op, "target": self.value}
        return row | {"value": measured, "passed": passed}

    def enforce(self, result_data: Mapping[str, Any]) -> None:
        """Do nothing when the condition holds.

        Raises:
            RequirementMissed: It does not hold, or the number is undefined.
        """
        row = self.check(result_data)
        if row["passed"]:
            return
        so = "undefined here" if row["value"] is None else f"{row['value']:.6g}"
        raise RequirementMissed(
            f"required {self}, but {self.metric} is {so}",
            fix="Read the report of the run, or change the value after --require.",
        )


def parse_requirement(text: str, job: str | None = None) -> Requirement:
    """Read a condition such as `f1>=0.9` or `memory.error_percent < 10` before anything runs.

    Args:
        text: The condition.
        job: Whose scores it may name; None: those of any job.

    >>> parse_requirement("test.mean.f1 >= 0.9")
    Requirement(metric='test.mean.f1', op='>=', value=0.9)

    Raises:
        ConfigError: It is not NAME OP NUMBER, or the name cannot exist in any result.
    """
    match = _FORM.match(text)
    form = "Write NAME OP NUMBER, for example 'f1>=0.9'; OP is one of >= <= > < ==."
    if match is None:
        fix = f"{form} {_listed(score_names(job))}"
        raise ConfigError(f"cannot read the requirement {text!r}", fix=fix)
    metric, op, number = match.groups()
    try:
        value = math.nan if "_" in number else float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{number!r} in the requirement {text!r} is not a number", fix=form)
    if not _may_exist(metric, job):
        raise _unknown(metric, score_names(job))
    return Requirement(metric=metric, op=op, value=value)


def _may_exist(name: str, job: str | None = None) -> bool:
    """Say whether some result could hold this name: floors and priors are named by the run."""
    if name in score_names(job) or (job in (None, "detector") and may_be_detector(name)):
        return True
    if job in ("finetune", "detector"):
        return False
    parts = name.split(".")
    nested = parts[1:] if parts[0] in SPLITS else parts
    return len(nested) >= 3 and nested[0] in NESTED and nested[-1] in (*METRICS, "n_pairs", "prior")


def is_of_split(name: str) -> bool:
    """Say whether the scores of one split of `clones`, the test split, may hold this name.

    >>> is_of_split("mean.f1"), is_of_split("floors.tfidf_mlp.f1"), is_of_split("valid.f1")
    (True, True, False)
    """
    plain = name.removeprefix("test.")
    if plain.rpartition(".")[2] not in METRICS or plain.startswith(tuple(f"{s}." for s in SPLITS)):
        return False
    return _may_exist(plain, "clones")


def is_target(name: str, job: str) -> bool:
    """Say whether a preset of the job may name this score under `targets`.

    >>> is_target("humaneval.pass@1", "finetune"), is_target("f1", "finetune")
    (True, False)
    """
    if job == "detector":
        return may_be_detector(name)
    return is_of_split(name) if job == "clones" else name in target_names(job)


def target_names(job: str) -> list[str]:
    """Return the scores that a preset of the job may name, those of the test split first."""
    if job == "clones":
        return list(METRICS)
    if job == "detector":
        return detector_names()
    names = [*TEXT_METRICS, *(f"test.{name}" for name in TEXT_METRICS)]
    return names + [f"{task}.{name}" for task in TASKS for name in TASK_METRICS]


def score_names(job: str | None = None) -> list[str]:
    """Return every name that a result of the job can hold by its form; None: of any job."""
    names = []
    if job in (None, "clones"):
        plain = [*METRICS, "prior", "n_pairs", "n_functions"]
        plain += [f"{order}.{metric}" for order in ORDERS for metric in METRICS]
        names += [*plain, *(f"{split}.{name}" for split in SPLITS for name in plain)]
    if job in (None, "finetune"):
        counts = ["n_samples", *(f"{group}.n_samples" for group in ("test", *TASKS))]
        names += [*target_names("finetune"), *counts]
    if job in (None, "detector"):
        names += all_detector_names()
    names += [f"{group}.{name}" for group, beside in _beside(job).items() for name in beside]
    return list(dict.fromkeys(names))


def _listed(known: list[str] | Mapping[str, Any]) -> str:
    names, is_of_finetune = f"Names: {', '.join(_short(known))}", "bleu" in known
    if is_of_finetune and "f1" not in known:
        return f"{names}."
    if "tpr" in known and not is_of_finetune:
        scores = [name for name in detector_names() if name in known and is_score(name)]
        return f"Names: {', '.join(scores)}; {OTHER_NAMES}."
    return f"{names}; scores also as SPLIT.NAME, SPLIT: {', '.join(SPLITS)}."


def _short(known: list[str] | Mapping[str, Any]) -> list[str]:
    """Return the names that a message lists: none of a split, and of a detector nothing nested."""
    long = set(all_detector_names()) - {*detector_names(), "n_samples"}
    return [name for name in known if not name.startswith(SPLITS) and name not in long]


def _unknown(name: str, known: list[str] | Mapping[str, Any]) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    near = near or sorted((k for k in known if name.startswith(k)), key=len, reverse=True)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"no score is called {name!r}", fix=f"{hint}{_listed(known)}")
