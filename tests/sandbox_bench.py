"""A place to run generated programs in tests, and limits that spare the machine."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbhelpers.jobs.sandbox import running

MIB = 2**20
TIGHT = {"timeout_s": 1.5, "memory_bytes": 256 * MIB, "output_bytes": MIB, "file_bytes": 4 * MIB}
SECRET = "hf_thisIsTheTokenNobodyMaySee"


def workplace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, where no program's folder may be left after a test."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    yield folder
    left = [path.name for path in folder.glob("nbhelpers-sandbox-*")]
    shutil.rmtree(folder)
    assert left == [], "a program's folder was left behind"


def bare(source: str, **limits: float) -> running.Outcome:
    """Run with the filter of system calls alone, as where neither user nor Landlock help."""
    without = ("user", "landlock", "namespaces")
    reply = running._run(source, {**TIGHT, **limits}, threading.Event(), without)
    return running.Outcome(**{name: reply[name] for name in ("status", "detail", "seconds")})


def run_program(source: str, **limits: float) -> running.Outcome:
    """Run one program within these limits."""
    return running.run_programs([source], limits=running.LIMITS | limits)[0]
