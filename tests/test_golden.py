"""Promise: what a user sees of stored runs, plans, budgets and errors is what it was.

The outputs were recorded on earlier code (`tests/golden/expected`). A wanted change is written
with `python tests/golden/record.py --write NAME`, and its difference is part of the change. The
other new runs are compared where the notebooks make them.
"""

from __future__ import annotations

import pytest

from tests.golden.live import live_cases, live_clones
from tests.golden.outputs import FOLDERS
from tests.golden.record import EXPECTED, LOOSE, cases, compare

pytestmark = pytest.mark.slow
MOST_BYTES, MOST_OF_ONE = 3_000_000, 500_000


@pytest.mark.parametrize("name", cases())
def test_outputs_are_those_recorded(name: str) -> None:
    compare(name, cases()[name]())


def test_a_new_run_is_the_one_recorded() -> None:
    compare("live_clones", live_clones(), LOOSE)


def test_every_stored_output_has_its_case() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} == {*cases(), *live_cases()}


def test_the_frozen_folders_stay_small() -> None:
    sizes = [path.stat().st_size for path in FOLDERS.rglob("*") if path.is_file()]
    assert sum(sizes) < MOST_BYTES and max(sizes) < MOST_OF_ONE
