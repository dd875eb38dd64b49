"""What a path to something trained means: a run, a checkpoint, an exported or merged folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nbhelpers.common.files import expanded, is_file, is_folder, kind_of
from nbhelpers.common.result_files import (
    AdapterConfig,
    CheckpointIndex,
    ClonesFile,
    DetectorFile,
    ExportFile,
    Record,
    Result,
)
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.catalog import SAMPLES, TEMPLATES
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.preset import Preset
from nbhelpers.presets.schema import ClonesSettings, FinetuneSettings
from nbhelpers.runs.run import RESULT_NAME, Run, open_run

# ------------------------------------------------------------------------------------------------
# Something that can be loaded: an adapter or model of the job finetune, or a detector.


ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
STACK_FILE = "stack.npz"  # as in metrics/stack.py, which needs numpy
FACTS_NAME = "nbhelpers.json"  # what an exported or merged folder tells about itself
FACTS_FILE = "detector.json"  # a folder that holds it can be loaded by `jobs.load.load_detector`
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
CLONES_FILE = "clones.json"  # likewise of a clone model's exported folder
MODEL_FILES = ("config.json", "model.safetensors")
RAW = "none"  # no template: prompts are passed on as they are
LEARNED_SAMPLE = (
    "It learned the bundled sample, twenty kinds of small task filled in by rule: asked anything "
    "else, it answers at random. One that it knows: 'Write a Python function "
    "raise_sizes(sizes). It returns every item of sizes plus 9.'"
)
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
    has_own_loop: bool = False  # a model of any family
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


class Loadable(BaseModel):
    """What is known of something trained before it is loaded; travels to its process as JSON.

    `run`: the run's folder, where one is known.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: str
    run: Path | None

    @property
    def sources(self) -> dict[str, Path]:
        """Folders that are read, and must stay as they are."""
        return {"the run's folder of checkpoints": self.run / "checkpoints"} if self.run else {}

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for the pipe to the process that loads it."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls.model_validate(data)


class Trained(Loadable):
    """An adapter on its base, a merged model, or a base alone.

    `kind`: run, checkpoint, adapter, merged or base (a run of method=base); `adapter`: the folder
    of the adapter; `template`: its name, or `none`.
    """

    job: Literal["finetune"] = "finetune"
    adapter: Path | None
    settings: Annotated[FinetuneSettings | ModelSettings, Field(union_mode="left_to_right")]
    template: str
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Adapter and base in a few words."""
        model = self.settings.model
        if self.adapter is None:
            return Path(model).name if self.kind == "merged" else f"{model}, no adapter"
        return f"{self.settings.adapter} on {model}"

    @property
    def sources(self) -> dict[str, Path]:
        """Folders that are read, and must stay as they are."""
        sources = super().sources
        if self.adapter is not None:
            sources["the adapter that is read"] = self.adapter
        if is_folder(self.settings.model):
            sources["the base model"] = expanded(self.settings.model)
        return sources


class _Folder(Loadable):
    """A folder that holds a whole model; `kind`: run, checkpoint or export."""

    folder: Path

    @property
    def scored(self) -> Path | None:
        """The run whose result is of these weights: it scores its best checkpoint alone."""
        if self.run is None:
            return None
        index = CheckpointIndex.read(self.run / "checkpoints" / "index.json")
        best = index.best if index else None
        return self.run if best in (None, self.folder.name) else None

    @property
    def stack(self) -> Path | None:
        """The file of a score that is a sum; None: the encoder's logits are the score."""
        path = (self.scored or self.folder) / STACK_FILE
        return path if is_file(path) else None

    @property
    def sources(self) -> dict[str, Path]:
        """Folders that are read, and must stay as they are."""
        return super().sources | {"the model that is read": self.folder}


class TrainedDetector(_Folder):
    """A folder that holds a detector."""

    job: Literal["detector"] = "detector"


class TrainedClones(_Folder):
    """A folder that holds a clone model; `data_flow_length` is None where it reads plain text."""

    job: Literal["clones"] = "clones"
    seq_len: int
    data_flow_length: int | None
    grammar_compat: str


AnyTrained = Trained | TrainedDetector | TrainedClones
_ANY: TypeAdapter[AnyTrained] = TypeAdapter(Annotated[AnyTrained, Field(discriminator="job")])


def from_dict(data: Mapping[str, Any]) -> AnyTrained:
    """Return what `to_dict` of any of them made."""
    return _ANY.validate_python(data)


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


# ------------------------------------------------------------------------------------------------
# What a path means: a run stands for the best of its checkpoints.
#
# Told from JSON files alone, so that a notebook learns what is missing before any model is loaded.


