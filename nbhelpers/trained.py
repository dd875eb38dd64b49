"""What a path to something trained means: a run, a checkpoint, an adapter's folder, a merged model.

Told from JSON files alone, so that a notebook learns what is missing before any model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.checks_finetune import TEMPLATES
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.job_specs import FINETUNE
from nbhelpers.json_models import read_raw
from nbhelpers.paths import expanded, is_file, is_folder
from nbhelpers.presets import Preset
from nbhelpers.result_files import AdapterConfig, CheckpointIndex, ExportFile, Record, Result
from nbhelpers.results import RESULT_NAME
from nbhelpers.runs import open_run
from nbhelpers.schema import FinetuneSettings

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
FACTS_NAME = "nbhelpers.json"  # what an exported or merged folder tells about itself
RAW = "none"  # no template: prompts are passed on as they are
UNKNOWN_TEMPLATE = (
    "no template is known for this folder: prompts are passed on as they are; name one with "
    "template='alpaca', 'plain' or 'chat'"
)
# Settings of a model that no run of ours made: only those that loading and generating read matter.
_NEUTRAL: dict[str, Any] = {
    **{"data": "smoke", "on_bad_rows": "stop", "train_fraction": 1.0, "seq_len": 1024},
    **{"padding": "dynamic", "epochs": 1, "global_batch_size": 1, "per_device_train_batch_size": 1},
    **{"allow_uneven_split": False, "num_gpus": 1, "per_device_eval_batch_size": 1},
    **{"learning_rate": 1e-4, "lr_schedule": "constant", "warmup_ratio": 0.0, "weight_decay": 0.0},
    **{"adam_epsilon": 1e-8, "max_grad_norm": 1.0, "seed": 0, "precision": "auto"},
    **{"attention": "auto", "gradient_checkpointing": False, "logging_steps": 1},
    **{"save_total_limit": 1, "max_skipped_steps": 1, "track": "none", "bootstrap_samples": 100},
    **{"method": "lora", "lora_r": 1, "lora_target_modules": ["all-linear"], "lora_dropout": 0.0},
    **{"packing": False, "loss": "auto", "compile_layers": "off"},
    **{"template": "auto", "remove_duplicates": False, "valid_samples": 1, "eval_samples": 1},
    **{"evaluate": "none", "tasks": [], "mbpp_data": "google-research-datasets/mbpp"},
    **{"run_generated_code": "never", "max_new_tokens": 256, "generation_batch_size": 8},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Something that can be loaded, and how.

    `kind`: run, checkpoint, adapter, merged or base (a run of method=base); `adapter`: the folder
    of the adapter; `run`: the run's folder, where one is known; `template`: its name, or `none`.
    """

    name: str
    kind: str
    adapter: Path | None
    run: Path | None
    settings: FinetuneSettings
    template: str
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Adapter and base in a few words."""
        model = self.settings.model
        if self.adapter is None:
            return Path(model).name if self.kind == "merged" else f"{model}, no adapter"
        return f"{self.settings.adapter} on {model}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for the pipe to the process that loads it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "adapter": None if self.adapter is None else str(self.adapter),
            "run": None if self.run is None else str(self.run),
            "settings": self.settings.model_dump(mode="json"),
            "template": self.template,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trained:
        """The inverse of `to_dict`."""
        paths = {key: Path(data[key]) if data[key] else None for key in ("adapter", "run")}
        settings = FinetuneSettings.model_validate(data["settings"])
        notes = tuple(data["notes"])
        return cls(**{**data, **paths, "settings": settings, "notes": notes})


def require_template(template: str | None) -> None:
    """Stop on a template that does not exist, before a model is loaded.

    Raises:
        ConfigError: It is none of those there are.
    """
    known = (*TEMPLATES, RAW)
    if template is not None and template not in known:
        text = f"template={template!r} is not known."
        raise ConfigError(text, fix=f"choose one of: {', '.join(known)}")


def require_adapter(trained: Trained, wanted: str) -> Path:
    """Return the adapter's folder.

    Raises:
        ConfigError: There is none: a run of method=base, or a merged model.
    """
    if trained.adapter is not None:
        return trained.adapter
    what = {
        "base": "is a run of method=base: it evaluates the model as it is and has no adapter",
        "merged": "is a merged model: its adapter is part of its weights",
    }[trained.kind]
    raise ConfigError(
        f"{wanted} needs an adapter, and {trained.name} {what}.",
        fix="name a run of method=lora or method=qlora",
    )


def find_trained(
    path: str | Path,
    run_dir: str | Path = "runs",
    *,
    base: str | None = None,
    template: str | None = None,
) -> Trained:
    """Say what a run's id or a folder holds.

    Args:
        base: The base model of a foreign adapter, where its configuration does not name one.
        template: How prompts are dressed, where the folder does not say.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no base.
        DataError: A file is missing; names it.
    """
    given, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    if any(is_file(place / "run.json") for place in (root / given, given)) or not is_folder(given):
        return _of_run(open_run(given, root).path, template)
    if is_file(given / ADAPTER_CONFIG) or is_file(given / ADAPTER_WEIGHTS):
        return _of_adapter(given.resolve(), base, template)
    if is_file(given / "config.json"):
        return _of_merged(given.resolve(), template)
    try:
        held = sorted(each.name for each in given.iterdir())
    except OSError as error:
        text = f"{given} cannot be read: {error.strerror}."
        raise DataError(text, fix=f"chmod -R u+rX {given}") from error
    named = ", ".join(held[:12]) + (", …" if len(held) > 12 else "")
    raise DataError(
        f"{given} is no run (run.json), no adapter ({ADAPTER_CONFIG}) and no model (config.json); "
        f"it holds {named or 'nothing'}.",
        fix="name a run's folder, one of its checkpoints, or a folder of an adapter or model",
    )


def _of_run(folder: Path, template: str | None) -> Trained:
    settings = run_settings(folder)
    if settings.method == "base":
        kind, adapter = "base", None
    else:
        kind, adapter = "run", _require_weights(best_checkpoint(folder))
    return Trained(
        name=folder.name,
        kind=kind,
        adapter=adapter,
        run=folder,
        settings=settings,
        template=template or _run_template(folder, settings),
    )


def run_settings(folder: Path) -> FinetuneSettings:
    """The settings of a fine-tuning run.

    Raises:
        ConfigError: It is a run of another job, or scores weights of another run.
        DataError: Its run.json is damaged; names the field.
    """
    record = training_record(folder)
    if record.job != "finetune":
        raise ConfigError(
            f"{folder.name} is a run of the job {record.job}, which makes no adapter.",
            fix="name a run of the job finetune",
        )
    settings = Preset.from_dict(record.raw.get("preset") or {}).settings
    assert isinstance(settings, FinetuneSettings)
    return settings


def training_record(folder: Path) -> Record:
    """The run.json of a run that trained.

    Raises:
        ConfigError: There is none, or the run scores weights of another run.
        DataError: It is damaged; names the field.
    """
    record = Record.read(folder / "run.json")
    if record is None:
        fix = "launch it again with fresh=True, or name another run"
        raise ConfigError(f"There is no {folder / 'run.json'}.", fix=fix)
    if record.mode == "evaluate":
        text = f"{folder.name} only scored weights of another run: {record.checkpoint}."
        raise ConfigError(text, fix="name the run that trained them")
    return record


def best_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run, else its last.

    Raises:
        ConfigError: It has none yet.
        DataError: Its index or its run.json is damaged; names the field.
    """
    folder = run / "checkpoints"
    index = CheckpointIndex.read(folder / "index.json")
    for name in (index.best, index.last) if index else ():
        if name and is_folder(folder / name):
            return folder / name
    command = read_raw(Record, run / "run.json").get("command") or "launch it again"
    raise ConfigError(f"{run.name} has no checkpoint yet.", fix=f"train it: {command}")


