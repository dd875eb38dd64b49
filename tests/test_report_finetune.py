"""Guards: the report of a fine-tuning says what its run folder holds, and never more than that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from finetune_on_disk import (
    RIGHT,
    generation,
    generations,
    result,
    scored,
    write_finetune,
    write_steps,
)
from report_page import check_report, seen

from nbhelpers.errors import DataError
from nbhelpers.reports.against_base import NO_BASE
from nbhelpers.reports.facts import read_facts
from nbhelpers.reports.finetune import samples
from nbhelpers.reports.rendering import Report, as_html, as_text, frames
from nbhelpers.reports.writing import compose, report
from nbhelpers.runs.run import RunResult, list_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run beside that of its base; no test changes them."""
    runs, rows = tmp_path_factory.mktemp("runs"), generations(wrong=30, passed=2)
    write_finetune(runs / "base", data=result("base", **scored(rows)), rows=rows)
    return write_finetune(runs / "r16")


@pytest.fixture(scope="module")
def made(finished: Path) -> Report:
    """Return the report of the finished run."""
    return report(finished, show=False)


def words(report: Report) -> str:
    return " ".join(report.text.split())


def texts(folder: Path) -> tuple[str, str]:
    """Return the terminal's text and the page's body of a run, without drawing anything."""
    summary, blocks = compose(read_facts(folder))
    return " ".join(as_text(summary, blocks, "x").split()), as_html(summary, blocks, {})


def tables(folder: Path) -> dict[str, Any]:
    """Return the tables of a run's report."""
    return frames(compose(read_facts(folder))[1])


def test_page_and_text_keep_what_all_reports_keep(made: Report) -> None:
    check_report(made, {"loss", "scores", "lengths", "memory", "gpu"})


def test_the_headline_has_scores_with_intervals_then_base_then_the_caveat(
    finished: Path, made: Report
) -> None:
    scores = json.loads((finished / "result.json").read_text())["scores"]
    low, high = scores["test"]["intervals"]["syntax_accuracy"]
    first = made.text.replace("\n", " ")
    assert first.startswith(f"Syntax accuracy 0.900 ({low:.3f} to {high:.3f}), BLEU ")
    assert "on 40 test samples; pass@1 0.200 (" in first
    base, caveat = "against the base model better in syntax accuracy and BLEU", "Only 40 samples"
    assert first.index("on MBPP") < first.index(base) < first.index(caveat)
    assert first.index(caveat) < first.index("pass@1 on HumanEval:") < first.index("peak memory:")


@pytest.mark.parametrize(
    "wanted",
    [
        "finetune: google/gemma-2-2b, r16",
        "Adapter r16: trains 20,766,720 of 2,635,108,608 parameters, its own included (0.79 %).",
        "decoding mode greedy, max new tokens 256",
        "signature of BLEU",
        "pretok:nb-python-1",
        "missing colon",
        "timeout",
        "q_proj, v_proj",
        "flex",
        "parity: max difference",
        "supervised tokens",
        "190,000",
        "alpaca",
        "at 4N FLOPs per token, recomputation not counted",
        "useful tokens per raw token",
        "per optimizer step",
        "96.0",
        "540",
        "allocator peak 7.73 GiB 7.32 GiB +5.6 %",
        "fp32, with two moments",
        "a T4 has room for 512",
        "5 train rows are in test",
        "duplicate rows: 12",
        "nbhelpers train finetune --preset t4",
        "apache-2.0",
        "f" * 64,
        "16 min 03 s",
    ],
)
def test_the_page_says(made: Report, wanted: str) -> None:
    assert wanted in " ".join(seen(made).split())


def test_what_a_run_says_is_escaped_in_the_page(made: Report) -> None:
    page = made.path.read_text()
    assert "attention &lt;auto&gt; chose flex" in page
    assert "Instruction &lt;x&gt;: double<mark>def twice" in page


