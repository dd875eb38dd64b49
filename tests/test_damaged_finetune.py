"""Promise: a damaged folder of a fine-tuning costs what is damaged; the rest is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from finetune_on_disk import result, write_finetune
from test_damaged_runs import JUNK, MARK, damaged, places, read_everything

from nbhelpers.errors import NbhelpersError
from nbhelpers.forms import RESULT, fitted
from nbhelpers.plots_finetune import lengths_figure, loss_figure, scores_figure
from nbhelpers.report_facts import read_facts

pytestmark = pytest.mark.slow


def test_a_whole_result_loses_nothing() -> None:
    data = result()
    assert fitted(data, RESULT) == data


@pytest.mark.parametrize("name", ["result.json", "run.json"])
def test_no_value_anywhere_in_a_file_crashes_a_reader(tmp_path: Path, name: str) -> None:
    folder = write_finetune(tmp_path / "run", data=result(), rows=[])
    good = json.loads((folder / name).read_text())
    for number, way in enumerate(list(places(good))[::4]):
        junk = JUNK[number % len(JUNK)]
        (folder / name).write_text(json.dumps(damaged(good, way, junk)))
        try:
            assert MARK not in read_everything(folder), way
        except NbhelpersError:
            assert not way  # the whole file is gone, and so is the run


def test_no_value_in_a_part_that_is_drawn_crashes_a_figure(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "run", data=result(), rows=[])
    good = json.loads((folder / "result.json").read_text())
    drawn = (("training",), ("scores",), ("data",))
    for number, way in enumerate([w for w in places(good) if w[:1] in drawn][::3]):
        junk = JUNK[number % len(JUNK)]
        (folder / "result.json").write_text(json.dumps(damaged(good, way, junk)))
        facts = read_facts(folder)
        for figure in (loss_figure, scores_figure, lengths_figure):
            figure(facts)


def test_a_result_without_any_one_part_still_makes_a_report(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "run", data=result(), rows=[])
    good = json.loads((folder / "result.json").read_text())
    for way in [w for w in places(good) if w and isinstance(w[-1], str)][::4]:
        data = json.loads(json.dumps(good))
        inside = data
        for key in way[:-1]:
            inside = inside[key]
        del inside[way[-1]]
        (folder / "result.json").write_text(json.dumps(data))
        assert read_everything(folder), way
