"""The end of a run: what every job's `result.json` holds, and which checkpoint is evaluated."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object

from nbhelpers.budget import prediction_log, speeds
from nbhelpers.budget.memory import MemoryBudget, compare
from nbhelpers.common.result_files import Result
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.measure import MemoryMeter, peak_rss_bytes
from nbhelpers.jobs.measure_phases import memory_facts
from nbhelpers.jobs.probe import ProbedSteps, rate_of
from nbhelpers.jobs.training import Training
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.packages import WEIGHTS_OF
from nbhelpers.presets.schema import Settings
from nbhelpers.runs.events import read_events
from nbhelpers.use.trained import FACTS_NAME
from nbhelpers.use.weight_files import weights_file

if TYPE_CHECKING:
    from nbhelpers.jobs.models.encoders import Tokeniser

ADAPTER = "adapter_model.safetensors"
VERSIONS = (
    "nbhelpers",
    "torch",
    "transformers",
    "peft",
    "trl",
    "bitsandbytes",
    "sacrebleu",
    "accelerate",
    "tokenizers",
    "numpy",
    "scikit-learn",
)


def checkpoint_file(path: Path) -> Path:
    """Return the weights file of a run, of a checkpoint folder, or the file itself.

    Raises:
        DataError: There is none, or it is not clear which one is meant.
    """
    if (path / "checkpoints").is_dir():
        path = ck.find_best(path / "checkpoints")
    if (path / ADAPTER).is_file():
        return path / ADAPTER
    path = weights_file(path)
    return path / "model.safetensors" if path.is_dir() else path


def settings_for_checkpoint(job: str, settings: Settings, path: Path) -> Settings:
    """Return the settings that build a checkpoint's architecture.

    An adapter goes on the base of its run, so a fine-tuning's settings stay. A checkpoint of ours
    has its configuration and tokenizer beside it; other weights are of the architecture that
    `model` names.

    Raises:
        DataError: There is no such checkpoint.
        ConfigError: The architecture cannot be known.
    """
    if not path.is_file():
        raise DataError(f"There is no checkpoint {path}.", fix="check the path")
    if JOBS[job].has_adapters:
        return settings
    own = JOBS[job].models.embedded
    changes: dict[str, Any] = {"random_weights": True, "pretrain_steps": 0}
    is_ours = any((path.parent / name).is_file() for name in (ck.MANIFEST, FACTS_NAME))
    if is_ours or (settings.model in own and (path.parent / "config.json").is_file()):
        changes["model"] = str(path.parent)
    elif settings.model in own:
        raise ConfigError(
            f"{path} has no config.json beside it, so its architecture is not known.",
            fix="give --model with the architecture it was trained from: codegpt, graphcodebert, "
            "codebert, a hub id or a folder (a smoke model's folder: its tokenizer is its own)",
        )
    return settings.model_copy(update=changes)


def gather_memory(
    context: RunContext, training: Training | None, *, meter: MemoryMeter | None = None
) -> list[dict[str, Any]]:
    """Return every rank's measured memory; all ranks must call it.

    Args:
        meter: Counts since some time before, where nothing was trained.
    """
    if training is not None:
        meter = training.meter
    meter = meter or MemoryMeter(context.accelerator.device, card=context.card)
    ranks = gather_object([meter.facts(context.rank)])
    context.accelerator.wait_for_everyone()
    return ranks


def write_result(
    context: RunContext,
    training: Training | None,
    ranks: list[dict[str, Any]],
    parts: dict[str, Any],
) -> None:
    """Write `result.json`, checked by its model, and say that the run has ended; rank 0 only.

    Args:
        ranks: From `gather_memory`.
        parts: What the job adds: data, model, scores and the like.
    """
    context.clock.phase("finish")
    ranks[0]["rss_bytes"] = peak_rss_bytes()  # scores and floors came after the gathering
    facts, s, trained = context.facts, context.settings, training is not None
    budget = training.budget if training else None
    result = {
        "settings": s.model_dump(),
        "checkpoint": facts.get("checkpoint"),
        "git_commit": facts.get("git_commit"),
        "seed": s.seed,
        "versions": library_versions(*filter(None, [WEIGHTS_OF.get(s.model)])),
        "training": _training_facts(training),
        "memory": memory_facts(context, ranks, budget, trained=trained),
        "gpu": training.gpu if training else [],
    }
    written = _write(context, result | parts)
    prediction_log.append(written, facts)


def _write(context: RunContext, parts: dict[str, Any]) -> dict[str, Any]:
    """Write what every result holds with its parts, and end the run; return what was written."""
    facts = context.facts
    result = {
        "schema": 1,
        "run_id": facts["run_id"],
        "job": facts["job"],
        "mode": facts["mode"],
        "preset": context.preset.name,
        "precision": context.precision,
        "plan": context.plan.to_dict(),
        "budget": facts["budget"],
        "command": facts.get("command"),
        "finished_at": time.time(),
        "warnings": context.warnings,
        "timing": context.clock.result(),
    }
    written = Result.write(context.run.result_path, result | parts).raw
    speeds.remember(facts, written)
    context.emit_rank("end")
    context.accelerator.end_training()
    return written


def write_probe(context: RunContext, training: Training | None) -> None:
    """Write the `result.json` of a probe; all ranks call it, rank 0 writes.

    Args:
        training: None: the run trains nothing, so there is no step to measure.
    """
    peaks = {"allocated": 0, "reserved": 0}
    if training is not None:
        meter = training.meter
        peaks = {"allocated": meter.peak_bytes(), "reserved": meter.reserved_bytes()}
    ranks = gather_object([peaks])
    context.accelerator.wait_for_everyone()
    if not context.is_main:
        return
    context.clock.phase("finish")
    events = read_events(context.run.events_path(context.rank))[len(context.earlier) :]
    steps = [event for event in events if event["type"] == "step"]
    probed = training.probed if training else ProbedSteps(batches=[], longest=0, examples=0)
    result = {
        "settings": context.preset.settings.model_dump(mode="json"),
        "training": {"optimizer_steps": len(steps)},
        "throughput": rate_of(steps[probed.longest :]),
        "probe": {
            "steps": len(steps),
            "longest_steps": probed.longest,
            "examples": probed.examples,
            "longest": rate_of(steps[: probed.longest], warm_up=1),
        },
        "model": training.model if training else {},
        "memory": _probed_memory(context, ranks, training.budget if training else None),
    }
    _write(context, result)


def _probed_memory(
    context: RunContext, ranks: list[dict[str, int]], budget: MemoryBudget | None
) -> dict[str, Any]:
    device = context.accelerator.device.type
    measured = max(rank["allocated"] for rank in ranks) or None
    facts: dict[str, Any] = {"device": device, "measured_bytes": measured}
    facts["what"] = "allocator peak" if device == "cuda" else "live tensor bytes"
    facts["reserved_bytes"] = max(rank["reserved"] for rank in ranks) or None
    return facts if budget is None else facts | compare(budget, measured)


def _training_facts(training: Training | None) -> dict[str, Any]:
    state = training.state if training else TrainState()
    losses = [line["loss"] for line in state.history]
    return {
        "optimizer_steps": state.step,
        "epochs": state.epoch,
        "examples": state.examples,
        "skipped_steps": state.skipped_steps,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "history": state.history,
        "evals": state.evals,
        "best_step": state.best_step if state.best_step >= 0 else None,
        "resumed_from": training.resumed_from if training else None,
    }


def throughput(state: TrainState) -> dict[str, float]:
    """Return examples and tokens per second of training, evaluation apart."""
    return {
        "pairs_per_s": state.examples / state.train_s,
        "useful_tokens_per_s": state.useful_tokens / state.train_s,
        "padded_tokens_per_s": state.padded_tokens / state.train_s,
        "useful_share": state.useful_tokens / max(1, state.padded_tokens),
    }


def mfu(context: RunContext, flops_per_s: float) -> float | None:
    """Return the share of the GPUs' half-precision peak; None where it is not known.

    Source: Chowdhery et al. 2022, PaLM, appendix B.
    """
    tflops = context.gpu_tflops if context.plan.use_gpu else None
    return flops_per_s / (tflops * 1e12 * context.plan.world_size) if tflops else None


def model_facts(context: RunContext, tokeniser: Tokeniser, model: Any) -> dict[str, Any]:
    """Return what a result says of an encoder with its heads."""
    s, weights = context.settings, tokeniser.weights
    return {
        "name": s.model,
        "revision": weights.revision if weights else None,
        "architecture": type(model.encoder).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "random_weights": s.random_weights and context.checkpoint is None,
        "tokenizer": tokeniser.note,
        "seq_len": s.seq_len,
    }


def library_versions(*also: str) -> dict[str, str]:
    """Return the versions that a result depends on, with those of further packages."""
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    for name in (*VERSIONS, *also):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions
