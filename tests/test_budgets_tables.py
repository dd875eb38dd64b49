"""Promise: the shipped budgets are those of today's presets, and of what a simulation says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from budget_tables import JOBS, cases, problems  # noqa: E402

from nbhelpers import budgets_store  # noqa: E402
from nbhelpers.budgets import find_budget, judge  # noqa: E402
from nbhelpers.budgets_child import Simulator  # noqa: E402


@pytest.mark.parametrize("job", JOBS)
def test_every_preset_is_there_for_every_card_under_the_key_it_has_today(job: str) -> None:
    assert problems(job) == []


@pytest.mark.slow
def test_a_small_one_simulated_anew_is_what_was_shipped() -> None:
    for job in JOBS:
        if not budgets_store.is_current(job, budgets_store.shipped(job)["versions"]):
            pytest.skip("the tables were made with other library versions")
    simulator = Simulator()
    try:
        for job in JOBS:
            case = next(c for c in cases(job) if (c.preset_name, c.card) == ("smoke", "t4"))
            shipped = find_budget(case.preset, case.plan, case.hardware)
            asked = (case.preset, case.plan, case.hardware)
            anew = judge(simulator.ask(*asked, timeout_s=120), case.preset.settings, case.hardware)
            assert anew.lines == shipped.lines and anew.reserved_bytes == shipped.reserved_bytes
    finally:
        simulator.close()
