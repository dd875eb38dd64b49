"""Promise: a damaged run folder costs what is damaged; the rest is listed and reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_on_disk import write_run

from nbhelpers.errors import ConfigError, DataError, NbhelpersError
from nbhelpers.events import read_events
from nbhelpers.forms import EVENT, RECORD, RESULT, fitted, left_out
from nbhelpers.plots import loss_figure, memory_figure
from nbhelpers.progress import Progress
from nbhelpers.report import make_tables, report
from nbhelpers.report_facts import read_facts
from nbhelpers.report_html import body
from nbhelpers.report_words import as_text
from nbhelpers.runs import STATUSES, Run, list_runs

pytestmark = pytest.mark.slow

MARK = "<b>junk"
JUNK = [MARK, 3, float("nan"), [], {}, [1], {"a": 1}, True, None, 10**400]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "clones-codegpt-0123456789")


def places(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of a list the first item stands for all."""
    yield way
    if isinstance(data, dict):
        for key in data:
            yield from places(data[key], (*way, key))
    elif isinstance(data, list) and data:
        yield from places(data[0], (*way, 0))


def damaged(data: Any, way: tuple[Any, ...], junk: Any) -> Any:
    data = copy.deepcopy(data)
    if not way:
        return junk
    inside = data
    for key in way[:-1]:
        inside = inside[key]
    inside[way[-1]] = junk
    return data


def read_everything(folder: Path) -> str:
    facts = read_facts(folder)
    tables = make_tables(facts)
    as_text(facts, tables, "page")
    found = list_runs(folder.parent)
    found.rows()
    return body(facts, tables, {}) + found._repr_html_() + Run(folder)._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["result.json", "run.json"])
def test_no_value_anywhere_in_a_file_crashes_a_reader(run: Path, tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    good = json.loads((folder / name).read_text())
    ways = list(places(good))[::3]
    for number, way in enumerate(ways):
        junk = JUNK[number % len(JUNK)]
        (folder / name).write_text(json.dumps(damaged(good, way, junk)))
        try:
            assert MARK not in read_everything(folder), way
        except NbhelpersError:
            assert not way  # the whole file is gone, and so is the run


def test_no_value_in_a_part_that_is_drawn_crashes_a_figure(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    good = json.loads((folder / "result.json").read_text())
    ways = [w for w in places(good) if w[:1] in (("training",), ("memory",), ("budget",))]
    for number, way in enumerate(ways):
        junk = JUNK[number % len(JUNK)]
        (folder / "result.json").write_text(json.dumps(damaged(good, way, junk)))
        facts = read_facts(folder)
        loss_figure(facts)
        memory_figure(facts)


def test_a_whole_result_loses_nothing(run: Path) -> None:
    for name, form in (("result.json", RESULT), ("run.json", RECORD)):
        data = json.loads((run / name).read_text())
        assert fitted(data, form) == data


def test_what_was_left_out_is_told_in_the_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    data = json.loads((folder / "result.json").read_text())
    data["timing"] = ["long"]
    (folder / "result.json").write_text(json.dumps(data))
    assert "result.json is damaged, left out: timing." in " ".join(
        report(folder, show=False).text.split()
    )


def test_a_score_that_is_no_number_is_undefined(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    scores = '{"test": {"orders": {"given": {"f1": NaN}}, "intervals": {"f1": [NaN, NaN]}}}'
    (folder / "result.json").write_text(f'{{"scores": {scores}}}')
    assert report(folder, show=False).text.startswith("F1 undefined on test (binary).")


def test_one_broken_folder_does_not_hide_the_other_runs(tmp_path: Path) -> None:
    texts = ["{", "[]", '{"preset": "x"}', '{"preset": {"name": 3}, "created_at": [1]}', "null"]
    for number, text in enumerate(texts):
        (tmp_path / f"r{number}").mkdir()
        (tmp_path / f"r{number}" / "run.json").write_text(text)
    (tmp_path / "folder" / "run.json").mkdir(parents=True)
    assert len(list_runs(tmp_path).rows()) == len(texts)


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "step", "t": 1, "step": "x", "loss": "y", "memory_bytes": "z"}',
        '{"type": "gpu", "t": 1, "gpus": "abc"}',
        '{"type": "gpu", "t": 1, "gpus": [{"utilisation_percent": "x", "index": [1]}]}',
        '{"type": "eval", "t": 1, "scores": [1]}',
        '{"type": "phase", "t": 1, "name": ["<b>"]}',
        '{"type": "warning", "t": 1, "message": {"a": 1}}',
        '{"type": "step", "t": NaN}',
        '{"type": "exit", "t": 1}',
    ],
)
def test_an_event_of_another_form_costs_only_its_fields(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events-rank0.jsonl"
    path.write_text(line + '\n{"type": "step", "t": 2, "step": 7, "total_steps": 9}\n')
    progress = Progress()
    for event in read_events(path):
        progress.update(event)
    assert "7/9" in progress.line()
    assert "step 7" in report(tmp_path, show=False).text


def test_junk_in_process_json_does_not_crash_the_status(tmp_path: Path) -> None:
    for text in ('{"pid": "x", "offsets": [1]}', '{"launch_id": 3}', '{"pid": null}', "[]"):
        (tmp_path / "process.json").write_text(text)
        assert Run(tmp_path).status in STATUSES
        assert Run(tmp_path).offset(tmp_path / "rank0.log") == 0


@pytest.mark.parametrize(
    ("label", "p", "said"),
    [('"x"', "0.5", "label 'x'"), ("null", "0.5", "label None"), ("1", "NaN", "finite")],
)
def test_a_prediction_with_values_of_another_kind_is_named(
    tmp_path: Path, label: str, p: str, said: str
) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    rest = '"row": 0, "id1": "a", "id2": "b", "p_reversed": null, "prediction": 1'
    line = f'{{"split": "test", "label": {label}, "p": {p}, {rest}}}\n'
    (folder / "predictions.jsonl").write_text(line)
    with pytest.raises(DataError, match="line 1: not a prediction") as caught:
        report(folder, show=False)
    assert said in caught.value.message


def test_a_run_folder_that_cannot_be_written_to_is_an_error_with_a_fix(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    (folder / "report.html").mkdir()
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        report(folder, show=False)
    assert caught.value.fix


def test_what_is_left_out_is_named_by_its_place() -> None:
    raw = {"type": "gpu", "gpus": [{"index": 0, "power_w": "x"}], "loss": float("inf")}
    assert list(left_out(raw, fitted(raw, EVENT))) == ["gpus[0].power_w", "loss"]
