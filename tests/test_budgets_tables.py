"""Promise: the tables of shipped budgets answer for their presets, and are built in stages.

That they hold every preset as it is today is `make check`'s (`tools/budget_tables.py check`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import budget_build  # noqa: E402
import budget_cases  # noqa: E402
import budget_tables  # noqa: E402
import versions  # noqa: E402
from budget_build import TimeIsUp, build  # noqa: E402
from budget_tables import cases, problems, stale  # noqa: E402
from fake_simulator import VERSIONS, synthetic  # noqa: E402

from nbhelpers.budget import store  # noqa: E402
from nbhelpers.budget.memory import MemoryBudget  # noqa: E402
from nbhelpers.budget.predict import predict_memory  # noqa: E402
from nbhelpers.hardware.detection import Hardware  # noqa: E402
from nbhelpers.plan import BatchPlan  # noqa: E402


class Stub:
    """Stands in for a child: a simulation whose sums are known."""

    factor, asked = 1.0, 0

    def ask(
        self, preset: Any, plan: BatchPlan, hardware: Hardware, *, timeout_s: float
    ) -> MemoryBudget:
        Stub.asked += 1
        budget = replace(synthetic(preset, plan), versions=VERSIONS)
        return replace(budget, reserved_bytes=round(budget.reserved_bytes * Stub.factor))

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder of tables, an empty cache, two presets, and stubs that simulate."""
    folder = tmp_path / "tables"
    for module in (budget_build, store):
        monkeypatch.setattr(module, "TABLES", folder)
    monkeypatch.setattr(store, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(budget_tables, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(budget_cases, "list_presets", lambda job: ["smoke", "t4"])
    monkeypatch.setattr(budget_cases, "COUNTS", (1,))
    monkeypatch.setattr(budget_build, "require_libraries", lambda: None)
    monkeypatch.setattr(budget_build, "Simulator", Stub)
    monkeypatch.setattr(budget_tables, "Simulator", Stub)
    monkeypatch.setattr(Stub, "factor", 1.0)
    monkeypatch.setattr(Stub, "asked", 0)
    monkeypatch.setenv("NBHELPERS_BUDGETS", str(tmp_path / "cache"))
    store.shipped.cache_clear()
    yield folder
    store.shipped.cache_clear()


def smoke_on(card: str) -> tuple:
    case = next(c for c in cases("clones") if (c.preset_name, c.place) == ("smoke", card))
    return case.preset, case.plan, case.hardware


def test_a_table_answers_for_its_presets_whatever_the_code_is_now(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(["clones"], workers=2, stages=1, presets=["smoke"]) == 0
    assert "== presets: 15 of 15" in capsys.readouterr().out and Stub.asked == 15
    store.shipped.cache_clear()
    monkeypatch.setattr(store, "code_stamp", lambda: "other code")
    assert predict_memory(*smoke_on("t4")).total_bytes == synthetic(*smoke_on("t4")[:2]).total_bytes
    assert predict_memory(*smoke_on("h200")).notes == ()
    others = VERSIONS | {"torch": "9.1.0"}
    monkeypatch.setattr(store, "installed_versions", lambda: others)
    assert "your 9.1 may need" in predict_memory(*smoke_on("h200")).notes[0]
    (missing,) = {text.partition(": ")[2] for text in problems("clones")}
    assert missing == "its budget is missing"


def test_when_the_time_is_over_what_was_done_is_written_and_the_rest_is_named(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(["clones"], workers=1, stages=1, presets=["smoke"])
    ask = Stub.ask

    def until_over(self: Stub, *args: object, **options: object) -> object:
        if Stub.asked == 20:
            raise TimeIsUp
        return ask(self, *args, **options)

    monkeypatch.setattr(Stub, "ask", until_over)
    store.shipped.cache_clear()
    assert build(["clones"], workers=1, stages=1, presets=["t4"]) == 10
    out = capsys.readouterr().out
    assert "NOT DONE presets: clones/t4 on b200" in out and "10 tasks not done" in out
    store.shipped.cache_clear()
    found = {text.partition(" on ")[0] for text in problems("clones")}
    assert "clones/smoke" not in found and "clones/t4" in found  # the older ones stay
    assert not any(text.startswith("clones/t4 on t4") for text in problems("clones"))


def test_a_shipped_budget_that_a_simulation_contradicts_is_told(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(["clones"], workers=1, stages=1, presets=["smoke"])
    store.shipped.cache_clear()
    sample = [("clones", "smoke", "t4")]
    assert list(stale(sample)) == []
    monkeypatch.setattr(Stub, "factor", 1.01)
    (told,) = stale(sample)
    assert told.startswith("clones/smoke on t4: reserved_bytes") and "+1.0%" in told
    monkeypatch.setattr(budget_tables, "installed_versions", lambda: {"torch": "9.1.0"})
    assert list(stale(sample)) == []  # other libraries may well need more


def test_versions_are_compared_with_what_was_measured_and_with_each_other() -> None:
    old, new = versions.wanted("oldest"), versions.wanted("newest")
    assert [text.partition("==")[0] for text in old] == list(versions.LIBRARIES)
    assert all(">=" in text and "<" in text for text in new)
    truth, names = versions.measured(), {*versions.GRID, *versions.JOBS}
    assert names - truth.keys() == {"job-finetune-trl"}  # the ends are compared with each other
    sizes = {name: round(truth.get(name, 2**30)) for name in names}
    assert versions.problems({"oldest": sizes, "newest": sizes}, truth) == []
    for name in ("job-finetune-checkpointed", "job-finetune-trl"):
        other = sizes | {name: round(1.04 * sizes[name])}
        (found,) = versions.problems({"oldest": sizes, "newest": other}, truth)
        assert found.startswith(f"{name}: more than 3 % off")
