"""The form of what a run folder holds, so that a damaged or hand-edited file costs only itself.

`fitted` keeps what has its form and leaves out the rest, so that no reader has to ask again. A form
is a mapping (name to form, `"*"` for all other names), a list of one form, or one of the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NUMBER, TEXT, PLAIN, EDGES, ANY = "a number", "a text", "a plain value", "two numbers", "anything"
LEAD = "a number and its interval"
LARGEST = 1e300  # beyond that no number here means anything, and an integer cannot become a float
_GONE = object()

NUMBERS = {"*": NUMBER}
PLAINS = {"*": PLAIN}
INTERVALS = {"*": EDGES}
_POINT = {"*": NUMBER, "intervals": INTERVALS}
_LEAD = {"*": ANY, "f1": NUMBER, "interval": EDGES}
_LEAD |= dict.fromkeys(("roc_auc", "tpr", "tpr_at_fpr"), LEAD)
_FLOOR = {"*": NUMBER, "intervals": INTERVALS, "lead": _LEAD, "skipped": TEXT, "note": TEXT}
_FLOOR |= {"metrics": NUMBERS}
_SLICE = {
    "*": ANY,
    **dict.fromkeys(("by", "value"), PLAIN),
    **dict.fromkeys(("n_human", "n_ai", "roc_auc", "tpr", "fpr"), NUMBER),
    **dict.fromkeys(("tpr_interval", "fpr_interval"), EDGES),
}
_EDITED = _SLICE | dict.fromkeys(("skipped",), PLAIN)
_EDITED |= dict.fromkeys(("tpr_unedited", "tpr_loss", "fpr_unedited"), NUMBER)
_EDITED |= {"tpr_loss_interval": EDGES}
SPLIT = {
    "*": ANY,
    **dict.fromkeys(("n_pairs", "n_functions", "n_samples", "prior", "threshold"), NUMBER),
    **dict.fromkeys(("metrics", "outcomes", "syntax_errors"), NUMBERS),
    "signatures": PLAINS,
    "decoding": PLAINS,
    "tokenizer": TEXT,
    "orders": {"*": NUMBERS},
    "intervals": INTERVALS,
    "at_prior": {"*": _POINT},
    "strata": {"*": _POINT},
    "floors": {"*": _FLOOR},
    **dict.fromkeys(("n_human", "n_ai", "n_tasks"), NUMBER),
    "at_prevalence": {"*": {"*": ANY, "precision": NUMBER, "precision_interval": EDGES}},
    "reliability": [NUMBERS],
    "slices": [_SLICE],
    "worst": {"*": _SLICE},
    "edits": {"*": _EDITED | {"floors": {"*": _EDITED}}},
}
GPU = {
    "*": ANY,
    **dict.fromkeys(("index", "name"), PLAIN),
    **dict.fromkeys(("utilisation_percent", "memory_used_bytes", "power_w"), NUMBER),
    **dict.fromkeys(("mean_utilisation_percent", "peak_memory_used_bytes"), NUMBER),
}
EVENT = {
    "*": ANY,
    **dict.fromkeys(("message", "name", "kind", "fix", "details"), TEXT),
    **dict.fromkeys(("t", "rank", "step", "total_steps", "epoch", "done", "total"), NUMBER),
    **dict.fromkeys(("loss", "useful_tokens_per_s", "memory_bytes", "skipped_steps"), NUMBER),
    **dict.fromkeys(("learning_rate", "classification_loss", "contrastive_loss"), NUMBER),
    "reason": PLAIN,
    "gpus": [GPU],
    "scores": NUMBERS,
}
_STEP = EVENT | dict.fromkeys(("f1", "roc_auc", "tpr", "fpr", "mrr"), NUMBER)
_LINE = {"*": ANY, "name": TEXT, "size_bytes": NUMBER, "note": TEXT}
_BUDGET = {"lines": [_LINE], "total_bytes": NUMBER, "capacity_bytes": NUMBER, "*": ANY}
_PLAN = {"*": ANY, "world_size": NUMBER}
_RANK = {
    "*": ANY,
    **dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "rss_bytes"), NUMBER),
}
_OF_STEP = ("predicted_bytes", "measured_bytes", "error_percent")
_BY_PHASE = {"*": ANY, "phase": TEXT, **dict.fromkeys(_OF_STEP, NUMBER)}
_ALIVE = {
    "*": ANY,
    "made_at": TEXT,
    **dict.fromkeys(("size_bytes", "count", "total_bytes"), NUMBER),
}
_MEMORY = {
    "*": ANY,
    **dict.fromkeys(("what", "device"), TEXT),
    **dict.fromkeys(("predicted_bytes", "measured_bytes", "error_percent"), NUMBER),
    "per_rank": [_RANK],
    "phases": [_BY_PHASE],
    "reserved": NUMBERS,
    "left_over": NUMBERS,
    "snapshot": {"*": ANY, "file": TEXT, "alive": [_ALIVE], **dict.fromkeys(_OF_STEP, NUMBER)},
    **dict.fromkeys(("source", "basis"), TEXT),
}
_TRAINING = {
    "*": ANY,
    **dict.fromkeys(("epochs", "examples", "skipped_steps", "best_step", "resumed_from"), PLAIN),
    **dict.fromkeys(("optimizer_steps", "total_steps", "first_loss", "last_loss"), NUMBER),
    "history": [_STEP],
    "evals": [_STEP],
}
_FINDINGS = {
    "*": ANY,
    "counts": NUMBERS,
    **dict.fromkeys(("rows_read", "rows_dropped"), (NUMBER, NUMBERS)),
    "facts": {"*": ANY},
    "examples": [ANY],
    "notes": [ANY],
}
_SETTINGS = {
    "*": ANY,
    **dict.fromkeys(("seq_len", "global_batch_size"), NUMBER),
    "targets": NUMBERS,
}
_ADAPTER = {
    "*": ANY,
    **dict.fromkeys(("name", "method"), TEXT),
    **dict.fromkeys(("r", "alpha", "trainable_parameters", "total_parameters"), NUMBER),
    "target_modules": (TEXT, [TEXT]),
}
_COUNTED = ("pairs", "clones", "functions", "samples", "tokens", "supervised_tokens", "cut")
_COUNTED += ("dropped",)
_DATA = {
    "*": ANY,
    **dict.fromkeys(("source", "revision", "licence", "fingerprint", "template", "note"), PLAIN),
    "canonical": PLAIN,
    "splits": {"*": {"*": ANY} | dict.fromkeys(_COUNTED, NUMBER)},
    "problems": (TEXT, _FINDINGS),
    "lengths": {"*": NUMBER, "edges": [NUMBER], "counts": [NUMBER]},
    "example": [[PLAIN]],
}
_POINT_CHOSEN = {
    "*": ANY,
    **dict.fromkeys(("threshold", "threshold_logit", "temperature", "target_fpr"), NUMBER),
    **dict.fromkeys(("n_humans", "valid_fpr", "target_miss_rate"), NUMBER),
    **dict.fromkeys(("valid_fpr_interval", "abstain"), EDGES),
    "chosen_on": TEXT,
    "warnings": [TEXT],
}
_RETRIEVAL = {
    "*": ANY,
    **dict.fromkeys(("split", "query", "pool"), PLAIN),
    **dict.fromkeys(("n_queries", "pool_size", "mrr", "map_at_r"), NUMBER),
    **dict.fromkeys(("mrr_interval", "map_at_r_interval"), EDGES),
    "floors": {"*": {"*": ANY, "mrr": NUMBER, "map_at_r": NUMBER, "lead": LEAD}},
}
_PAIRS = {
    "*": ANY,
    **dict.fromkeys(("n_pairs", "n_positive", "roc_auc", "average_precision"), NUMBER),
    **dict.fromkeys(("threshold", "accuracy", "f1"), NUMBER),
    "roc_auc_interval": EDGES,
    "floors": {"*": {"*": ANY, "roc_auc": NUMBER}},
}
DETECTOR = {
    "audit": {"*": ANY, "verdict": TEXT, "reasons": [TEXT], "warnings": [TEXT]},
    "operating_point": _POINT_CHOSEN,
    "similarity": {
        "*": ANY,
        "dimensions": NUMBER,
        "retrieval": [_RETRIEVAL],
        "pairs": _PAIRS,
        "headline": NUMBERS,
    },
    "phases": NUMBERS,
    "inference": NUMBERS,
    "compile": {"*": ANY, "is_on": PLAIN, "recompiles": NUMBER, "self_test": {"*": ANY}},
}
RESULT = {
    "*": ANY,
    **dict.fromkeys(("run_id", "job", "mode", "command", "git_commit"), TEXT),
    **dict.fromkeys(("preset", "seed", "precision", "checkpoint"), PLAIN),
    "scores": {"*": SPLIT},
    "timing": NUMBERS,
    "throughput": NUMBERS,
    "memory": _MEMORY,
    "budget": _BUDGET,
    "plan": _PLAN,
    "training": _TRAINING,
    "settings": _SETTINGS,
    "threshold": {"*": ANY, "value": NUMBER},
    "model": {"*": ANY, "parameters": NUMBER, "random_weights": PLAIN, "parity": {"*": ANY}},
    "data": _DATA,
    "adapter": _ADAPTER,
    "energy": NUMBERS,
    "gpu_baseline": NUMBERS,
    "sandbox": {"*": ANY, "held": [TEXT], "passed": [TEXT], "warning": TEXT},
    "versions": {"*": PLAIN},
    "gpu": [GPU],
    "warnings": [TEXT],
    **DETECTOR,
}
_PRESET = {
    "*": ANY,
    **dict.fromkeys(("job", "name", "about"), TEXT),
    "settings": {"*": ANY},
    "base": {"*": ANY},
    "provenance": {"*": TEXT},
    "why": {"*": TEXT},
    "notes": [TEXT],
}
RECORD = {
    "*": ANY,
    **dict.fromkeys(("run_id", "job", "mode", "command", "created_at", "checkpoint"), TEXT),
    "preset": _PRESET,
    "plan": _PLAN,
    "budget": _BUDGET,
    "versions": {"*": PLAIN},
}
PROCESS = {
    "*": ANY,
    **dict.fromkeys(("pid", "guard_pid", "pgid", "owner_pid", "started_at"), NUMBER),
    **dict.fromkeys(("launch_id", "start_time", "guard_start_time", "host"), TEXT),
    "offsets": NUMBERS,
}


def fitted(value: Any, form: Any) -> Any:
    """Return the part of a JSON value that has the form, None where nothing is left of it.

    A number that is not finite becomes None, as JSON has no word for it.

    >>> fitted({"f1": 0.5, "auc": [], "loss": float("nan")}, NUMBERS)
    {'f1': 0.5, 'loss': None}
    """
    found = _fit(value, form)
    return None if found is _GONE else found


def left_out(raw: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Name what `fitted` did not keep, by its dotted place.

    >>> list(left_out({"a": 1, "b": {"c": [1, "x"]}}, {"a": 1, "b": {"c": [1]}}))
    ['b.c']
    """
    if isinstance(raw, dict) and isinstance(kept, dict):
        for key, value in raw.items():
            place = f"{where}.{key}".lstrip(".")
            yield from left_out(value, kept[key], place) if key in kept else (place,)
    elif isinstance(raw, list) and isinstance(kept, list) and len(raw) == len(kept):
        for index, (one, other) in enumerate(zip(raw, kept, strict=True)):
            yield from left_out(one, other, f"{where}[{index}]")
    elif raw != kept:
        yield where


