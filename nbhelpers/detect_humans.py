"""Known-human code for a calibration: read from files or rows, each program counted once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_words import label_of
from nbhelpers.data.instruction_files import ENDINGS
from nbhelpers.data.near_duplicates import ShingleIndex
from nbhelpers.detect_files import CodeFile, Entry, Skipped, chunks, find_files, shown
from nbhelpers.paths import expanded, kind_of

AI_WORDS = "labelled AI"


@dataclass(frozen=True, slots=True, kw_only=True)
class Humans:
    """Programs that people are known to have written, each once; `n_files` were read."""

    source: str
    files: tuple[CodeFile, ...]
    n_files: int
    n_duplicates: int
    skipped: tuple[Skipped, ...]


def read_humans(source: Any, form: str) -> Humans:
    """Return the distinct programs of a folder or file of code, or of a file of rows.

    What is labelled AI, by its row or by the name of its folder, is left out.

    Args:
        source: A folder or a file of code; a .jsonl, .csv or .parquet file of rows; a hub id.
        form: The canonical form in which programs are compared.

    Raises:
        ConfigError: There is nothing at the place.
        DataError: The rows cannot be read.
    """
    place = expanded(source, "humans")
    skipped: list[Skipped] = []
    if kind_of(place) == "folder" or (kind_of(place) == "file" and not _is_rows(place)):
        entries, skipped = find_files(place)
        told = [_human(entry, skipped) for entry in entries]
        kept = [entry for entry, is_human in zip(entries, told, strict=True) if is_human]
        files = [file for chunk in chunks(kept, skipped) for file in chunk]
    else:
        files = _rows(str(source), skipped)
    distinct = _distinct(files, form)
    return Humans(
        source=shown(str(source)),
        files=tuple(distinct),
        n_files=len(files),
        n_duplicates=len(files) - len(distinct),
        skipped=tuple(skipped),
    )


def _is_rows(place: Path) -> bool:
    return place.suffix.lower() in ENDINGS


def _human(entry: Entry, skipped: list[Skipped]) -> bool:
    """Whether no folder that a file lies in is named for AI code."""
    parts = (part for part in entry.name.split("/")[:-1] if not part.isdigit())
    named = next((part for part in parts if label_of(part) == "ai"), None)
    if named is not None:
        detail = f"its folder is called {named}"
        skipped.append(Skipped(name=entry.name, reason=AI_WORDS, detail=detail))
    return named is None


def _rows(source: str, skipped: list[Skipped]) -> list[CodeFile]:
    from nbhelpers.data.detection import read_rows

    files = []
    for row in read_rows(source, on_bad_rows="drop"):
        if row.label == "ai":
            place = shown(row.place or row.id)
            skipped.append(Skipped(name=place, reason=AI_WORDS, detail="by its row"))
            continue
        data = row.code.encode("utf-8", "replace")
        files.append(
            CodeFile(
                name=shown(row.place or row.id),
                code=row.code,
                language=row.language,
                sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data),
            )
        )
    return files


def _distinct(files: list[CodeFile], form: str) -> list[CodeFile]:
    """Leave out each program that equals or nearly equals an earlier one."""
    index = ShingleIndex(canonical(file.code, form) for file in files)
    repeated = {match.row for match in index.repeats(range(len(files)))}
    return [file for row, file in enumerate(files) if row not in repeated]
