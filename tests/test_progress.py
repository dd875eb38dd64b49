"""Promise: the progress of a run is told in the units of its job, and fits where it is shown."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.runs import progress as shown
from nbhelpers.runs.following import follow
from nbhelpers.runs.live import NotebookView, choose_view, live_html
from nbhelpers.runs.progress import LogView, Progress, TerminalView
from nbhelpers.runs.run import Run, write_json


def step(t: float, number: int, **facts: Any) -> dict[str, Any]:
    return {"t": t, "type": "step", "rank": 0, "step": number, "total_steps": 100} | facts


def trained(*events: dict[str, Any], job: str = "") -> Progress:
    progress = Progress(job=job)
    for event in ({"t": 0.0, "type": "phase", "rank": 0, "name": "train"}, *events):
        progress.update(event)
    return progress


@pytest.mark.parametrize(
    ("steps", "eta_s"),
    [
        ([(10, 1)], None),
        ([(10, 1), (20, 2)], 980),
        ([(10, 50), (20, 60), (30, 70)], 30),  # a resumed run: what was done before is free
        ([(10, 1), (20, 100)], 0),
    ],
)
def test_the_eta_follows_the_speed_of_this_launch(steps: list, eta_s: float | None) -> None:
    progress = trained(*(step(t, number) for t, number in steps))
    assert progress.eta_s == (None if eta_s is None else pytest.approx(eta_s))


def test_a_line_holds_loss_speed_and_every_gpu() -> None:
    gpus = [
        {"index": 0, "utilisation_percent": 71, "memory_used_bytes": 3 * 2**30},
        {"index": 1, "utilisation_percent": None, "memory_used_bytes": 2**30},
    ]
    gpu = {"t": 3.0, "type": "gpu", "rank": 0, "gpus": gpus}
    progress = trained(step(1, 1), step(2, 2, loss=0.25, useful_tokens_per_s=81234.5), gpu)
    assert progress.line() == (
        "[train] step 2/100 (2%) · loss 0.2500 · 81,234 useful tokens/s · "
        "ETA of this phase 1 min 38 s · GPU 0 71 % 3.0 GiB · GPU 1 1.0 GiB"
    )


@pytest.mark.parametrize(
    ("events", "words", "absent"),
    [
        ([step(1, 1, loss=0.5), step(1, 90, loss=9.0) | {"rank": 1}], "1/100 (1%) · loss 0.5", "9"),
        ([step(1, 1, loss=None)], "step 1/100", "loss"),
        ([step(1, 9, loss=1.0, skipped_steps=2)], "2 skipped", "ETA"),
        ([step(1, 9, loss=1.0, skipped_steps=0)], "loss 1.0", "skipped"),
        ([step(1, 1), step(1.2, 30)], "30/100", "ETA"),  # a count that has just begun
        ([step(1, 1), step(3, 30)], "ETA", "loss"),
    ],
)
def test_a_line_tells_what_rank_0_knows(events: list, words: str, absent: str) -> None:
    line = trained(*events).line()
    assert words in line and absent not in line


def test_a_new_phase_begins_its_own_count() -> None:
    progress = trained(step(1, 1), step(2, 50))
    progress.update({"t": 3, "type": "phase", "rank": 0, "name": "evaluate"})
    assert progress.line() == "[evaluate]" and progress.eta_s is None
    progress.update({"t": 4, "type": "progress", "rank": 0, "name": "test", "done": 1, "total": 4})
    assert progress.line() == "[evaluate] test 1/4 (25%)"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_score_names_its_split(split: str) -> None:
    scored = {"t": 3.0, "type": "eval", "rank": 0, "split": split, "scores": {"f1": 0.8852}}
    assert trained(step(1, 1), scored).line() == f"[train] step 1/100 (1%) · {split} F1 0.885"


@pytest.mark.parametrize(
    ("job", "name", "unit"),
    [
        ("clones", "evaluate test", " functions of the pairs"),
        ("clones", "tokenise", " functions"),
        ("clones", "pretrain", " steps"),
        ("finetune", "tokenise train", " samples"),
        ("finetune", "generate humaneval", " answers"),
        ("finetune", "run programs", ""),
    ],
)
def test_a_count_says_what_it_counts(job: str, name: str, unit: str) -> None:
    counted = {"t": 1.0, "type": "progress", "rank": 0, "name": name, "done": 60, "total": 60}
    assert trained(counted, job=job).line() == f"[train] {name} 60/60{unit} (100%)"
    own = {"t": 0.0, "type": "phase", "rank": 0, "name": name}
    assert trained(own, counted, job=job).line() == f"[{name}] 60/60{unit} (100%)"


@pytest.mark.parametrize("event", [{"scores": {"loss": 0.81}}, {"loss": 0.81}])
def test_the_loss_on_valid_stays_while_training_goes_on(event: dict[str, Any]) -> None:
    valid = {"t": 2.0, "type": "eval", "rank": 0, "step": 30, "split": "valid"} | event
    line = trained(step(1, 30, loss=0.7), valid, step(3, 31, loss=0.69), job="finetune").line()
    assert "loss 0.6900 · valid loss 0.8100 (step 30)" in line and "F1" not in line


def test_following_tells_progress_in_the_units_of_the_runs_job(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"job": "finetune"})
    write_json(tmp_path / "process.json", {"launch_id": "1", "pid": 2**22 + 1, "host": "gone"})
    count = '{"t": 1, "type": "progress", "rank": 0, "name": "tokenise", "done": 1, "total": 2}'
    (tmp_path / "events-rank0.jsonl").write_text(count + "\n")
    (tmp_path / "events-launcher.jsonl").write_text(
        '{"t": 2, "type": "exit", "launch_id": "1", "returncode": 1, "reason": "failed"}\n'
    )
    stream = io.StringIO()
    with pytest.raises(Exception, match="exit code 1"):
        follow(Run(tmp_path), stream=stream)
    assert "tokenise 1/2 samples" in stream.getvalue()


def test_a_log_gets_whole_lines_about_every_tenth(monkeypatch) -> None:
    stream = io.StringIO()
    view, progress = LogView(stream), trained()
    for number in range(1, 101):
        progress.update(step(number, number, loss=1.0))
        view.show(progress)
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12 and "\r" not in stream.getvalue()
    now = time.monotonic()
    monkeypatch.setattr(shown.time, "monotonic", lambda: now + 11)
    progress.update(step(101, 99, loss=2.0))
    view.show(progress)
    assert "loss 2.0000" in stream.getvalue().splitlines()[-1]  # ten seconds passed


def test_a_terminal_line_is_rewritten_and_fits(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    view = TerminalView(stream)
    view.show(trained(step(1, 1), step(2, 50, loss=0.5, useful_tokens_per_s=1e6)))
    view.note("Warning: hot")
    view.close()
    text = stream.getvalue()
    assert text.startswith("\r##########..........") and text.endswith("\n")
    assert max(len(line) for line in text.replace("\r", "\n").splitlines()) < 60
    assert "\rWarning: hot\n" in text


def test_a_notebook_output_is_replaced_and_escaped(monkeypatch) -> None:
    display = pytest.importorskip("IPython.display")
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page.data)

    monkeypatch.setattr(display, "display", lambda *_, **__: Handle())
    view = NotebookView()
    view.show(trained(step(1, 1), step(2, 50)))
    view.show(trained(step(1, 1), step(2, 50)))
    view.note("<b>hot</b>")
    assert len(pages) == 2 and "width:50.0%" in pages[0]
    assert "<b>hot" not in pages[1] and "&lt;b&gt;hot" in pages[1] and "width:50.0%" in pages[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_headless", "view"),
    [
        (io.StringIO(), False, LogView),
        (Terminal(), False, TerminalView),
        (Terminal(), True, LogView),
        (None, True, LogView),
    ],
)
def test_the_view_fits_the_place(stream: Any, is_headless: bool, view: type) -> None:
    assert type(choose_view(stream, is_headless=is_headless)) is view


def test_the_live_view_grows_with_curve_and_table() -> None:
    events = [step(number, number, loss=2.0 / number) for number in range(1, 81)]
    scores = {"scores": {"loss": 0.5, "f1": 0.75}}
    valid = {"t": 81.0, "type": "eval", "rank": 0, "step": 40, "split": "valid"} | scores
    test = {"t": 82.0, "type": "eval", "rank": 0, "step": -1, "split": "test"} | scores
    early, late = live_html(trained(*events[:9])), live_html(trained(*events, valid, test))
    assert early.count("<tr>") == 10 and "valid loss" not in early and "<polyline" in early
    assert late.count("<circle") == 1 and late.count("<polyline") == 2
    row = next(line for line in late.split("<tr>") if ">40<" in line)
    assert all(text in row for text in ("0.0500", "0.5000", "0.750"))
    assert late.count("<tr>") <= 14 and "step 100" in late
    assert "#000" not in late and "currentColor" in late  # the page's own colour, dark or light


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, 1.0], [float("nan"), 1.0, float("inf"), 2.0]])
def test_the_live_view_bears_any_losses(losses: list[float]) -> None:
    page = live_html(trained(*(step(t, t + 1, loss=loss) for t, loss in enumerate(losses))))
    drawn = page.partition("<svg")[2].partition("</svg>")[0]
    assert "nan" not in drawn and "inf" not in drawn and bool(drawn) == (len(losses) > 1)
