"""What a path to something trained means: a run, a checkpoint, an exported or merged folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbhelpers.common.files import expanded, is_file, is_folder, kind_of
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import (
    AdapterConfig,
    CheckpointIndex,
    DetectorFile,
    ExportFile,
    Record,
    Result,
)
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.catalog import TEMPLATES
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.preset import Preset
from nbhelpers.presets.schema import FinetuneSettings
from nbhelpers.runs.run import RESULT_NAME, open_run

# ------------------------------------------------------------------------------------------------
# What a path to something trained means: a run, a checkpoint, an adapter's folder, a merged model.
#
# Told from JSON files alone, so that a notebook learns what is missing before any model is loaded.


ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
FACTS_NAME = "nbhelpers.json"  # what an exported or merged folder tells about itself
RAW = "none"  # no template: prompts are passed on as they are
UNKNOWN_TEMPLATE = (
    "no template is known for this folder: prompts are passed on as they are; name one with "
    "template='alpaca', 'plain' or 'chat'"
)


class ModelSettings(BaseModel):
    """What loading, asking and a card read of the settings of a model that no run here made.

    They are found in its files; the names are those of `FinetuneSettings`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model: str
    model_revision: str | None = None
    data: str = ""
    method: Literal["base", "lora", "qlora"] = "lora"
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    random_weights: bool = False
    pretrain_steps: Annotated[int, Field(ge=0)] = FinetuneSettings.model_fields[
        "pretrain_steps"
    ].default
    dropout: float | None = None
    lora_r: Annotated[int, Field(ge=1)] = 1
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_target_modules: list[str] = ["all-linear"]
    seq_len: Annotated[int, Field(ge=1)] = 1024
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    generation_batch_size: Annotated[int, Field(ge=1)] = 8

    alpha = FinetuneSettings.alpha
    adapter = FinetuneSettings.adapter


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
    settings: FinetuneSettings | ModelSettings
    template: str
    notes: tuple[str, ...] = ()
    job: ClassVar[str] = "finetune"

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
            "job": self.job,
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
        kind = FinetuneSettings if data["run"] else ModelSettings
        settings = kind.model_validate(data["settings"])
        known = {"name": data["name"], "kind": data["kind"], "template": data["template"]}
        return cls(**known, **paths, settings=settings, notes=tuple(data["notes"]))


def path_of(run: Any) -> Any:
    """Return the folder or id that a run, a result or a path stands for."""
    return run if isinstance(run, str | os.PathLike) else getattr(run, "path", run)


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
    place, run = _located(path, run_dir)
    if run is not None:
        return _of_run(run, template)
    if is_file(place / ADAPTER_CONFIG) or is_file(place / ADAPTER_WEIGHTS):
        return _of_adapter(place.resolve(), base, template)
    if is_file(place / "config.json"):
        return _of_merged(place.resolve(), template)
    try:
        names = sorted(entry.name for entry in place.iterdir())
    except OSError as error:
        text = f"{place} cannot be read: {error.strerror}."
        raise DataError(text, fix=f"chmod -R u+rX {place}") from error
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise DataError(
        f"{place} is no run (run.json), no adapter ({ADAPTER_CONFIG}) and no model (config.json); "
        f"it holds {listed or 'nothing'}.",
        fix="name a run's folder, one of its checkpoints, or a folder of an adapter or model",
    )


def _located(path: str | Path, run_dir: str | Path) -> tuple[Path, Path | None]:
    """Return the folder that a path names, and the run's where it is the id or folder of one.

    Raises:
        ConfigError: There is neither such a run nor such a folder.
    """
    place, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    is_run = any(is_file(folder / "run.json") for folder in (root / place, place))
    return place, open_run(place, root).path if is_run or not is_folder(place) else None


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
    exported = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    used = template or _known_template(exported)
    return Trained(
        name=folder.name,
        kind="adapter",
        adapter=folder,
        run=None,
        settings=_adapter_settings(folder, config, exported, base),
        template=str(used),
        notes=(UNKNOWN_TEMPLATE,) if used == RAW else (),
    )


