"""Guards: the report of a study compares its runs on the same samples and names what is missing."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from report_page import check_report, seen
from study_on_disk import write_study

from nbhelpers.errors import ConfigError, OutOfMemory
from nbhelpers.reports.against_base import Pair
from nbhelpers.reports.rendering import Report
from nbhelpers.reports.study import cheapest, pairs_of, report_study, summary
from nbhelpers.reports.writing import report
from nbhelpers.runs.studies import open_study
from nbhelpers.runs.study_results import StudyResult

pytestmark = pytest.mark.slow
GOOD = {"base": 0.2, "r8": 0.6, "r16": 0.62, "r32": 0.97}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Return a study of three adapters and the base; no test changes it."""
    return write_study(tmp_path_factory.mktemp("runs"), "base,r8,r16,r32", good=GOOD)


@pytest.fixture(scope="module")
def made(study: StudyResult) -> Report:
    """Return its report; its folder will do."""
    return report(str(study.path), show=False)


def words(text: str) -> str:
    return " ".join(text.split())


def test_page_and_text_keep_what_all_reports_keep(made: Report) -> None:
    check_report(made, {"loss", "scores", "cost"})


def test_the_headline_says_who_is_better_and_what_is_noise(made: Report) -> None:
    said = words(made.text)
    assert said.startswith("r32 is better than r8 and r16 in syntax accuracy")
    assert "; the other pairs are within noise;" in said and "runs finished: 4 of 4" in said
    assert "against the base model all are better in syntax accuracy" in said
    assert re.search(r"^r16 +r8 +syntax accuracy .* within noise$", made.text, re.M)


def test_two_equal_adapters_are_within_noise_and_the_cheaper_one_is_named(tmp_path: Path) -> None:
    good = {"base": 0.2, "r16": 0.7, "r32": 0.7}
    found = write_study(tmp_path, "base,r16,r32", good=good)
    opening = summary(found, pairs_of(found))
    assert opening.verdict.startswith("r16 and r32 are within noise of each other (syntax accuracy")
    least = {figure.title: f"{figure.value} {figure.note}" for figure in opening.figures}
    assert least["least memory"].startswith("7.32 GiB r16, which no other beats")
    assert least["least time"].startswith("16 min 19 s r16 and r32 (below 20 % is noise)")


@pytest.mark.parametrize(
    ("seconds", "peaks", "time", "memory"),
    [
        ((13, 30), (1 << 30, 2 << 30), "13 s r16, which", "1.00 GiB r16, which"),
        ((13, 30), (2 << 30, 1 << 30), "13 s r16, which", "1.00 GiB r32, which"),
        ((13, 13.2), (2 << 30, 1 << 30), "13 s r16 and r32 (below 20 %", "1.00 GiB r32, which"),
    ],
)
def test_the_cheaper_adapter_is_named_and_noise_is_called_so(
    study: StudyResult, seconds: tuple, peaks: tuple, time: str, memory: str
) -> None:
    rows = []
    for row, taken, peak in zip(study.rows[2:], seconds, peaks, strict=True):
        new = {"timing": {"total_s": taken}, "memory": {"measured_bytes": peak}}
        rows.append(replace(row, result=replace(row.result, data=row.result.data | new)))
    pair = Pair("r32", "r16", "test", "bleu", 0.2, -1.0, 1.4, 0.6, "within noise", "")
    least = cheapest(replace(study, rows=tuple(rows)), [pair])
    assert f"{least[0].value} {least[0].note}".startswith(time)
    assert f"{least[1].value} {least[1].note}".startswith(memory)


def test_one_adapter_alone_is_not_compared_with_others(tmp_path: Path) -> None:
    alone = write_study(tmp_path, "base,r16", good={"base": 0.2, "r16": 0.7})
    notes = [figure.note for figure in cheapest(alone, pairs_of(alone))]
    assert notes == ["r16", "r16"]


def test_a_p_that_no_draw_reached_is_a_bound(study: StudyResult, made: Report) -> None:
    least = 1 / (study.rows[0].settings.bootstrap_samples + 1)
    assert (made.tables["pairs"]["p_holm"].dropna() >= least * 0.999).all()
    assert "p <= 0.010" in seen(made) and "p = 1.000" in seen(made)


def test_the_page_gives_the_one_command_and_tables_scroll_in_their_own_box(
    study: StudyResult, made: Report
) -> None:
    command = "nbhelpers study --preset smoke --adapters base,r8,r16,r32 --seeds 3"
    assert command in seen(made) and study.study.command().startswith(command)
    page = study._repr_html_()
    assert page.count("<table") == page.count('<div style="overflow-x:auto"><table') > 0


def test_every_run_is_a_row_with_scores_intervals_and_cost(
    study: StudyResult, made: Report
) -> None:
    table = made.tables["runs"].set_index("run")
    row, scores = table.loc["r16"], study.rows[2].result.scores
    assert row["test.syntax_accuracy"] == scores["test"]["metrics"]["syntax_accuracy"]
    assert row["test.bleu_low"] == scores["test"]["intervals"]["bleu"][0]
    page = words(seen(made))
    for wanted in ("20,766,720", "energy Wh", "96.0", "peak memory", "7.32", "7.73", "26,400"):
        assert wanted in page
    low, high = scores["humaneval"]["intervals"]["pass@1"]
    assert f"({low:.3f} to {high:.3f})" in page
    assert study.rows[2].run.id in page


