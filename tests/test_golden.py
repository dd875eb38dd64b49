"""Promise: what a user sees of stored runs, plans, budgets and errors is what it was.

The outputs were recorded on earlier code (`tests/golden/expected`). A wanted change is written
with `python tests/golden/record.py --write NAME`, and its difference is part of the change.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.live import live_cases
from tests.golden.outputs import FOLDERS, differences
from tests.golden.record import EXPECTED, cases, load

pytestmark = pytest.mark.slow
LOOSE = 1e-4  # of losses and scores that are computed anew
MOST_BYTES, MOST_OF_ONE = 3_000_000, 500_000


def compare(name: str, found: object, tolerance: float = 1e-9) -> None:
    expected = load(name)
    assert expected is not None, f"nothing is stored: python tests/golden/record.py --write {name}"
    changes = differences(expected, json.loads(json.dumps(found)), tolerance=tolerance)
    assert not changes, f"{len(changes)} differences in {name}:\n" + "\n".join(changes[:40])


@pytest.mark.parametrize("name", cases())
def test_outputs_are_those_recorded(name: str) -> None:
    compare(name, cases()[name]())


@pytest.mark.parametrize("name", live_cases())
def test_new_runs_are_those_recorded(name: str) -> None:
    compare(name, live_cases()[name](), LOOSE)


def test_every_stored_output_has_its_case() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == {*cases(), *live_cases()}


def test_the_frozen_folders_stay_small() -> None:
    sizes = [path.stat().st_size for path in FOLDERS.rglob("*") if path.is_file()]
    assert sum(sizes) < MOST_BYTES and max(sizes) < MOST_OF_ONE