def _require_weights(folder: Path) -> Path:
    missing = [n for n in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not is_file(folder / n)]
    if not missing:
        return folder
    fix = "copy the whole folder again, or name another checkpoint"
    if missing == [ADAPTER_WEIGHTS] and is_file(folder / PICKLED_WEIGHTS):
        fix = f"save it again with peft as safetensors: {PICKLED_WEIGHTS} is pickled and not read"
    raise DataError(f"{folder} lacks {' and '.join(missing)}.", fix=fix)


def _run_template(folder: Path, settings: FinetuneSettings) -> str:
    """The template that a run used, as it recorded it; else as `auto` resolves for its model."""
    result = Result.read(folder / RESULT_NAME)
    recorded = result.data.template if result else None
    return recorded if recorded in (*TEMPLATES, RAW) else settings.template


def _of_adapter(folder: Path, base: str | None, template: str | None) -> Trained:
    _require_weights(folder)
    home = folder.parent.parent
    if folder.parent.name == "checkpoints" and is_file(home / "run.json"):
        settings = run_settings(home)
        used = template or _run_template(home, settings)
        name = f"{home.name}/{folder.name}"
        facts = {"kind": "checkpoint", "run": home, "settings": settings, "template": used}
        return Trained(name=name, adapter=folder, **facts)
    config = AdapterConfig.read(folder / ADAPTER_CONFIG) or AdapterConfig()
    told = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    used = template or _known_template(told)
    return Trained(
        name=folder.name,
        kind="adapter",
        adapter=folder,
        run=None,
        settings=_adapter_settings(folder, config, told, base),
        template=str(used),
        notes=(UNKNOWN_TEMPLATE,) if used == RAW else (),
    )


