"""Which settings decide the memory of a run, and the name under which its budget is kept.

A setting counts unless it is listed here as one that changes no tensor, so a field that nobody
thought of makes another key, never a wrong budget.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.catalog import MODELS
from nbhelpers.gpus import Gpu
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
ONE_JOB = {
    "clones": {"priors", "floors", "grammar_compat"},
    "finetune": {
        *("lora_alpha", "warmup_steps", "template", "remove_duplicates", "split_seed"),
        *("mbpp_data", "max_task_problems", "run_generated_code"),
    },
    "detector": {
        *("canonical", "languages", "split", "split_seed", "valid_share", "test_share"),
        *("hold_out", "unseen_humans", "on_failed_audit", "temperature"),
        *("class_weights", "encoder_learning_rate", "augment", "augment_share", "target_fpr"),
        *("target_miss_rate", "prevalences", "floors", "edit_suite"),
    },
}
# How long a run is: it decides whether blocks are compiled, where that is left open.
LENGTH = {"epochs", "train_fraction", "max_train_samples"}
# Rows of a scored batch, and the setting that may leave fewer than a whole batch.
FEWER_ROWS = {
    "valid_samples": "per_device_eval_batch_size",
    "eval_samples": "generation_batch_size",
}


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
    s, job = preset.settings, preset.job
    left_out = SPLIT | ANY_JOB | ONE_JOB[job] | {"seq_len"}
    is_open = getattr(s, "compile_layers", "off") == "auto"
    left_out |= set() if is_open else LENGTH
    facts = {n: v for n, v in s.model_dump(mode="json").items() if n not in left_out}
    if s.model not in MODELS[job].embedded:  # elsewhere the tokenizer is made from the data
        del facts["data"]
    facts["precision"] = hardware.precision if s.precision == "auto" else s.precision
    facts["dropout"] = None if s.dropout is None else s.dropout > 0
    facts["model"] = _model_stamp(s.model)
    facts |= {
        "job": job,
        "world_size": plan.world_size,
        "num_nodes": plan.num_nodes,
        "accumulates": plan.gradient_accumulation_steps > 1,
    }
    special = {"finetune": _finetune_facts, "detector": _detector_facts}.get(job)
    return special(facts, s, plan) if special else facts


def _finetune_facts(facts: dict[str, Any], s: Any, plan: BatchPlan) -> dict[str, Any]:
    """Settings of a fine-tuning whose exact value does not matter."""
    for limit, batch in FEWER_ROWS.items():
        if getattr(s, limit) >= getattr(s, batch):
            facts[limit] = "enough"
    facts["lora_target_modules"] = sorted(set(s.lora_target_modules))
    facts["lora_dropout"] = s.lora_dropout > 0
    facts["loss"] = "chunked" if s.loss == "auto" else s.loss
    if s.evaluate != "all":
        del facts["tasks"]
    if s.method == "base":
        for name in ("lora_r", "lora_dropout", "lora_target_modules"):
            del facts[name]
    return facts


def _detector_facts(facts: dict[str, Any], s: Any, plan: BatchPlan) -> dict[str, Any]:
    """The contrastive loss keeps the vectors of the whole global batch."""
    facts["contrastive_weight"] = s.contrastive_weight > 0
    facts["freeze_epochs"] = (s.freeze_epochs > 0, s.freeze_epochs >= s.epochs)
    facts["global_batch_size"] = plan.global_batch_size
    return facts


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
    shared = SPLIT | ANY_JOB | LENGTH | ONE_JOB[job]
    return shared - settings.model_fields.keys()