def _fit(value: Any, form: Any) -> Any:
    if value is None:
        return None
    if isinstance(form, tuple):
        fits = (_fit(value, each) for each in form)
        return next((each for each in fits if each is not _GONE), _GONE)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return _GONE
        pairs = ((k, _fit(v, form.get(k, form.get("*", ANY)))) for k, v in value.items())
        return {key: each for key, each in pairs if each is not _GONE}
    if isinstance(form, list):
        if not isinstance(value, list):
            return _GONE
        items = (_fit(each, form[0]) for each in value)
        return [each for each in items if each is not _GONE and each is not None]
    return _fit_word(value, form)


def _fit_word(value: Any, word: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and word in (NUMBER, PLAIN):
        return value if -LARGEST < value < LARGEST else None  # NaN is neither
    if word == LEAD:  # the interval may be unknown
        found = [_fit(each, NUMBER) for each in value] if isinstance(value, list) else []
        return _GONE if len(found) != 3 or _GONE in found or found[0] is None else found
    if word == EDGES:
        edges = [_fit(each, NUMBER) for each in value] if isinstance(value, list) else []
        is_whole = len(edges) == 2 and all(isinstance(each, int | float) for each in edges)
        return edges if is_whole else _GONE
    if word == ANY or (word == TEXT and isinstance(value, str)):
        return value
    return value if word == PLAIN and isinstance(value, str | bool) else _GONE