def _adapter_settings(
    folder: Path, config: AdapterConfig, exported: ExportFile, base: str | None
) -> ModelSettings:
    if config.peft_type != "LORA":
        raise ConfigError(
            f"{folder} holds an adapter of the kind {config.peft_type}, not LORA.",
            fix="only LoRA adapters are loaded here",
        )
    values = _lora_settings(config) | exported.settings
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


def _settings(values: dict[str, Any], folder: Path) -> ModelSettings:
    try:
        return ModelSettings.model_validate(values)
    except ValidationError as error:
        names = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors()}))
        text = f"The JSON files in {folder} hold values that are not valid: {names}."
        raise DataError(text, fix="copy the folder again, or remove nbhelpers.json") from error


def _known_template(facts: ExportFile) -> str:
    return facts.template if facts.template in (*TEMPLATES, RAW) else RAW


def _of_merged(folder: Path, template: str | None) -> Trained:
    if not any(folder.glob("*.safetensors")):
        fix = "copy the whole folder again" if not any(folder.glob("*.bin")) else "save it anew"
        raise DataError(f"{folder} has config.json, but no weights in safetensors.", fix=fix)
    exported = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    values = dict(exported.settings)
    values |= {"method": "base", "model": str(folder), "model_revision": None}
    values |= {"random_weights": False, "pretrain_steps": 0}
    used = template or _known_template(exported)
    return Trained(
        name=folder.name,
        kind="merged",
        adapter=None,
        run=None,
        settings=_settings(values, folder),
        template=str(used),
        notes=(UNKNOWN_TEMPLATE,) if used == RAW else (),
    )


# ------------------------------------------------------------------------------------------------
# What a path to a trained detector means: a run, a checkpoint, or an exported folder.
#
# Told from JSON files alone, before any model is loaded. A folder with `detector.json` can be
# loaded by `jobs.load.load_detector`; a run stands for the best of its checkpoints.