def test_the_table_of_scores_is_that_of_the_result(finished: Path, made: Report) -> None:
    scores = json.loads((finished / "result.json").read_text())["scores"]
    table = made.tables["scores"].set_index(["split", "metric"])
    for split, found in scores.items():
        for metric, value in found["metrics"].items():
            row = table.loc[(split, metric)]
            assert row["value"] == pytest.approx(value)
            assert [row["low"], row["high"]] == pytest.approx(found["intervals"][metric])


def test_the_base_model_is_compared_on_the_same_samples(made: Report) -> None:
    rows = made.tables["base"].set_index(["split", "metric"])
    assert rows.loc[("test", "syntax_accuracy"), "difference"] == pytest.approx(26 / 40)
    assert rows.loc[("test", "syntax_accuracy"), "verdict"] == "better"
    assert rows.loc[("humaneval", "stopped"), "verdict"] == "within noise"
    assert re.search(r"syntax accuracy +0\.\d+ +0\.900 +\+0\.650 \(\+0\.", made.text)
    assert "Within noise: " in seen(made)


def beside(tmp_path: Path, base: dict[str, Any] | None, rows: Any = None) -> Any:
    """Return the folder of a run with a base run beside it that says something else."""
    ours = write_finetune(tmp_path / "runs" / "r16")
    if base is not None:
        data = json.loads((ours / "result.json").read_text())
        data |= {"adapter": {"name": "base", "method": "base"}} | base
        write_finetune(tmp_path / "runs" / "base", data=data, rows=rows)
    return ours


def test_without_a_base_run_there_is_no_comparison(tmp_path: Path) -> None:
    folder = beside(tmp_path, None)
    summary, _ = compose(read_facts(folder))
    assert NO_BASE in texts(folder)[0] and "base" not in tables(folder)
    assert "base" not in summary.verdict


