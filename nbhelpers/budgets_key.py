"""Which settings decide the memory of a run, and the name under which its budget is kept.

A setting counts unless it is listed here as one that changes no tensor, so a field that nobody
thought of makes another key, never a wrong budget.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.gpus import Gpu
from nbhelpers.job_specs import JOBS
from nbhelpers.paths import expanded, is_folder

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import Settings

# What the batch plan says instead.
SPLIT = {"global_batch_size", "per_device_train_batch_size", "num_gpus", "allow_uneven_split"}
# What chooses rows, numbers or moments, and no size: a budget plans for rows of `seq_len` tokens.
ANY_JOB = {"data_revision", "on_bad_rows", "seed", "learning_rate", "lr_schedule"}
ANY_JOB |= {"warmup_ratio", "weight_decay", "adam_epsilon", "max_grad_norm", "logging_steps"}
ANY_JOB |= {"eval_steps", "save_steps", "save_minutes", "save_total_limit", "max_skipped_steps"}
ANY_JOB |= {"track", "bootstrap_samples", "targets"}
# How long a run is: it decides whether blocks are compiled, where that is left open.
LENGTH = {"epochs", "train_fraction", "max_train_samples"}


class Key(NamedTuple):
    """The name of a budget: everything but batch and length is its `family`."""

    job: str
    family: str
    batch: int
    seq_len: int
    card: str

    @property
    def name(self) -> str:
        """The name without the card.

        >>> Key("clones", "0a1b", 8, 512, "t4").name
        '0a1b-8x512'
        """
        return f"{self.family}-{self.batch}x{self.seq_len}"


def budget_key(preset: Preset, plan: BatchPlan, hardware: Hardware) -> Key | None:
    """Return the key of a run's budget; None where no GPU is used."""
    gpu = hardware.gpu
    if gpu is None or not plan.use_gpu:
        return None
    facts = memory_facts(preset, plan, hardware)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return Key(
        job=preset.job,
        family=hashlib.sha256(text.encode()).hexdigest()[:16],
        batch=plan.per_device_train_batch_size,
        seq_len=preset.settings.seq_len,
        card=card_name(gpu),
    )


def card_name(gpu: Gpu) -> str:
    """Return the key of a GPU in `gpus.yaml`, else what is known of it."""
    if gpu.key:
        return gpu.key
    major, minor = gpu.compute_capability
    kind = " MIG" if gpu.is_mig else ""
    return f"{gpu.name}{kind} {major}.{minor} {gpu.memory_total_bytes}"


def memory_facts(preset: Preset, plan: BatchPlan, hardware: Hardware) -> dict[str, Any]:
    """Return what decides the memory of one process, beside batch, length and card."""
    s, spec = preset.settings, JOBS[preset.job]
    left_out = SPLIT | ANY_JOB | spec.memory_neutral | {"seq_len"}
    is_open = getattr(s, "compile_layers", "off") == "auto"
    left_out |= set() if is_open else LENGTH
    facts = {n: v for n, v in s.model_dump(mode="json").items() if n not in left_out}
    if s.model not in spec.models.embedded:  # elsewhere the tokenizer is made from the data
        del facts["data"]
    facts["precision"] = hardware.precision if s.precision == "auto" else s.precision
    facts["dropout"] = None if s.dropout is None else s.dropout > 0
    facts["model"] = _model_stamp(s.model)
    facts |= {
        "job": spec.name,
        "world_size": plan.world_size,
        "num_nodes": plan.num_nodes,
        "accumulates": plan.gradient_accumulation_steps > 1,
    }
    return spec.memory_facts(facts, s, plan) if spec.memory_facts else facts


def _model_stamp(model: str) -> Any:
    """Return a name as it is, and of a local folder its configuration and what files it holds."""
    if not is_folder(model):
        return model
    folder = expanded(model)
    files = sorted((p.name, p.stat().st_size) for p in folder.iterdir() if p.is_file())
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""
    return [digest, files]


def unlisted_names(settings: type[Settings], job: str) -> set[str]:
    """Return names listed here as unimportant that a job does not have, for the test of this."""
    shared = SPLIT | ANY_JOB | LENGTH | JOBS[job].memory_neutral
    return shared - settings.model_fields.keys()
