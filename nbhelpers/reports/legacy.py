"""The legacy-versus-ours table: how the old script's settings would have run, beside this run.

The legacy side comes from the preset `seed-legacy` and, for what has to be measured, from a
finished run of that preset in the same folder of runs. Nothing is typed: an unknown cell says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import NOT_MEASURED, count, duration, share, size
from nbhelpers.errors import ConfigError
from nbhelpers.reports.facts import RunFacts, dig, score

if TYPE_CHECKING:
    import pandas as pd

LEGACY_PRESET = "seed-legacy"


def legacy_table(facts: RunFacts) -> pd.DataFrame:
    """Return what the two ways of running differ in; empty without settings to compare."""
    import pandas as pd

    settings = facts.get("settings") or {}
    if facts.get("job") != "clones" or not settings or facts.is_evaluation or facts.is_sample:
        return pd.DataFrame([])  # beside a toy run, the old script's settings say nothing
    legacy, measured = _legacy_settings(), _legacy_result(facts)
    plan = {"world_size": legacy.get("num_gpus")} | legacy if legacy else {}
    if measured:
        plan, legacy = measured.get("plan") or plan, measured.get("settings") or legacy
    before = _settled(legacy, plan) | _measured(measured)
    own_share = dig(measured, "throughput", "useful_share")
    before["useful tokens per padded token"] = (
        share(own_share)
        if own_share is not None
        else _fixed_share(facts, legacy.get("seq_len"), settings.get("seq_len"))
    )
    ours = _settled(settings, facts.get("plan") or {}) | _measured(facts.data)
    ours["precision"] = facts.get("precision") or ours["precision"]
    ours["useful tokens per padded token"] = share(facts.get("throughput", "useful_share"))
    title = (
        f"{LEGACY_PRESET}, run {measured['run_id']}" if measured else f"{LEGACY_PRESET} (preset)"
    )
    rows = [{"what": what, title: before[what], "this run": ours[what]} for what in ours]
    return pd.DataFrame(rows)


def _legacy_settings() -> dict[str, Any]:
    from nbhelpers.presets.loading import load_preset

    try:
        return load_preset("clones", LEGACY_PRESET).settings.model_dump()
    except ConfigError:  # a folder of configs without it: the column then says so
        return {}


def _legacy_result(facts: RunFacts) -> dict[str, Any]:
    """Return the newest finished run of the legacy preset that lies beside this run, or {}."""
    from nbhelpers.runs.run import list_runs, sound_results

    for result in sound_results(run.path for run in list_runs(facts.run.path.parent)):
        if result.path != facts.run.path and result.data.get("preset") == LEGACY_PRESET:
            return result.data
    return {}


def _settled(settings: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, str]:
    """Return what is decided before a run starts."""
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size")
    factors = [plan.get(key) for key in keys]
    whole = settings.get("global_batch_size")
    split = " x ".join(str(f) for f in factors) if None not in factors else ""
    return {
        "training processes": _or_unknown(plan.get("world_size")),
        "context (tokens)": count(settings.get("seq_len")),
        "padding": _or_unknown(settings.get("padding")),
        "effective batch (pairs)": count(whole) + (f" = {split}" if whole and split else ""),
        "precision": _or_unknown(settings.get("precision")),
        "learning rate": _or_unknown(settings.get("learning_rate")),
        "useful tokens per padded token": NOT_MEASURED,
    }


def _measured(data: Mapping[str, Any]) -> dict[str, str]:
    """Return what only a run can tell."""
    key = "peak_allocated_bytes"
    peaks = [peak for rank in dig(data, "memory", "per_rank") or [] if (peak := dig(rank, key))]
    busy = [dig(gpu, "mean_utilisation_percent") for gpu in dig(data, "gpu") or []]
    known = [f"{value:.0f} %" for value in busy if value is not None]
    rate = dig(data, "throughput", "pairs_per_s")
    f1 = dig(data, "scores", "test", "orders", "given", "f1")
    is_gpu = dig(data, "memory", "device") == "cuda"
    return {
        "peak memory per GPU": _joined([size(p) for p in peaks if is_gpu] or _peak(data)),
        "utilisation per GPU": _joined(known),
        "training time": duration(dig(data, "timing", "train_s")),
        "training pairs per second": NOT_MEASURED if rate is None else f"{rate:.1f}",
        "F1 on test (binary)": NOT_MEASURED if f1 is None else score(f1),
    }


def _peak(data: Mapping[str, Any]) -> list[str]:
    """Return the peak that was measured without a GPU's own figures, and what it counts."""
    measured, device = dig(data, "memory", "measured_bytes"), dig(data, "memory", "device")
    what = dig(data, "memory", "what") or "measured"
    return [f"{size(measured)} ({what}, {device})" if device else size(measured)]


def _fixed_share(facts: RunFacts, legacy_tokens: int | None, our_tokens: int | None) -> str:
    """Return the share that padding to a fixed block would leave, measured on this run's pairs.

    It depends on the block, so it stands for the legacy script only at this run's own context.
    """
    fixed = facts.get("throughput", "fixed_padding_useful_share")
    if fixed is None:
        return NOT_MEASURED
    where = "" if legacy_tokens == our_tokens else f" (padded to this run's {count(our_tokens)})"
    return share(fixed) + where


def _joined(values: list[str]) -> str:
    return " / ".join(values) or NOT_MEASURED


def _or_unknown(value: Any) -> str:
    return NOT_MEASURED if value is None else str(value)
