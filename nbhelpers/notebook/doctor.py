"""The doctor: everything that can be known before a run, as one table of ok, warning and stop.

It asks the checks that launch, budget and readers make, and none of its own where they have one.
CUDA is not started, nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import EACCES, ENOTDIR
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from nbhelpers.budget.disk import require_supplies
from nbhelpers.budget.memory import TIGHT, UNSURE
from nbhelpers.budget.predict import predict_memory
from nbhelpers.common.display import Table
from nbhelpers.common.files import expanded, kind_of
from nbhelpers.common.formatting import gb, listed, number
from nbhelpers.data.detection_sources import code_path
from nbhelpers.data.findings import Findings
from nbhelpers.data.sources import find_files, rows_in
from nbhelpers.errors import ConfigError, HardwareError, NbhelpersError
from nbhelpers.hardware.detection import Hardware, detect_hardware
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.hardware.secrets import HF_TOKEN, share_secret
from nbhelpers.notebook.environment import check_environment, requirements
from nbhelpers.plan import plan_batch
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.checks import ARCHIVES
from nbhelpers.presets.jobs import CLONES, DETECTOR, FINETUNE, JOBS
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.packages import install_line
from nbhelpers.presets.preset import Preset
from nbhelpers.runs.starting import explained, lost_disk, require_drive, require_gpu, require_room
from nbhelpers.use.hub import check_access

OK, WARNING, STOP = "ok", "warning", "stop"
SHIPPED = {job.name for job in (CLONES, DETECTOR, FINETUNE)}
SHOWN = ("torch", "transformers", "peft", "trl", "datasets")  # with their versions


class Answer(NamedTuple):
    """What a check that does not stop says."""

    text: str
    fix: str = ""
    state: str = OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One check: its state ("ok", "warning" or "stop"), what is so, and what to do."""

    what: str
    state: str
    text: str
    fix: str = ""
    error: NbhelpersError | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Checkup:
    """The lines of all checks; it shows itself as a table."""

    lines: tuple[Line, ...]

    @property
    def exit_code(self) -> int:
        """That of the first stop's error (`errors.py`), else 0."""
        return next((line.error.exit_code for line in self.lines if line.error), 0)

    def require(self) -> Checkup:
        """Return the checkup, or stop where a line says so.

        Raises:
            NbhelpersError: The first stop's; its details are the whole table.
        """
        for line in self.lines:
            if line.error:
                raise type(line.error)(line.text, fix=line.fix, details=repr(self))
        return self

    def table(self) -> Table:
        """Return check, state, what is so, and what to do."""
        rows = [(line.what, line.state, line.text, line.fix) for line in self.lines]
        return Table(("check", "state", "what is so", "what to do"), rows)

    def __repr__(self) -> str:
        return self.table().text(max(60, shutil.get_terminal_size().columns))

    def _repr_html_(self) -> str:
        return self.table().html()

    def to_dict(self) -> dict[str, Any]:
        """JSON form, with the exit code."""
        names = ("what", "state", "text", "fix")
        lines = [{name: getattr(line, name) for name in names} for line in self.lines]
        return {"lines": lines, "exit_code": self.exit_code}


def doctor(
    job: str = "",
    preset: str = "auto",
    *,
    overrides: Mapping[str, Any] | None = None,
    hardware: Hardware | None = None,
    run_dir: str | Path = "runs",
) -> Checkup:
    """Check this machine, and what runs of a job need of it; `.require()` stops where one would.

    Args:
        job: Such as `finetune`; none: the presets of all jobs for this machine.
        preset: A name, a .yaml file or `auto`.
        overrides: Settings that the run changes.
        hardware: Detected or planned; None: what is here.
        run_dir: Where run folders will lie.
    """
    hardware = hardware or detect_hardware()
    lines = [
        _line("nbhelpers", lambda: Answer(repr(check_environment()))),
        _line("libraries", _libraries),
        _line("GPU", _gpu, hardware),
        _line("run folder", _run_folder, hardware.platform, run_dir),
        _line("token", _token, hardware.platform),
    ]
    presets = []
    for name in [job] if job else JOBS:
        try:
            presets.append(load_preset(name, preset, hardware=hardware, overrides=overrides))
        except NbhelpersError as error:
            lines.append(_stop(f"{name} preset", error))
    lines.append(_line("disk and RAM", _supplies, presets, hardware, run_dir))
    checks = [check for one in presets for check in _of(one, hardware)]
    with ThreadPoolExecutor(max_workers=8) as pool:  # each may wait for the hub
        lines += pool.map(lambda check: _line(*check), checks)
    return Checkup(tuple(lines))


def _line(what: str, check: Callable[..., Answer], *arguments: Any) -> Line:
    try:
        answer = check(*arguments)
    except NbhelpersError as error:
        return _stop(what, error)
    return Line(what=what, state=answer.state, text=answer.text, fix=answer.fix)


def _stop(what: str, error: NbhelpersError) -> Line:
    return Line(what=what, state=STOP, text=error.message, fix=error.fix, error=error)


# ------------------------------------------------------------------------------------------------
# The machine.


def _libraries() -> Answer:
    from packaging.requirements import Requirement

    missing, outside, names = [], [], []
    for requirement in map(Requirement, requirements()):
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            outside.append((requirement, installed))
        elif requirement.name in SHOWN:
            names.append(f"{requirement.name} {installed}")
    if missing:
        text = f"Packages are missing: {listed([one.name for one in missing])}."
        raise ConfigError(text, fix=_install(missing))
    if outside:
        words = [f"{one.name} {installed} ({one.specifier})" for one, installed in outside]
        text, fix = (
            f"outside the tested ranges: {listed(words)}",
            _install(one for one, _ in outside),
        )
        return Answer(text, f"{fix}, if a run fails", WARNING)
    return Answer(f"all in their tested ranges, {', '.join(names)}")


