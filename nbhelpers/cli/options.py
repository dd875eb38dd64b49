"""What commands share: their options, the first half of the flow, names of runs, and plain text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbhelpers.common.display import Table
from nbhelpers.common.files import expanded, is_file
from nbhelpers.errors import ConfigError, NbhelpersError

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset
    from nbhelpers.runs.run import Run, RunResult
    from nbhelpers.runs.study_results import StudyResult

INTERRUPTED = 130  # what shells use for Ctrl-C
_INDENTED = {"initial_indent": "    ", "subsequent_indent": "    "}

# ------------------------------------------------------------------------------------------------
# Options, each declared once.


def typed_path(text: str | Path) -> Path:
    """Return a path that was typed; the empty text is none, though `pathlib` takes it for `.`.

    Raises:
        ConfigError: It is blank, or its home folder is unknown.
    """
    if not str(text).strip():
        raise ConfigError("A path is empty.", fix="write one, or . for the folder you are in")
    return expanded(text)


def _named(option: typer.CallbackParam, value: str | None) -> str:
    """Refuse the empty text, which a shell makes of a variable that is not set."""
    if value is not None and not value.strip():
        name = option.opts[0]
        raise ConfigError(f"{name} is empty.", fix=f"name one, or leave {name} out")
    return value or ""


def _above_zero(option: typer.CallbackParam, value: float | None) -> float | None:
    """Refuse a limit or a price before anything is computed, let alone run."""
    if value is None or 0 < value < float("inf"):
        return value
    name = option.opts[0]
    text = f"{name} {value:g} is no number above zero."
    raise ConfigError(text, fix=f"write for instance {name} 3, or leave it out")


def path_option(*names: str, help: str) -> Any:
    """Return an option that takes a path."""
    return typer.Option(*names, parser=typed_path, help=help)


JOB_HELP = "The job: clones, finetune, detector, or one of your own."
Job = Annotated[str, typer.Argument(help=JOB_HELP)]
PresetName = Annotated[str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--override", "-o", help="A setting, as name=value; repeatable.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small experiment for a first result in minutes.")
]
GpuKey = Annotated[
    str | None,
    typer.Option("--gpu", callback=_named, help="Plan for this GPU instead of what is here."),
]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory",
        min=1,
        max=1024,  # as of `planned_gpu`
        callback=_above_zero,
        help="Plan for a card with so many GiB, unnamed.",
    ),
]
GpuCount = Annotated[int, typer.Option("--count", min=1, help="How many such GPUs.")]
NumGpus = Annotated[int | None, typer.Option(min=1, help="Training processes; default: preset.")]
RunDir = Annotated[Path, path_option(help="The folder that holds the run folders.")]
RunName = Annotated[str, typer.Argument(help="A run's id or folder.")]
MaxHours = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="The hours that there are; what ends in them is told."),
]
Price = Annotated[
    float | None, typer.Option("--price", callback=_above_zero, help="Of the machine, per hour.")
]
Currency = Annotated[str, typer.Option(help="What the price is in, as you write it.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from a run that died with another split of the batch."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

RUNS = Path("runs")


# ------------------------------------------------------------------------------------------------
# The first half of the flow: hardware, preset, plan, budget.


@dataclass(frozen=True)
class Prepared:
    """What options mean: the hardware, the preset for it, and how its batch is split."""

    hardware: Hardware
    preset: Preset
    plan: BatchPlan

    @cached_property
    def budget(self) -> MemoryBudget:
        """The memory that is predicted at once."""
        from nbhelpers.budget.predict import predict_memory

        return predict_memory(self.preset, self.plan, self.hardware)


def prepare(
    job: str,
    preset: str,
    override: Sequence[str] | None = None,
    *,
    gpu: str | None = "",
    gpu_memory: float | None = None,
    count: int = 1,
    settings: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Prepared:
    """Return hardware, preset and plan of a command.

    Args:
        job: Such as `clones`.
        preset: A name, a .yaml file or `auto`.
        override: Settings as name=value.
        gpu: Plan for this GPU; none: for what is here.
        gpu_memory: Plan for a card with so many GiB instead.
        count: How many such GPUs.
        settings: Further settings, which other options give.
        quick: Make the small experiment of the job.

    Raises:
        NbhelpersError: An option is wrong, or the batch cannot be split.
    """
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset

    if gpu_memory is not None:
        if gpu:
            text = "--gpu names a card, which has its memory, and --gpu-memory another one."
            raise ConfigError(text, fix="leave one out, or describe it: --gpu sm_89:12GiB")
        gpu = f"{gpu_memory:g}GiB"
    hardware = hardware_of(gpu, count)
    values = overrides_of(job, override) | dict(settings or {})
    options = {"hardware": hardware, "overrides": values, "quick": "on" if quick else "off"}
    chosen = load_preset(job, preset, **options)
    return Prepared(hardware, chosen, plan_batch(chosen, hardware))


def hardware_of(gpu: str | None, count: int = 1) -> Hardware:
    """Return the planned hardware that options name, or this machine's.

    Raises:
        ConfigError: The GPU is unknown, or a number of GPUs is given without one.
    """
    from nbhelpers.hardware.detection import detect_hardware, plan_hardware

    if count != 1 and not gpu:
        raise ConfigError("--count needs --gpu.", fix="add for instance --gpu t4")
    return plan_hardware(gpu, count) if gpu else detect_hardware()


def overrides_of(job: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Return `name=value` texts as settings of a job."""
    from nbhelpers.presets.parameters import parse_overrides

    return parse_overrides(job, pairs or [])


