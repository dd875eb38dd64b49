"""What the shell's commands print: plain tables of the flow's objects."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from nbhelpers.common.files import expanded
from nbhelpers.errors import ConfigError, JobFailed, NbhelpersError

INDENTED = {"initial_indent": "    ", "subsequent_indent": "    "}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as aligned columns under their names.

    >>> print(table([{"a": 1, "name": "x"}, {"a": 22, "name": ""}]))
    a   name
    1   x
    22
    """
    if not rows:
        return ""
    texts = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(rows[0]))]
    lines = ("  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in texts)
    return "\n".join(line.rstrip() for line in lines)


def listed(items: Iterable[str]) -> str:
    """Return items with commas, or a dash for none."""
    return ", ".join(items) or "-"


def error_text(error: NbhelpersError) -> str:
    """Return an error as a person reads it in a shell: its kind, the message, the fix."""
    return f"{type(error).__name__}: {error}"


def of_the_system(error: OSError) -> NbhelpersError:
    """Return what the system refused as an error with a fix; the code of an unnamed failure."""
    place = f"{error.filename}: " if error.filename else ""
    return JobFailed(
        f"{place}{error.strerror or error}.",
        fix="check the path, its permissions and the free space; --debug shows the traceback",
    )


def typed_path(text: str | Path) -> Path:
    """Return a path that was typed; the empty text is none, though `pathlib` takes it for `.`.

    Raises:
        ConfigError: It is blank, or its home folder is unknown.
    """
    if not str(text).strip():
        raise ConfigError("A path is empty.", fix="write one, or . for the folder you are in")
    return expanded(text)


def plain_output(*streams: TextIO) -> None:
    """Let a stream whose encoding lacks a character write `?` instead of failing."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def presets_text(job: str) -> str:
    """Return the presets of a job with their GPU and what they are for."""
    from nbhelpers.presets.loading import list_presets, load_preset

    rows = []
    for name in list_presets(job):
        preset = load_preset(job, name)
        gpu = f"{preset.num_target_gpus} x {preset.gpu}" if preset.gpu else "none"
        rows.append({"preset": name, "gpu": gpu, "about": first_sentence(preset.about)})
    return table(rows)


def settings_text(job: str) -> str:
    """Return every setting of a job with its value in the base preset and what it is."""
    from nbhelpers.presets.jobs import JOBS
    from nbhelpers.presets.loading import load_preset

    settings, lines = load_preset(job, "base").settings, []
    for name, field in JOBS[job].settings.model_fields.items():
        line = f"{name} = {short(getattr(settings, name))}"
        lines += [line, *textwrap.wrap(field.description or "", 92, **INDENTED)]
    return "\n".join(lines)


def short(value: Any) -> str:
    """Return a value for a cell of a table.

    >>> short({"roc_auc": 0.88, "f1": 0.8}), short({}), short(None), short(["a", "b"])
    ('2 values', 'none', 'none', 'a,b')
    """
    if isinstance(value, Mapping):
        return f"{len(value)} values" if value else "none"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "[]"
    return "none" if value is None else str(value)


def first_sentence(text: str) -> str:
    """Return the first line of a text, up to its first full stop.

    >>> first_sentence("Trains on a T4. More words.")
    'Trains on a T4.'
    """
    line = " ".join(text.split())
    head, stop, _ = line.partition(". ")
    return head + stop.strip()


def preset_text(preset: Any) -> str:
    """Return what a preset changes against its base, and why."""
    lines = [repr(preset), *preset.notes]
    origin = preset.provenance
    rows = [
        {"setting": field, "base": short(base), "here": short(value)}
        | {"from": origin[field], "why": why}
        for field, base, value, why in preset.changed()
    ]
    return "\n".join([*lines, table(rows)])


def budget_text(budget: Any) -> str:
    """Return a memory budget line by line with its verdict and advice."""
    rows = [
        {"part": line.name, "MiB": f"{line.size_bytes / 2**20:.1f}", "note": line.note}
        for line in (*budget.lines, *budget.held)
    ]
    return "\n".join([table(rows), repr(budget), *budget.advice, *budget.notes])
