"""JSON files that are replaced in one step and read with tolerance."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from nbhelpers.forms import ANY, fitted


def read_json(path: str | Path, form: Any = ANY) -> dict[str, Any] | None:
    """The object in a JSON file, as far as it has the form; None when none can be read."""
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return fitted(data, form) if isinstance(data, dict) else None


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Replace a JSON file in one step: readers see the old or the new one, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=1, default=str) + "\n")
            file.flush()
            with contextlib.suppress(OSError):  # some mounted drives have no fsync
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