class Place(NamedTuple):
    """A run, a checkpoint of one, or a folder of neither (its `record` and `run` are None)."""

    kind: Literal["run", "checkpoint", "folder"]
    path: Path
    run: Path | None
    record: Record | None

    @property
    def name(self) -> str:
        """What it is called in messages and files."""
        inside = f"{self.run.name}/" if self.run and self.kind == "checkpoint" else ""
        return f"{inside}{self.path.name}"

    @property
    def loadable(self) -> dict[str, Any]:
        """Name, kind and run of a folder with a whole model."""
        kind = "export" if self.kind == "folder" else self.kind
        return {"name": self.name, "kind": kind, "run": self.run}

    def holds(self, *names: str) -> bool:
        """Whether it is a folder of no run and has one of these files."""
        return self.run is None and any(is_file(self.path / name) for name in names)

    def require_job(self, job: str, makes: str) -> None:
        """Stop on a run of another job.

        Raises:
            ConfigError: It is one.
        """
        if self.record is not None and self.record.job != job:
            text = f"{self.name} is a run of the job {self.record.job}, which {makes}."
            raise ConfigError(text, fix=f"name a run of the job {job}")

    def weights(self, names: tuple[str, ...]) -> Path:
        """Return the folder with the weights.

        Raises:
            ConfigError: A run that has no checkpoint yet.
            DataError: One of these files is missing.
        """
        folder = require_checkpoint(self.path) if self.kind == "run" else self.path
        missing = [name for name in names if not is_file(folder / name)]
        if not missing:
            return folder
        fix = "copy the whole folder again, or name another checkpoint"
        if missing == [ADAPTER_WEIGHTS] and is_file(folder / PICKLED_WEIGHTS):
            fix = (
                f"save it again with peft as safetensors: {PICKLED_WEIGHTS} is pickled and not read"
            )
        raise DataError(f"{folder} lacks {' and '.join(missing)}.", fix=fix)

    def unknown(self, wanted: str, fix: str) -> DataError:
        """The error where it is a folder of something else."""
        try:
            names = sorted(entry.name for entry in self.path.iterdir())
        except OSError as error:
            text = f"{self.path} cannot be read: {error.strerror}."
            return DataError(text, fix=f"chmod -R u+rX {self.path}")
        listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        text = f"{self.path} is no run (run.json){wanted}; it holds {listed or 'nothing'}."
        return DataError(text, fix=f"name a run's folder, one of its checkpoints, or {fix}")


def _place(path: str | Path, run_dir: str | Path) -> Place:
    """Say what a run's id or a folder is.

    Raises:
        ConfigError: There is neither such a run nor such a folder, or the run only scored weights.
        DataError: Its run.json is damaged; names the field.
    """
    place, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    is_run = any(is_file(folder / "run.json") for folder in (root / place, place))
    if is_run or not is_folder(place):
        run = open_run(place, root).path
        return Place("run", run, run, _training_record(run))
    folder = place.resolve()
    run = folder.parent.parent
    if folder.parent.name == "checkpoints" and is_file(run / "run.json"):
        return Place("checkpoint", folder, run, _training_record(run))
    return Place("folder", folder, None, None)


def _training_record(run: Path) -> Record:
    record = Record.read(run / "run.json")
    if record is None:
        fix = "launch it again with fresh=True (--fresh), or name another run"
        raise ConfigError(f"There is no {run / 'run.json'}.", fix=fix)
    if record.mode == "evaluate":
        text = f"{run.name} only scored weights of another run: {record.checkpoint}."
        raise ConfigError(text, fix="name the run that trained them")
    return record