def test_pairs_hold_the_difference_of_the_same_samples(study: StudyResult, made: Report) -> None:
    table = made.tables["pairs"].set_index(["first", "second", "score"])
    row = table.loc[("r32", "r8", "test.exact_match")]
    values = [study.rows[at].number("scores", "test", "metrics", "exact_match") for at in (1, 3)]
    assert row["difference"] == pytest.approx(values[1] - values[0])
    assert row["difference_low"] > 0 and row["verdict"] == "better" and row["p_holm"] < 0.05
    assert len(table) == 6 * 5  # pairs of four runs, five scores


def test_verdicts_are_those_of_the_study_itself(study: StudyResult, made: Report) -> None:
    lines = [line for line in study.verdicts("test.syntax_accuracy") if "against base" in line]
    table = made.tables["pairs"].set_index(["first", "second", "score"])
    assert len(lines) == 3
    for line in lines:
        name, verdict = re.search(r"(\S+) against base: ([a-z ]+?)(?: \(|$)", line).groups()
        assert table.loc[(name, "base", "test.syntax_accuracy"), "verdict"] == verdict


def test_one_seed_is_a_doubt(made: Report) -> None:
    assert "One seed: the intervals are over samples only" in words(made.text)
    assert "seeds" not in made.tables


def test_several_seeds_give_a_spread_and_no_such_doubt(tmp_path: Path) -> None:
    good = {"base": 0.2, "r8": 0.6, "r16": 0.62}
    found = write_study(tmp_path, "base,r8,r16", seeds="3,4,5", good=good, samples=40)
    made = report_study(found, show=False)
    table = made.tables["seeds"].set_index(["adapter", "split", "metric"])
    values = [
        row.number("scores", "test", "metrics", "syntax_accuracy")
        for row in found.rows
        if row.planned.adapter == "r8"
    ]
    row = table.loc[("r8", "test", "syntax_accuracy")]
    assert row["seeds"] == 3 and row["mean"] == pytest.approx(sum(values) / 3)
    assert [row["lowest"], row["highest"]] == [min(values), max(values)]
    assert "Spread over seeds" in seen(made) and "One seed" not in made.text
    assert "r8 and r16 are within noise of each other" in words(made.text)


def test_a_failed_run_is_named_with_its_error(tmp_path: Path) -> None:
    found = write_study(tmp_path, "base,r8,r16", good=GOOD, samples=20, without=("r16",))
    made = report_study(found, show=False)
    said = words(made.text)
    assert "runs finished: 2 of 3 without: r16 (failed)" in said
    assert "Without a result: r16: OutOfMemory: asked for <2 GiB>" in said
    assert "asked for &lt;2 GiB&gt;" in made.html and "<2 GiB>" not in made.html


def test_a_study_without_any_result_still_has_a_report(tmp_path: Path) -> None:
    found = write_study(tmp_path, "base,r8", good=GOOD, without=("base", "r8"))
    made = report_study(found, show=False)
    assert "0 of 2 without: base (failed), r8" in words(made.text)
    assert made.plots == {} and set(made.tables) == {"runs", "folders"}


def test_runs_without_an_evaluation_are_not_compared(tmp_path: Path) -> None:
    found = write_study(tmp_path, "base,r8", good=GOOD, samples=20)
    for row in found.rows:
        path = row.run.result_path
        path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {}}))
        (row.run.path / "generations.jsonl").unlink()
    made = report_study(open_study(found.path), show=False)
    assert "pairs" not in made.tables and "0.000" not in made.text
    assert "r8" in made.text and "26,400" in made.text


def test_other_gpus_are_estimates(study: StudyResult, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(study.path.parent, folder)
    for row in study.rows:
        path = folder / row.run.id / "run.json"
        record = json.loads(path.read_text())
        record["hardware"] = {"gpus": [{"key": "t4", "name": "Tesla T4"}]}
        record["preset"] = row.planned.preset.to_dict()
        path.write_text(json.dumps(record))
        path = path.with_name("result.json")
        data = json.loads(path.read_text()) | {"precision": "fp16"}
        data["plan"] |= {"use_gpu": True}
        path.write_text(json.dumps(data))
    page = seen(report_study(open_study(study.path.name, folder), show=False))
    assert "On other GPUs (predicted)" in page and "h100" in page
    assert "measured on another machine, scaled" in words(page)


def test_a_folder_that_cannot_be_written_to_is_an_error_with_a_fix(tmp_path: Path) -> None:
    found = write_study(tmp_path, "base,r8", good=GOOD, samples=8)
    (found.path / "study.html").mkdir()
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        report_study(found, show=False)
    assert caught.value.fix


def test_the_best_run_has_the_lowest_loss_on_valid_and_the_base_is_none_of_them(
    study: StudyResult, tmp_path: Path
) -> None:
    losses = {"base": 0.1, "r8": 0.9, "r16": 0.4, "r32": None}

    def told(name: str) -> StudyResult:
        rows = []
        for row in study.rows:
            evals = [{"step": 1, "loss": 0.0}, {"step": 2, "loss": losses[row.name]}]
            evals = evals if losses[row.name] is not None else []
            data = row.result.data | {"training": {"evals": evals}}
            rows.append(replace(row, result=replace(row.result, data=data)))
        return replace(study, rows=tuple(row for row in rows if name in ("all", row.name)))

    assert told("all").best.name == "r16"
    assert told("r32").best.name == "r32"
    assert told("base").best.name == "base"
    failed = write_study(tmp_path, "r8", good=GOOD, without=("base", "r8"))
    with pytest.raises(OutOfMemory):
        assert failed.best


def test_a_notebook_shows_the_scores_before_the_cost(study: StudyResult) -> None:
    page = study._repr_html_()
    assert page.index("syntax accuracy") < page.index("useful tokens") < page.index(">rank</th>")