FACTS_FILE = "detector.json"
# `nbhelpers.json` beside them marks a folder as an export of ours.
NEEDED = (FACTS_FILE, "config.json", "model.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedDetector:
    """A folder that holds a detector, and the run that made it, where that is known.

    `kind`: run, checkpoint or export.
    """

    name: str
    kind: str
    folder: Path
    run: Path | None
    job: ClassVar[str] = "detector"

    @property
    def scored(self) -> Path | None:
        """The run whose result is of these weights: it scores its best checkpoint alone."""
        if self.run is None:
            return None
        index = CheckpointIndex.read(self.run / "checkpoints" / "index.json")
        best = index.best if index else None
        return self.run if best in (None, self.folder.name) else None

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for the pipe to the process that loads it."""
        run = None if self.run is None else str(self.run)
        facts = {"job": self.job, "name": self.name, "kind": self.kind}
        return facts | {"folder": str(self.folder), "run": run}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainedDetector:
        """The inverse of `to_dict`."""
        run = Path(data["run"]) if data["run"] else None
        return cls(name=data["name"], kind=data["kind"], folder=Path(data["folder"]), run=run)


def from_dict(data: Mapping[str, Any]) -> Trained | TrainedDetector:
    """Return what `to_dict` of either made."""
    kinds = {kind.job: kind for kind in (Trained, TrainedDetector)}
    return kinds[data["job"]].from_dict(data)


def is_detector(path: str | Path, run_dir: str | Path = "runs") -> bool:
    """Whether a run's id or a folder is of the job `detector`; False where there is nothing."""
    place, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    for folder in (root / place, place):
        if is_file(folder / "run.json"):
            record = Record.read(folder / "run.json")
            return record is not None and record.job == TrainedDetector.job
    return is_file(place / FACTS_FILE)


def find_detector(path: str | Path, run_dir: str | Path = "runs") -> TrainedDetector:
    """Say what a run's id or a folder holds.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no checkpoint.
        DataError: A file is missing or damaged; names it.
    """
    place, run = _located(path, run_dir)
    if run is not None:
        return _detector_of_run(run)
    folder = place.resolve()
    if not is_file(folder / FACTS_FILE):
        raise DataError(
            f"{place} is no run (run.json) and no detector ({FACTS_FILE}).",
            fix="name a run of the job detector, one of its checkpoints, or an exported folder",
        )
    run = folder.parent.parent
    is_checkpoint = folder.parent.name == "checkpoints" and is_file(run / "run.json")
    return TrainedDetector(
        name=f"{run.name}/{folder.name}" if is_checkpoint else folder.name,
        kind="checkpoint" if is_checkpoint else "export",
        folder=_require_files(folder),
        run=run if is_checkpoint else None,
    )


def _detector_of_run(folder: Path) -> TrainedDetector:
    record = training_record(folder)
    if record.job != TrainedDetector.job:
        raise ConfigError(
            f"{folder.name} is a run of the job {record.job}, which trains no detector.",
            fix="name a run of the job detector",
        )
    best = _require_files(best_checkpoint(folder))
    return TrainedDetector(name=folder.name, kind="run", folder=best, run=folder)


def _require_files(folder: Path) -> Path:
    missing = [name for name in NEEDED if not is_file(folder / name)]
    if missing:
        fix = "copy the whole folder again, or name another checkpoint"
        raise DataError(f"{folder} lacks {' and '.join(missing)}.", fix=fix)
    DetectorFile.read(folder / FACTS_FILE)
    return folder


# ------------------------------------------------------------------------------------------------
# Where a merged or exported folder may be written: never over what others need.
#
# Asked before any process is started; what already lies there is judged by the job that writes.


LONGEST_NAME = 200  # bytes; file systems take 255, and a draft adds its own ending


def place_for(out: str | Path, trained: Trained | TrainedDetector) -> Path:
    """Return the whole path of a folder to write, links resolved.

    Raises:
        ConfigError: It is no folder's place: a file, a folder that cannot be written, or one that
            is, holds or lies inside the adapter, its checkpoints or the base model.
    """
    try:
        path = expanded(out, "out").absolute().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        text = f"out is {str(out)!r}, which leads nowhere."
        raise ConfigError(text, fix="name another folder") from error
    if not path.name or len(os.fsencode(path.name)) > LONGEST_NAME:
        text = f"out is {str(out)[:80]!r}, which is no name for a folder."
        raise ConfigError(text, fix="write for instance out/my-adapter")
    if kind_of(path) not in ("", "folder"):
        raise ConfigError(f"{path} exists, and is no folder.", fix="name another folder")
    _require_writable(path)
    for what, folder in _sources(trained).items():
        if path == folder or path in folder.parents or folder in path.parents:
            how = "is" if path == folder else "holds" if path in folder.parents else "lies in"
            raise ConfigError(f"{path} {how} {what}.", fix="name a folder outside of it")
    return path


def _sources(trained: Trained | TrainedDetector) -> dict[str, Path]:
    """Folders that are read, and must stay as they are."""
    sources: dict[str, Path] = {}
    if isinstance(trained, TrainedDetector):
        sources["the detector that is read"] = trained.folder.resolve()
    elif trained.adapter is not None:
        sources["the adapter that is read"] = trained.adapter.resolve()
    if isinstance(trained, Trained) and is_folder(trained.settings.model):
        sources["the base model"] = expanded(trained.settings.model).resolve()
    if trained.run is not None:
        sources["the run's folder of checkpoints"] = trained.run.resolve() / "checkpoints"
    return sources


def _require_writable(path: Path) -> None:
    near = next((folder for folder in (path, *path.parents) if kind_of(folder)), None)
    if near is None or not is_folder(near) or not os.access(near, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{path} cannot be written: {near or path} is no folder that you may write to.",
            fix="name a folder of your own",
        )