# ------------------------------------------------------------------------------------------------
# A run, or a study, by its folder or its id.


def find_study(name: str, run_dir: Path) -> StudyResult | None:
    """Return the study that a folder, an id or the beginning of an id means; None for a run."""
    from nbhelpers.runs.studies import FILE_NAME, PREFIX, open_study

    folders = (run_dir / name, Path(name))
    if any(is_file(folder / FILE_NAME) for folder in folders):
        return open_study(name, run_dir)
    is_run = any(is_file(folder / "run.json") for folder in folders)
    return open_study(name, run_dir) if name.startswith(PREFIX) and not is_run else None


def result_of(name: str, run_dir: Path) -> RunResult | StudyResult:
    """Return the result of a run, or what a study found."""
    from nbhelpers.runs.run import open_run

    return find_study(name, run_dir) or open_run(name, run_dir).result()


def refuse_study(command: str, name: str, run_dir: Path) -> None:
    """Stop where a study is named to a command that takes one run.

    Raises:
        ConfigError: It is a study; names its runs and the command for one of them.
    """
    if (result := find_study(name, run_dir)) is None:
        return
    best = result.best if result.finished else result.rows[0]
    likely = next((row for row in result.rows if row.status == "running"), best)
    runs = ", ".join(f"{row.run.id} ({row.name}, {row.status})" for row in result.rows)
    words = ["nbhelpers", command, str(likely.run.path)]
    rest = {"ask": ' "INSTRUCTION"', "merge": " FOLDER", "export": " FOLDER"}.get(command, "")
    text = f"{result.study.id} is a study, and `{command}` takes a run. Its runs are: {runs}."
    raise ConfigError(text, fix=f"write for instance: {shlex.join(words)}{rest}")


def working_run(name: str, run_dir: Path) -> Run:
    """Return the run that a name means: of a study the one that works, or worked last."""
    from nbhelpers.runs.run import open_run

    if (result := find_study(name, run_dir)) is None:
        return open_run(name, run_dir)
    begun = [row.run for row in result.rows if row.status != "new"] or [result.rows[0].run]
    return next((row.run for row in result.rows if row.status == "running"), begun[-1])


# ------------------------------------------------------------------------------------------------
# Plain text.


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as aligned columns under their names.

    >>> print(table([{"a": "one", "name": "x"}, {"a": "two", "name": ""}]))
    a    name
    one  x
    two
    """
    return Table(list(rows[0]), [list(row.values()) for row in rows]).text() if rows else ""


def error_text(error: NbhelpersError) -> str:
    """Return an error as a person reads it in a shell: its kind, the message, the fix."""
    return f"{type(error).__name__}: {error}"


def warn(text: str) -> None:
    """Write a line to stderr."""
    typer.echo(text, err=True)


def report_text(result: RunResult | StudyResult) -> str:
    """Write the page of a report and return it as text."""
    from nbhelpers.reports.writing import report

    return str(report(result, show=False)).rstrip()


def presets_text(job: str) -> str:
    """Return the presets of a job with their GPU and what they are for."""
    from nbhelpers.presets.loading import list_presets, load_preset

    rows = []
    for name in list_presets(job):
        preset = load_preset(job, name)
        gpu = f"{preset.num_target_gpus} x {preset.gpu}" if preset.gpu else "none"
        head, stop, _ = " ".join(preset.about.split()).partition(". ")
        rows.append({"preset": name, "gpu": gpu, "about": head + stop.strip()})
    return table(rows)


def settings_text(job: str) -> str:
    """Return every setting of a job with its value in the base preset and what it is."""
    from nbhelpers.presets.loading import load_preset

    settings, lines = load_preset(job, "base").settings, []
    for name, field in type(settings).model_fields.items():
        line = f"{name} = {_cell(getattr(settings, name))}"
        lines += [line, *textwrap.wrap(field.description or "", 92, **_INDENTED)]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """A value for a cell of a table.

    >>> _cell({"roc_auc": 0.88, "f1": 0.8}), _cell({}), _cell(None), _cell(["a", "b"])
    ('2 values', 'none', 'none', 'a,b')
    """
    if isinstance(value, Mapping):
        return f"{len(value)} values" if value else "none"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "[]"
    return "none" if value is None else str(value)


def preset_text(preset: Preset) -> str:
    """Return what a preset changes against its base, and why."""
    origin = preset.provenance
    rows = [
        {"setting": name, "base": _cell(base), "here": _cell(value), "from": origin[name]}
        | {"why": why}
        for name, base, value, why in preset.changed()
    ]
    return "\n".join([repr(preset), *preset.notes, table(rows)])


def budget_text(budget: MemoryBudget, job: str) -> str:
    """Return a memory budget line by line with its verdict, its advice and where it comes from."""
    from nbhelpers.budget.predict import source_words

    rows = [
        {"part": line.name, "MiB": f"{line.size_bytes / 2**20:.1f}", "note": line.note}
        for line in (*budget.lines, *budget.held)
    ]
    parts: Iterable[str] = (table(rows), repr(budget), *budget.advice, *budget.notes)
    return "\n".join([*parts, f"From: {source_words(budget, job)}"])