@pytest.mark.parametrize(
    "base",
    [
        {"data": {"fingerprint": "other", "template": "alpaca"}},
        {"model": {"name": "google/gemma-2-2b-it"}},
    ],
)
def test_a_base_run_of_another_experiment_is_not_named(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    assert NO_BASE in texts(beside(tmp_path, base))[0]


def test_a_base_run_that_was_set_aside_is_not_compared(tmp_path: Path) -> None:
    folder = beside(tmp_path, {})
    assert NO_BASE not in texts(folder)[0]
    (tmp_path / "runs" / "base").rename(tmp_path / "runs" / "base~1")
    assert NO_BASE in texts(folder)[0]


def test_a_short_run_odd_columns_and_lost_rows_are_told(tmp_path: Path) -> None:
    data = result("r16")
    data["training"]["optimizer_steps"] = 6
    note = "note: columns understood by another name: 1 (a.jsonl:1: q as the question)"
    found = {"notes": [note], "rows_dropped": {"a.jsonl": 3}, "counts": {"broken_json": 3}}
    data["data"]["problems"] = found | {
        "left_out": "3 rows are left out of the data.",
        "duplicates": {"threshold": 0.8, "train_rows_like_any": 0, "within_train": {"near": 0}},
    }
    folder = write_finetune(tmp_path / "r16", data=data)
    text, page = texts(folder)
    for said in ("Only 6 optimizer steps", "Of the data: columns understood by another name: 1 ("):
        assert said in text and said in page
    assert "bad rows of a.jsonl" in page and "3 rows are left out" in page
    assert "broken json" not in page and "Nearly equal:" not in page
    assert "No train row equals or nearly equals a row of test or valid." in page
    found = tables(folder)["data"].to_dict("records")
    assert found[-1]["split"] == "bad rows of a.jsonl" and found[-1]["dropped"] == 3


def test_other_decoding_is_not_compared_and_says_so(tmp_path: Path) -> None:
    scores = scored(generations())
    scores["test"]["decoding"] = {"mode": "greedy", "max_new_tokens": 384}
    rows = tables(beside(tmp_path, {"scores": scores}))["base"].set_index(["split", "metric"])
    assert rows.loc[("test", "bleu"), "verdict"] == "not comparable"
    assert "max_new_tokens differs" in rows.loc[("test", "bleu"), "reason"]
    assert rows.loc[("humaneval", "pass@1"), "verdict"] == "within noise"


def test_generations_that_cannot_all_be_read_are_not_compared(tmp_path: Path) -> None:
    rows = tables(beside(tmp_path, {}, rows=generations()[1:]))["base"]
    assert "39 of 40 generations of base can be read" in set(rows["reason"])


def test_the_base_model_itself_says_that_nothing_was_trained(tmp_path: Path) -> None:
    rows = generations()
    folder = write_finetune(tmp_path / "b", data=result("base", **scored(rows)), rows=rows)
    text, _ = texts(folder)
    assert ": the base model as it is." in text
    assert "Nothing was trained" in text and "No run of the base model" not in text


def test_an_evaluation_that_was_not_made_is_never_a_zero(tmp_path: Path) -> None:
    data = result() | {"scores": {}}
    data["settings"] = data["settings"] | {"evaluate": "none"}
    folder = write_finetune(tmp_path / "run", data=data, rows=[])
    said, page = texts(folder)
    assert said.startswith(
        "Not evaluated: no answers were generated (evaluate=none); trained for 100"
    )
    assert "test: not evaluated (evaluate=none)." in said
    assert "0.000" not in said
    assert "HumanEval: not evaluated (evaluate=none)." in page
    assert not {"scores", "targets"} & set(tables(folder))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"evaluate": "text"}, "not evaluated (evaluate=text)"),
        ({"evaluate": "all", "tasks": ["mbpp"]}, "not evaluated (tasks=mbpp)"),
    ],
)
def test_a_split_that_was_left_out_says_why(
    finished: Path, tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    data = json.loads((finished / "result.json").read_text())
    data["scores"] = {"test": data["scores"]["test"]}
    data["settings"] |= settings
    said, page = texts(write_finetune(tmp_path / "run", data=data, rows=[]))
    assert f"HumanEval: {why}." in said
    assert re.search(r"humaneval\.pass@1 at least 0\.5(000)? missed not \w+", said), said
    assert re.search(r">not \w+</td>", page)


def test_programs_that_were_not_run_have_no_pass_rate(tmp_path: Path) -> None:
    rows = [row | {"outcome": None} for row in generations()]
    folder = write_finetune(tmp_path / "run", rows=rows)
    assert "pass@1 not run on HumanEval" in texts(folder)[0]
    table = tables(folder)["outcomes"]
    assert table["outcome"].unique().tolist() == ["not run"]


HOSTILE = (
    "</pre><script>alert(1)</script>",
    "\x1b[2J\x1b[31mred",
    "a\u202eb",
    "x\x00y",
)


def test_hostile_texts_are_shown_not_obeyed(finished: Path, tmp_path: Path) -> None:
    data = json.loads((finished / "result.json").read_text())
    data["warnings"], rows = list(HOSTILE), []
    for at, text in enumerate(HOSTILE):
        row = generation(at, answer=text, prompt=text, reference=text, id=text)
        rows += [row, row | {"split": "mbpp", "outcome": text, "detail": text}]
    made = report(write_finetune(tmp_path / "run", data=data, rows=rows), show=False)
    for said in (made.path.read_text(), made.html, made.text):
        assert not re.search("[\x00-\x08\x1b\u202e]", said)
        said.encode()
        assert "\\x1b[31mred" in said
    assert "<script>" not in made.html and "Sample generations" in made.html


def test_samples_are_of_unlike_kinds_and_carry_their_verdict(finished: Path) -> None:
    titles = [one.title for one in samples(finished / "generations.jsonl").blocks]
    outcomes = [title.partition(": ")[2] for title in titles if title.startswith("test ")]
    assert outcomes == [
        "does not parse (missing colon); ended by itself",
        "exact match; ended by itself",
        "not the reference, but it parses; cut at the limit of new tokens",
    ]
    kinds = [re.split("[ ;]", t.partition(": ")[2])[0] for t in titles if t.startswith("HumanEval")]
    assert kinds == ["passed", "timeout", "failed"]


def test_an_answer_in_a_fence_is_judged_by_its_code(tmp_path: Path) -> None:
    row = generation(0, answer=f"Here it is:\n```python\n{RIGHT}\n```\n")
    (tmp_path / "g.jsonl").write_text(json.dumps(row))
    (one,) = samples(tmp_path / "g.jsonl").blocks
    assert one.title.endswith("exact match; ended by itself")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"split": "test"}',
        "\udcff",
        json.dumps(generation(1) | {"new_tokens": []}),
        json.dumps(generation(1) | {"stopped": 3}),
    ],
)
def test_a_damaged_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    folder = write_finetune(tmp_path / "run")
    path = folder / "generations.jsonl"
    lines = [json.dumps(generation(1)), line]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"generations\.jsonl, line 2: ") as caught:
        report(folder, show=False)
    assert "remove this file" in caught.value.fix


