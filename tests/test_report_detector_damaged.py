"""Promise: a damaged folder of a detector costs what is damaged; the rest is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from detector_on_disk import result, write_detector
from test_damaged_runs import JUNK, MARK, damaged, places, read_everything

from nbhelpers.errors import NbhelpersError
from nbhelpers.forms import RESULT, fitted
from nbhelpers.plots_detector import edits_figure, loss_figure, scores_figure, slices_figure
from nbhelpers.report_facts import RunFacts, read_facts
from nbhelpers.runs import Run

pytestmark = pytest.mark.slow
DRAWN = ("training", "scores", "operating_point")


def test_a_whole_result_loses_nothing() -> None:
    data = result()
    assert fitted(data, RESULT) == data


def test_no_value_anywhere_in_the_result_crashes_a_reader(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "run")
    good = json.loads((folder / "result.json").read_text())
    for number, way in enumerate(list(places(good))[::53]):
        junk = JUNK[number % len(JUNK)]
        (folder / "result.json").write_text(json.dumps(damaged(good, way, junk)))
        try:
            assert MARK not in read_everything(folder), way
        except NbhelpersError:
            assert not way  # the whole file is gone, and so is the run


def test_no_value_in_a_part_that_is_drawn_crashes_a_figure() -> None:
    good = result()
    for number, way in enumerate([w for w in places(good) if w and w[0] in DRAWN][::97]):
        data = fitted(damaged(good, way, JUNK[number % len(JUNK)]), RESULT)
        facts = RunFacts(run=Run(Path("none")), status="finished", data=data, record={}, events=[])
        for draw in (loss_figure, edits_figure, slices_figure):
            draw(facts)
        scores_figure(facts, None)


def test_a_result_without_any_one_part_still_makes_a_report(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "run")
    good = json.loads((folder / "result.json").read_text())
    for way in [w for w in places(good) if len(w) in (1, 3) and isinstance(w[-1], str)][::11]:
        data = json.loads(json.dumps(good))
        inside = data
        for key in way[:-1]:
            inside = inside[key]
        del inside[way[-1]]
        (folder / "result.json").write_text(json.dumps(data))
        assert read_everything(folder), way


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "run")
    data = json.loads((folder / "result.json").read_text())
    data["operating_point"]["threshold"] = "high"
    (folder / "result.json").write_text(json.dumps(data))
    said = read_facts(folder).data["warnings"]
    assert "result.json is damaged, left out: operating_point.threshold." in said