def _adapter_settings(
    folder: Path, config: AdapterConfig, told: ExportFile, base: str | None
) -> FinetuneSettings:
    if config.peft_type != "LORA":
        raise ConfigError(
            f"{folder} holds an adapter of the kind {config.peft_type}, not LORA.",
            fix="only LoRA adapters are loaded here",
        )
    values = _NEUTRAL | _lora_settings(config) | _current(told.settings)
    named = base or values.get("model") or config.base_model_name_or_path
    if not named:
        raise ConfigError(
            f"{folder} names no base model: base_model_name_or_path in {ADAPTER_CONFIG} is empty.",
            fix="name it with base=...: a hub id or a folder",
        )
    if base is not None:
        values["model_revision"] = None
    values["model"] = FINETUNE.models.aliases.get(named, named)
    return _settings(values, folder)


def _lora_settings(config: AdapterConfig) -> dict[str, Any]:
    """What adapter_config.json says in our words."""
    return {
        "model_revision": config.revision,
        "lora_r": config.r or 1,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout or 0.0,
        "lora_target_modules": sorted(config.target_modules) or ["all-linear"],
    }


def _settings(values: dict[str, Any], folder: Path) -> FinetuneSettings:
    from pydantic import ValidationError

    try:
        return FinetuneSettings.model_validate(values)
    except ValidationError as error:
        names = ", ".join(sorted({str(each["loc"][0]) for each in error.errors()}))
        text = f"The JSON files in {folder} hold values that are not valid: {names}."
        raise DataError(text, fix="copy the folder again, or remove nbhelpers.json") from error


def _known_template(told: ExportFile) -> str:
    return told.template if told.template in (*TEMPLATES, RAW) else RAW


def _current(known: dict[str, Any]) -> dict[str, Any]:
    """Recorded settings that this version still has; a folder may come from another version."""
    return {name: value for name, value in known.items() if name in FinetuneSettings.model_fields}


def _of_merged(folder: Path, template: str | None) -> Trained:
    if not any(folder.glob("*.safetensors")):
        fix = "copy the whole folder again" if not any(folder.glob("*.bin")) else "save it anew"
        raise DataError(f"{folder} has config.json, but no weights in safetensors.", fix=fix)
    told = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    values = _NEUTRAL | _current(told.settings)
    values |= {"method": "base", "model": str(folder), "model_revision": None}
    values |= {"random_weights": False, "pretrain_steps": 0}
    used = template or _known_template(told)
    return Trained(
        name=folder.name,
        kind="merged",
        adapter=None,
        run=None,
        settings=_settings(values, folder),
        template=str(used),
        notes=(UNKNOWN_TEMPLATE,) if used == RAW else (),
    )
