"""What every test may rely on: no hub, no display, no threads fighting for two cores."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import typer.main

from nbhelpers.common.processes import collect_garbage_again

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",  # compiled in seconds less; what it computes is the same
    "NBHELPERS_SPEEDS": os.devnull,
}.items():
    os.environ.setdefault(_name, _value)
for _name in ("NBHELPERS_OWNER_PID", "NBHELPERS_FRESH", "NBHELPERS_LAUNCHED", "NBHELPERS_ROOT"):
    os.environ.pop(_name, None)

# The command `nbhelpers` is on PATH, as in an activated environment: printed lines name it.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# In a shell's background SIGINT is ignored, and all that a test starts would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Budgets that this user simulated before are no part of any test.
_BUDGETS = tempfile.TemporaryDirectory(prefix="nbhelpers-budgets-")
os.environ["NBHELPERS_BUDGETS"] = _BUDGETS.name

# The tree of commands is built once, not for every command that a test gives in this process.
typer.main.get_command = cache(typer.main.get_command)

gc.disable()  # until all tests are collected: loading torch and its kin makes no garbage

ROOT = Path(__file__).resolve().parent.parent
# Importing the toy job adds it, which only its own test wants; frozen runs hold no tests.
collect_ignore = ["toy_job", "golden"]


# The files that take longest; what comes last should be short.
LONGEST = ("test_golden", "test_contract", "test_finetune_notebook", "test_demo_flow")
LONGEST += ("test_nodes", "test_resume", "test_study_runs", "test_finetune_trl")
LONGEST += ("test_detector_notebook", "test_use", "test_detector_export_onnx", "test_full_size")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: two processes that share the files then end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    rank = {name: at for at, name in enumerate(LONGEST, start=-len(LONGEST))}
    items.sort(key=lambda item: rank.get(item.path.stem, item.path not in slow))


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but not among what is loaded by now."""
    collect_garbage_again()


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that is never part of the project; tests skip without it."""
    folder = os.environ.get("NBHELPERS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("NBHELPERS_DATA names no folder with the real data sets")
    return Path(folder)
