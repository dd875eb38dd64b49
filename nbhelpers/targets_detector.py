"""Names of the scores of a detector, for targets of a preset and for requirements.

`roc_auc` is of the test split, `unseen_humans.fpr` of another one, `edits.rename.tpr_loss` of the
test programs after an edit, `floors.tfidf.lead.tpr` the lead over a floor, `similarity.mrr` of the
similarity space, `timing.total_s` something measured beside the scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DETECTOR_METRICS = (
    "roc_auc",
    "pr_auc",
    "accuracy",
    "balanced_accuracy",
    "f1",
    "precision",
    "recall",
    "tpr",
    "tpr_at_fpr",
    "fpr",
    "specificity",
    "ece",
    "brier",
    "abstain_share",
    "accuracy_decided",
)
DETECTOR_TITLES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "tpr": "TPR (recall)",
    "tpr_at_fpr": "TPR at promised FPR",
    "fpr": "FPR",
    "specificity": "specificity",
    "ece": "ECE",
    "brier": "Brier score",
    "abstain_share": "undecided share",
    "accuracy_decided": "accuracy, decided",
}
DETECTOR_SPLITS = ("test", "held_out", "unseen_humans", "valid")
DETECTOR_FLOORS = ("length", "layout", "tfidf")
DETECTOR_EDITS = ("reformat", "strip_comments", "rename", "rename_reformat")
EDIT_SCORES = ("roc_auc", "tpr", "tpr_unedited", "tpr_loss", "fpr", "fpr_unedited")
SIMILARITY_SCORES = ("mrr", "map_at_r", "pair_roc_auc", "pair_accuracy", "pair_f1")
COUNTS = ("n_samples", "n_human", "n_ai", "n_tasks")
LEADS = ("roc_auc", "tpr", "tpr_at_fpr")
_PHASES = ("start", "check", "data", "audit", "model", "pretrain", "train", "evaluate", "floors")
_PHASES += ("scores", "similarity")
DETECTOR_BESIDE = {
    "operating_point": ("threshold", "temperature", "n_humans", "valid_fpr"),
    "memory": ("predicted_bytes", "measured_bytes", "error_percent"),
    "timing": tuple(f"{phase}_s" for phase in (*_PHASES, "total")),
    "phases": ("data_s", "forward_s", "backward_s", "optimizer_s", "evaluate_s"),
    "throughput": (
        "programs_per_s",
        "useful_tokens_per_s",
        "padded_tokens_per_s",
        "useful_share",
        "mfu_6n",
    ),
    "inference": ("ms_per_file", "files_per_s", "ms_alone"),
    "compile": ("recompiles",),
    "training": (
        "optimizer_steps",
        "epochs",
        "skipped_steps",
        "first_loss",
        "last_loss",
        "best_step",
    ),
}
OTHER_NAMES = (
    f"scores also as SPLIT.NAME, SPLIT: {', '.join(DETECTOR_SPLITS)}; what was measured beside "
    f"them as GROUP.NAME, such as timing.total_s, GROUP: {', '.join(DETECTOR_BESIDE)}"
)
_LOWER = {"fpr", "fpr_unedited", "valid_fpr", "ece", "brier", "abstain_share", "tpr_loss"}
_LOWER |= {"ms_per_file", "ms_alone", "recompiles", "skipped_steps", "first_loss", "last_loss"}
_LOWER_GROUPS = ("memory.", "timing.", "phases.")
_AT_PREVALENCE = re.compile(r"at_prevalence\.(0?\.\d+)\.precision")


def is_upper_bound(name: str) -> bool:
    """Say whether a target of this name is reached from below: errors, losses, times, memory.

    >>> is_upper_bound("unseen_humans.fpr"), is_upper_bound("timing.total_s")
    (True, True)
    >>> is_upper_bound("roc_auc"), is_upper_bound("floors.tfidf.lead.tpr")
    (False, False)
    """
    return name.startswith(_LOWER_GROUPS) or name.rpartition(".")[2] in _LOWER


def detector_names() -> list[str]:
    """Return the names by which a message lists the scores, those of the test split first."""
    names = [*DETECTOR_METRICS, *(f"similarity.{name}" for name in SIMILARITY_SCORES)]
    return names + [f"{group}.{n}" for group, inner in DETECTOR_BESIDE.items() for n in inner]


def is_score(name: str) -> bool:
    """Say whether a name is of a score, not of what was measured beside the scores.

    >>> is_score("similarity.mrr"), is_score("timing.total_s")
    (True, False)
    """
    return name.partition(".")[0] not in DETECTOR_BESIDE


def all_detector_names() -> list[str]:
    """Return every name that a result can hold, but for the free ones of `may_be_detector`."""
    nested = [f"edits.{edit}.{name}" for edit in DETECTOR_EDITS for name in EDIT_SCORES]
    nested += [f"floors.{floor}.{name}" for floor in DETECTOR_FLOORS for name in DETECTOR_METRICS]
    nested += [f"floors.{floor}.lead.{name}" for floor in DETECTOR_FLOORS for name in LEADS]
    plain = [*DETECTOR_METRICS, *COUNTS, *nested]
    of_splits = [f"{split}.{name}" for split in DETECTOR_SPLITS for name in plain]
    return list(dict.fromkeys([*detector_names(), *plain, *of_splits]))


def may_be_detector(name: str) -> bool:
    """Say whether a result of a detector could hold this name; prevalences are named by the run.

    >>> may_be_detector("at_prevalence.0.05.precision"), may_be_detector("mean.f1")
    (True, False)
    """
    split, _, rest = name.partition(".")
    inner = rest if split in DETECTOR_SPLITS else name
    return bool(_AT_PREVALENCE.fullmatch(inner)) or name in all_detector_names()


def available_of_detector(data: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every named number of a detector's result; an undefined score is there with None."""
    found: dict[str, float | None] = {}
    for split, scores in _inside(data, "scores").items():
        found |= {f"{split}.{name}": value for name, value in of_split(scores or {}).items()}
    plain = {name[5:]: value for name, value in found.items() if name.startswith("test.")}
    groups = {group: _inside(data, group) for group in DETECTOR_BESIDE}
    groups["similarity"] = _inside(_inside(data, "similarity"), "headline")
    for group, names in {**DETECTOR_BESIDE, "similarity": SIMILARITY_SCORES}.items():
        plain |= {f"{group}.{name}": v for name, v in _numbers(groups[group], names).items()}
    return plain | found


def of_split(scores: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the named numbers of one split's scores."""
    found = _numbers(_inside(scores, "metrics"), DETECTOR_METRICS) | _numbers(scores, COUNTS)
    if "tpr" in found:
        found.setdefault("recall", found["tpr"])
    for prevalence, values in _inside(scores, "at_prevalence").items():
        found |= _named(f"at_prevalence.{prevalence}", values, ("precision",))
    for edit, values in _inside(scores, "edits").items():
        found |= _named(f"edits.{edit}", values, EDIT_SCORES)
    for floor, values in _inside(scores, "floors").items():
        found |= _named(f"floors.{floor}", _inside(values, "metrics"), DETECTOR_METRICS)
        for metric, lead in _inside(values, "lead").items():
            if metric in LEADS and lead:
                found |= _named(f"floors.{floor}.lead", {metric: lead[0]}, LEADS)
    return found


def _inside(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return data.get(name) or {}


def _named(
    place: str, values: Mapping[str, Any], names: tuple[str, ...]
) -> dict[str, float | None]:
    return {f"{place}.{name}": value for name, value in _numbers(values, names).items()}


def _numbers(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float | None]:
    """Return the wanted values that are there; null stands for an undefined one."""
    return {name: values[name] for name in names if name in values}
