"""Which files pytest imports at all: those that hold a test which is to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ALL_SLOW = re.compile(r"^pytestmark = (\[\s+)?pytest\.mark\.slow", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules without an example, and files of slow tests where none is wanted."""
    if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None
    text = collection_path.read_text("utf-8")
    if collection_path.name.startswith("test_"):
        is_idle = "not slow" in config.option.markexpr and ALL_SLOW.search(text)
    else:
        is_idle = ">>>" not in text
    return True if is_idle else None