def test_a_missing_file_is_no_section(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "run")
    (folder / "generations.jsonl").unlink()
    assert "Sample generations" not in texts(folder)[1]


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    row = generation(1, answer="x = 1\n" * 9000, prompt="a" * 9000 + "END")
    folder = write_finetune(tmp_path / "run", data=result(), rows=[row])
    page = texts(folder)[1]
    assert "52,500 more characters" in page and "END" in page
    assert page.count("a" * 690) == 1 and page.count("x = 1") < 300


NOTE = "A sample of tasks: small. Scores on it say nothing about real models."


def test_the_note_of_the_sample_is_the_caveat(finished: Path, tmp_path: Path) -> None:
    data = json.loads((finished / "result.json").read_text())
    data["data"] |= {"source": "smoke", "note": NOTE}
    said, page = texts(write_finetune(tmp_path / "run", data=data, rows=[]))
    assert "scores on it say nothing about real models" in said[:500]
    assert said.count(NOTE) == 1 and NOTE in page


def test_doubts_name_their_reason(finished: Path, tmp_path: Path) -> None:
    data = json.loads((finished / "result.json").read_text())
    data["scores"]["test"]["metrics"]["stopped"] = 0.25
    data["model"]["random_weights"] = True
    data["training"]["skipped_steps"] = 7
    folder = write_finetune(tmp_path / "run", data=data, rows=[])
    said = texts(folder)[0]
    for wanted in (
        "started from random weights",
        "75.0 % of the answers were cut at 256 new tokens",
        "7 optimizer steps were skipped",
        "3.0 % of the train samples are longer than 512 tokens",
    ):
        assert wanted in said


def test_a_failed_run_reports_its_error_and_what_is_known(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "failed")
    for name in ("result.json", "generations.jsonl"):
        (folder / name).unlink()
    error = {"kind": "OutOfMemory", "message": "asked for 2 GiB", "fix": "halve the batch"}
    write_steps(folder, [{"t": 1700.0, "type": "error", "rank": 0} | error])
    made = report(folder, show=False)
    said = " ".join(seen(made).split())
    assert "No scores yet" in said and "optimizer step 60 of 100" in said
    assert "OutOfMemory: asked for 2 GiB" in said and "halve the batch" in said
    assert "finetune: gemma-2-2b, r16" in said
    assert {"loss", "memory", "gpu"} <= set(made.plots)
    assert "not evaluated" not in made.text


def test_a_result_is_known_by_its_scores(finished: Path, tmp_path: Path) -> None:
    found = RunResult.from_path(finished)
    assert list(found.headline_scores) == [
        "syntax accuracy",
        "BLEU",
        "HumanEval pass@1",
        "MBPP pass@1",
    ]
    assert repr(found).startswith("RunResult(r16, syntax accuracy 0.900, BLEU ")
    page = found._repr_html_()
    assert page.index(">HumanEval pass@1</td>") < page.index(">0.200</td>")
    scores = {row["run"]: row["score"] for row in list_runs(finished.parent).rows()}
    assert scores == {"base": "syntax accuracy 0.250", "r16": "syntax accuracy 0.900"}