def _install(wanted: Any) -> str:
    return install_line(*(f'"{one}"' for one in wanted))


def _gpu(hardware: Hardware) -> Answer:
    if not hardware.gpus:
        return Answer(hardware.reason, state=WARNING)
    for gpu in hardware.gpus:
        if not gpu.has_kernels:
            raise HardwareError(
                f"{gpu.name} has the compute capability {_capability(gpu)}, for which today's "
                "PyTorch has no kernels.",
                fix="take a card from 7.5 on, such as a T4 (on Kaggle: GPU T4 x2)",
            )
    if not hardware.is_planned and _is_cpu_build():
        raise HardwareError(
            f"There is a GPU, and torch {version('torch')} is built for CPUs.",
            fix="install a build for CUDA: https://pytorch.org/get-started/locally",
        )
    gpu = min(hardware.gpus, key=lambda gpu: gpu.compute_capability)
    native = f"bf16 is native (compute capability {_capability(gpu)})"
    if not gpu.has_bf16:
        native = f"no native bf16 (compute capability {_capability(gpu)}): {gpu.precision} instead"
    text = "; ".join([f"{len(hardware.gpus)} x {gpu.name}", native, *hardware.notes])
    return Answer(text, state=WARNING if hardware.notes and not hardware.is_planned else OK)


def _capability(gpu: Any) -> str:
    return ".".join(map(str, gpu.compute_capability))


def _is_cpu_build() -> bool:
    """Whether torch computes on CPUs only, by its file of versions: torch is not imported."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path()
    lines = file.read_text("utf-8") if file.is_file() else ""
    builds = re.findall(r"^(?:cuda|hip|rocm)\b.*= (.+)$", lines, re.MULTILINE)
    return bool(builds) and set(builds) == {"None"}


def _run_folder(platform: str, run_dir: str | Path) -> Answer:
    root = expanded(run_dir, "run_dir").absolute()
    require_drive(platform, root)
    with explained(root):
        kind = next(filter(None, map(kind_of, (root, *root.parents))))
        if kind != "folder":
            raise OSError(ENOTDIR, "no folder", str(root))
        folder = _existing(root)
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except FileNotFoundError as error:  # as of /proc, where root may write and nothing can be
            raise OSError(EACCES, "not writable", str(folder)) from error
    text, fix = lost_disk(platform, root)
    return Answer(text, fix, WARNING) if text else Answer(str(root))


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _token(platform: str) -> Answer:
    if share_secret(HF_TOKEN):
        return Answer(f"{HF_TOKEN} is there; it is never shown and never stored")
    if platform == "colab" and not is_notebook():
        text = "none; Colab's secrets are for the cells of its notebook, not for commands"
        return Answer(text, "check in a cell: nb.doctor()", WARNING)
    return Answer("none; only gated and private models and data need one")


def _supplies(presets: list[Preset], hardware: Hardware, run_dir: str | Path) -> Answer:
    folder = _existing(expanded(run_dir, "run_dir").absolute())
    for preset in presets:
        require_supplies(preset, hardware, folder)
    disk, ram = shutil.disk_usage(folder).free, hardware.ram_available_bytes
    return Answer(f"{gb(disk)} of disk and {gb(ram)} of main memory are free")


# ------------------------------------------------------------------------------------------------
# A run: its preset on this card, its model, its data.


def _plan(preset: Preset, hardware: Hardware) -> Answer:
    plan = plan_batch(preset, hardware)
    require_gpu(preset, plan, hardware)
    budget = predict_memory(preset, plan, hardware)
    require_room(budget, hardware, force=False)
    notes = preset.notes if hardware.gpus else ()  # without one, the line of the GPU says it
    text = ". ".join([f"{preset.name}: {budget.title()}", *notes])
    if budget.verdict in (TIGHT, UNSURE):
        return Answer(text, "; or ".join(budget.advice), WARNING)
    return Answer(text)


def _of(preset: Preset, hardware: Hardware) -> Iterator[tuple[Any, ...]]:
    """Name, function and arguments of the checks of a run."""
    job, settings = preset.job, preset.settings
    yield f"{job} preset", _plan, preset, hardware
    yield f"{job} model", _model, preset
    for name in ("data", *JOBS[job].further_data):
        revision = settings.data_revision if name == "data" else None
        if source := getattr(settings, name):
            yield f"{job} {name}", _data, job, name, source, revision


def _model(preset: Preset) -> Answer:
    return Answer(repr(check_access(preset)))


def _data(job: str, name: str, source: str, revision: str | None) -> Answer:
    if source in SAMPLES:
        return Answer(f"{source}: the sample that comes with the package")
    if (kind := kind_of(expanded(source, name))) in ("file", "folder"):
        return Answer(f"{source}: a local {kind}{_looked_at(job, source)}")
    findings = Findings("stop", source)
    find_files(source, revision, findings, what=name, look=True)
    is_cached = findings.has_any("from_cache")
    how = "the hub is out of reach; the local cache has it" if is_cached else "the hub has it"
    return Answer(f"{source}: {how}")


def _looked_at(job: str, source: str) -> str:
    """Say what is known of local data without reading much: files that are cut stop here."""
    if source.lower().endswith(ARCHIVES):
        return "; not unpacked here"
    if job not in SHIPPED or (job == DETECTOR.name and code_path(source)):
        return "; what it holds is not looked at here"
    rows = rows_in(source)
    if not rows:
        return " with files of rows; not read here"
    return f" with {number(sum(rows.values()), 'row')}; what they hold is not looked at here"
