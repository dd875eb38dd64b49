"""The folder for what can be made again, and how files get into it.

Nothing here may be missed when it is lost: a cache that cannot be read or written is only slower.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4


def cache_dir() -> Path:
    """Return the folder for what can be made again: `NBHELPERS_CACHE`, else the user's cache."""
    base = os.environ.get("NBHELPERS_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbhelpers"


def save_in_cache(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a file and rename it into place; a cache that fails is only slower."""
    # Not the process id: nodes that share a home may have equal ones.
    part = path.with_name(f"{path.stem}.{uuid4().hex}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
