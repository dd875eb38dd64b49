"""Promise: a damaged file of a run folder is one error that names the file and the field."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from detector_on_disk import write_detector
from finetune_on_disk import result as finetune_result
from finetune_on_disk import write_finetune
from run_on_disk import write_run
from study_on_disk import write_study
from typer.testing import CliRunner

from nbhelpers.cli.app import app
from nbhelpers.common.result_files import Result
from nbhelpers.errors import ConfigError, DataError, NbhelpersError
from nbhelpers.reports.blocks import Figure, walk
from nbhelpers.reports.facts import read_facts
from nbhelpers.reports.rendering import as_html, as_text, frames
from nbhelpers.reports.writing import compose, report
from nbhelpers.runs.events import read_events
from nbhelpers.runs.progress import Progress
from nbhelpers.runs.run import STATUSES, Run, list_runs
from nbhelpers.runs.studies import open_study

pytestmark = pytest.mark.slow

MARK = "<b>junk"
JUNK = [MARK, 3, float("nan"), [], {}, [1], {"a": 1}, True, None, 10**400, "\ud800"]
# By job: what writes a run folder, and the every which place of its files is damaged.
WRITERS = {
    "clones": lambda folder: (write_run(folder), 3),
    "finetune": lambda folder: (write_finetune(folder, data=finetune_result(), rows=[]), 4),
    "detector": lambda folder: (write_detector(folder), 53),
}


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
    found = list_runs(folder.parent)
    found.rows()
    shown = found._repr_html_() + Run(folder)._repr_html_()
    summary, blocks = compose(facts)
    frames(blocks)
    as_text(summary, blocks, "page")
    return shown + as_html(summary, blocks, {})


def draw_all(facts: Any) -> None:
    summary, blocks = compose(facts)
    for picture in [summary.picture, *walk(blocks)]:
        if isinstance(picture, Figure):
            picture.draw()


def check(folder: Path, name: str, *, with_figures: bool) -> bool:
    """Whether a folder with one damaged file is refused, which must name the file and a fix."""
    try:
        assert MARK not in read_everything(folder)
        if with_figures:
            draw_all(read_facts(folder))
    except DataError as error:
        assert f"{folder.name}/{name}: " in error.message and error.fix
        assert "damaged" in {row["status"] for row in list_runs(folder.parent).rows()} | {
            "damaged" if name == "result.json" else ""
        }
        return True
    return False


@pytest.mark.parametrize("job", WRITERS)
@pytest.mark.parametrize("name", ["result.json", "run.json"])
def test_a_value_of_another_kind_is_told_or_does_no_harm(
    tmp_path: Path, job: str, name: str
) -> None:
    folder, every = WRITERS[job](tmp_path / "run")
    good = json.loads((folder / name).read_text())
    refused = 0
    for number, way in enumerate(list(places(good))[::every]):
        junk = JUNK[number % len(JUNK)]
        (folder / name).write_text(json.dumps(damaged(good, way, junk)))
        refused += check(folder, name, with_figures=number % 9 == 0)
    assert refused > 5 if name == "result.json" else refused > 0


@pytest.mark.parametrize("job", WRITERS)
def test_a_result_without_any_one_part_still_makes_a_report(tmp_path: Path, job: str) -> None:
    folder, every = WRITERS[job](tmp_path / "run")
    good = json.loads((folder / "result.json").read_text())
    for way in [w for w in places(good) if w and isinstance(w[-1], str)][::every]:
        data = json.loads(json.dumps(good))
        inside = data
        for key in way[:-1]:
            inside = inside[key]
        del inside[way[-1]]
        (folder / "result.json").write_text(json.dumps(data))
        assert read_everything(folder), way


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"timing": ["long"]}, "timing: should be a valid dictionary, is ['long']"),
        (
            {"scores": {"test": {"orders": {"given": {"f1": "abc"}}}}},
            "should be a valid number, is 'abc'",
        ),
        ({"plan": {"world_size": 2.5}}, "plan.world_size: should be a valid integer, is 2.5"),
        (
            {"training": {"history": [{"loss": True}]}},
            "training.history.0.loss: should be a valid number",
        ),
    ],
)
def test_the_error_names_the_field_and_what_it_should_be(
    run: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    good = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(good | values))
    with pytest.raises(DataError) as caught:
        report(folder, show=False)
    assert said in caught.value.message and "launch the same configuration" in caught.value.fix
    with pytest.raises(DataError):
        Run(folder).result()


@pytest.mark.parametrize("name", ["result.json", "run.json", "process.json"])
@pytest.mark.parametrize("text", ["{torn", '{"job": 3, "launch_id": 3, "run_id": []}'])
@pytest.mark.parametrize(
    "command",
    [
        ["runs"],
        ["report", "run"],
        ["follow", "run"],
        ["stop", "run"],
        ["evaluate", "finetune", "--run", "run"],
        ["export", "run", "--out", "copy"],
        ["detect", "run", "--model", "run"],
    ],
    ids=lambda words: words[0],
)
def test_no_command_ends_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], name: str, text: str
) -> None:
    folder = write_finetune(tmp_path / "runs" / "run", data=finetune_result(), rows=[])
    (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command)
    error = done.exception
    assert error is None or isinstance(error, SystemExit | NbhelpersError), error
    if command == ["report", "run"] and name == "result.json" and text:
        assert isinstance(error, DataError) and name in error.message


def test_the_neighbours_of_a_damaged_run_are_reported(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "run", data=finetune_result(), rows=[])
    other = write_finetune(tmp_path / "other", data=finetune_result(), rows=[])
    (other / "result.json").write_text('{"timing": 3}')
    assert report(folder, show=False).text
    rows = {row["run"]: row for row in list_runs(tmp_path).rows()}
    assert rows["other"]["status"] == "damaged"
    assert rows["other"]["score"].startswith("result.json: timing: should be")
    assert rows["run"]["status"] == "finished" and rows["run"]["score"]


def test_the_other_runs_of_a_study_are_shown_beside_a_damaged_one(tmp_path: Path) -> None:
    good = {"base": 0.3, "r8": 0.9, "r16": 0.8}
    study = write_study(tmp_path, "r8,r16", good=good, samples=10)
    damaged_run = study.rows[1].run.path
    (damaged_run / "result.json").write_text('{"timing": 3}')
    found = open_study(study.path)
    assert [row.status for row in found.rows] == ["finished", "failed", "finished"]
    (line,) = found.failure_lines()
    assert "result.json: timing: should be a valid dictionary, is 3" in line


def test_what_is_written_is_what_is_read(run: Path, tmp_path: Path) -> None:
    data = json.loads((run / "result.json").read_text()) | {"energy": {"joules": float("nan")}}
    written = Result.write(tmp_path / "result.json", data | {"new": {"key": [1]}})
    read = Result.read(tmp_path / "result.json")
    assert read.raw == written.raw == data | {"energy": {"joules": None}, "new": {"key": [1]}}
    assert "NaN" not in (tmp_path / "result.json").read_text()
    with pytest.raises(DataError, match=r"result\.json: job: should be a valid string"):
        Result.write(tmp_path / "result.json", data | {"job": 3})


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
        '{"type": "step", "t": NaN}',
        '{"type": "step", "t": 1, "step": 1',
        '{"type": 3, "t": 1}',
        "[1]",
        '{"type": "exit", "t": 1}',
    ],
)
def test_an_event_of_another_form_costs_only_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events-rank0.jsonl"
    path.write_text(line + '\n{"type": "step", "t": 2, "step": 7, "total_steps": 9}\n')
    progress = Progress()
    for event in read_events(path):
        progress.update(event)
    assert "7/9" in progress.line()
    assert "step 7" in report(tmp_path, show=False).text


def test_a_damaged_process_json_is_told(tmp_path: Path) -> None:
    for text in ('{"pid": "x"}', '{"offsets": [1]}', '{"launch_id": 3}', "[]"):
        (tmp_path / "process.json").write_text(text)
        with pytest.raises(DataError, match=r"process\.json: ") as caught:
            Run(tmp_path).status  # noqa: B018
        assert "delete this file" in caught.value.fix
    (tmp_path / "process.json").write_text('{"pid": null}')
    assert Run(tmp_path).status in STATUSES


@pytest.mark.parametrize(("label", "p"), [('"x"', "0.5"), ("null", "0.5"), ("1", "NaN")])
def test_a_prediction_with_values_of_another_kind_is_named(
    tmp_path: Path, label: str, p: str
) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    rest = '"row": 0, "id1": "a", "id2": "b", "p_reversed": null, "prediction": 1'
    line = f'{{"split": "test", "label": {label}, "p": {p}, {rest}}}\n'
    (folder / "predictions.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"predictions\.jsonl, line 1: not a prediction"):
        report(folder, show=False)


def test_a_run_folder_that_cannot_be_written_to_is_an_error_with_a_fix(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "clones-codegpt-0123456789")
    (folder / "report.html").mkdir()
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        report(folder, show=False)
    assert caught.value.fix