def require_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run that trains, else its last.

    Raises:
        ConfigError: There is none: says what makes one, or that there will never be one.
    """
    record = _training_record(run)
    index = CheckpointIndex.read(run / "checkpoints" / "index.json")
    for name in (index.best, index.last) if index else ():
        if name and is_folder(run / "checkpoints" / name):
            return run / "checkpoints" / name
    if record.preset.settings.get("method") == "base":
        text = f"{run.name} has no adapter: method=base scores the model as it is."
        raise ConfigError(text, fix=f"read its scores: {Run(run).shell('report')}")
    fix = f"train it, or wait for it: {Run(run).command_again()}"
    raise ConfigError(f"{run.name} has no checkpoint yet.", fix=fix)


def find_any(
    path: str | Path,
    run_dir: str | Path = "runs",
    *,
    base: str | None = None,
    template: str | None = None,
) -> AnyTrained:
    """Say what a run's id or a folder holds, of whichever job.

    Args:
        base: As for `find_trained`.
        template: Likewise.

    Raises:
        ConfigError: There is no such run or folder, or its job makes nothing that can be loaded.
        DataError: A file is missing or damaged; names it.
    """
    place = _place(path, run_dir)
    job = _job_of(place)
    if job == "detector":
        return _detector_of(place)
    if job == "clones":
        return _clones_of(place)
    return _trained_of(place, base=base, template=template)


def _job_of(place: Place) -> str | None:
    """The job of a run, or that whose exported folder it is; None: an adapter or a merged model."""
    if place.record is not None:
        return place.record.job
    known = {FACTS_FILE: "detector", CLONES_FILE: "clones"}
    return next((job for name, job in known.items() if place.holds(name)), None)


def find_clones(path: str | Path, run_dir: str | Path = "runs") -> TrainedClones:
    """Say which clone model a run's id or a folder holds.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no checkpoint.
        DataError: A file is missing or damaged; names it.
    """
    return _clones_of(_place(path, run_dir))


def find_detector(path: str | Path, run_dir: str | Path = "runs") -> TrainedDetector:
    """Say which detector a run's id or a folder holds.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no checkpoint.
        DataError: A file is missing or damaged; names it.
    """
    return _detector_of(_place(path, run_dir))


def find_trained(
    path: str | Path,
    run_dir: str | Path = "runs",
    *,
    base: str | None = None,
    template: str | None = None,
) -> Trained:
    """Say which adapter or model a run's id or a folder holds.

    Args:
        base: The base model of a foreign adapter, where its configuration does not name one.
        template: How prompts are dressed, where the folder does not say.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no base.
        DataError: A file is missing; names it.
    """
    return _trained_of(_place(path, run_dir), base=base, template=template)


def _detector_of(place: Place) -> TrainedDetector:
    place.require_job("detector", "trains no detector")
    if place.run is None and not place.holds(FACTS_FILE):
        raise place.unknown(f" and no detector ({FACTS_FILE})", "an exported folder")
    folder = place.weights((FACTS_FILE, *MODEL_FILES))
    DetectorFile.read(folder / FACTS_FILE)
    return TrainedDetector(**place.loadable, folder=folder)


def _clones_of(place: Place) -> TrainedClones:
    place.require_job("clones", "trains no clone model")
    if place.record is None:
        if not place.holds(CLONES_FILE):
            raise place.unknown(f" and no clone model ({CLONES_FILE})", "an exported folder")
        folder = place.weights((CLONES_FILE, *MODEL_FILES))
        facts: Any = ClonesFile.read(folder / CLONES_FILE)
    else:
        folder = place.weights(MODEL_FILES)
        facts = Preset.from_dict(place.record.raw.get("preset") or {}).settings
        assert isinstance(facts, ClonesSettings)
    return TrainedClones(
        **place.loadable,
        folder=folder,
        seq_len=facts.seq_len,
        data_flow_length=facts.data_flow_length,
        grammar_compat=facts.grammar_compat,
    )


def _trained_of(place: Place, *, base: str | None = None, template: str | None = None) -> Trained:
    place.require_job("finetune", "makes no adapter")
    if place.record is None and (job := _job_of(place)):
        text = f"{place.name} is an exported model of the job {job}, which makes no adapter."
        raise ConfigError(text, fix="load it with nbhelpers.use.load, or name another folder")
    if place.record is not None:
        return _of_run(place, place.record, template)
    if place.holds(*ADAPTER_FILES):
        return _of_adapter(place, base, template)
    if place.holds("config.json"):
        return _of_merged(place, template)
    wanted = f", no adapter ({ADAPTER_CONFIG}) and no model (config.json)"
    raise place.unknown(wanted, "a folder of an adapter or model")


def _of_run(place: Place, record: Record, template: str | None) -> Trained:
    settings = Preset.from_dict(record.raw.get("preset") or {}).settings
    assert isinstance(settings, FinetuneSettings) and place.run is not None
    is_base = place.kind == "run" and settings.method == "base"
    return Trained(
        name=place.name,
        kind="base" if is_base else place.kind,
        adapter=None if is_base else place.weights(ADAPTER_FILES),
        run=place.run,
        settings=settings,
        template=template or _run_template(place.run, settings),
        notes=(LEARNED_SAMPLE,) if settings.data in SAMPLES and not is_base else (),
    )


def _run_template(folder: Path, settings: FinetuneSettings) -> str:
    """The template that a run used, as it recorded it; else as `auto` resolves for its model."""
    result = Result.read(folder / RESULT_NAME)
    recorded = result.data.template if result else None
    return recorded if recorded in (*TEMPLATES, RAW) else settings.template


def _of_adapter(place: Place, base: str | None, template: str | None) -> Trained:
    folder = place.weights(ADAPTER_FILES)
    config = AdapterConfig.read(folder / ADAPTER_CONFIG) or AdapterConfig()
    if config.peft_type != "LORA":
        raise ConfigError(
            f"{folder} holds an adapter of the kind {config.peft_type}, not LORA.",
            fix="only LoRA adapters are loaded here",
        )
    exported = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    values = {
        "model_revision": config.revision,
        "lora_r": config.r or 1,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout or 0.0,
        "lora_target_modules": sorted(config.target_modules) or ["all-linear"],
    } | exported.settings
    named = base or values.get("model") or config.base_model_name_or_path
    if not named:
        raise ConfigError(
            f"{folder} names no base model: base_model_name_or_path in {ADAPTER_CONFIG} is empty.",
            fix="name it with base=... (in a shell: --base): a hub id or a folder",
        )
    if base is not None:
        values["model_revision"] = None
    values["model"] = FINETUNE.models.aliases.get(named, named)
    return _foreign("adapter", folder, values, template or exported.template, adapter=folder)


def _of_merged(place: Place, template: str | None) -> Trained:
    folder = place.path
    if not any(folder.glob("*.safetensors")):
        fix = "copy the whole folder again" if not any(folder.glob("*.bin")) else "save it anew"
        raise DataError(f"{folder} has config.json, but no weights in safetensors.", fix=fix)
    exported = ExportFile.read(folder / FACTS_NAME) or ExportFile()
    values = exported.settings | {"method": "base", "model": str(folder), "model_revision": None}
    values |= {"random_weights": False, "pretrain_steps": 0}
    return _foreign("merged", folder, values, template or exported.template, adapter=None)


def _foreign(
    kind: str, folder: Path, values: dict[str, Any], template: str | None, *, adapter: Path | None
) -> Trained:
    """What no run here made, with the settings that its own files tell."""
    try:
        settings = ModelSettings.model_validate(values)
    except ValidationError as error:
        names = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors()}))
        text = f"The JSON files in {folder} hold values that are not valid: {names}."
        raise DataError(text, fix="copy the folder again, or remove nbhelpers.json") from error
    known = template if template in (*TEMPLATES, RAW) else RAW
    return Trained(
        name=folder.name,
        kind=kind,
        adapter=adapter,
        run=None,
        settings=settings,
        template=known,
        notes=(UNKNOWN_TEMPLATE,) if known == RAW else (),
    )


# ------------------------------------------------------------------------------------------------
# Where a merged or exported folder may be written: never over what others need.
#
# Asked before any process is started; what already lies there is judged by the job that writes.


LONGEST_NAME = 200  # bytes; file systems take 255, and a draft adds its own ending


def place_for(out: str | Path, trained: Loadable) -> Path:
    """Return the whole path of a folder to write, links resolved.

    Raises:
        ConfigError: It is no folder's place: a file, a folder that cannot be written, or one that
            is, holds or lies inside the adapter, its checkpoints or the base model.
    """
    try:
        path = expanded(out, "out").absolute().resolve()
        if path.is_symlink():  # a loop, from Python 3.13 on; before, an error
            raise RuntimeError
    except (OSError, RuntimeError, ValueError) as error:
        text = f"out is {str(out)!r}, which leads nowhere."
        raise ConfigError(text, fix="name another folder") from error
    if not path.name or len(os.fsencode(path.name)) > LONGEST_NAME:
        text = f"out is {str(out)[:80]!r}, which is no name for a folder."
        raise ConfigError(text, fix="write for instance out/my-adapter")
    if kind_of(path) not in ("", "folder"):
        raise ConfigError(f"{path} exists, and is no folder.", fix="name another folder")
    _require_writable(path)
    for what, source in trained.sources.items():
        folder = source.resolve()
        if path == folder or path in folder.parents or folder in path.parents:
            how = "is" if path == folder else "holds" if path in folder.parents else "lies in"
            raise ConfigError(f"{path} {how} {what}.", fix="name a folder outside of it")
    return path


def _require_writable(path: Path) -> None:
    near = next((folder for folder in (path, *path.parents) if kind_of(folder)), None)
    if near is None or not is_folder(near) or not os.access(near, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{path} cannot be written: {near or path} is no folder that you may write to.",
            fix="name a folder of your own",
        )
