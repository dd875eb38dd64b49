"""Guards: the live progress of a fine-tuning shows what it does, in its own units."""

from __future__ import annotations

from typing import Any

import pytest

from nbhelpers.runs.progress import Progress


def shown(*events: dict[str, Any]) -> str:
    progress = Progress(job="finetune")
    for t, event in enumerate(events):
        progress.update({"t": float(t), "rank": 0} | event)
    return progress.line()


TRAIN = {"type": "phase", "name": "train"}


def step(at: int, **facts: Any) -> dict[str, Any]:
    return {"type": "step", "step": at, "total_steps": 300, "learning_rate": 2e-4} | facts


def test_a_step_shows_loss_speed_and_memory() -> None:
    facts = {"loss": 0.7311, "useful_tokens_per_s": 26_431.0, "memory_bytes": 3 << 30}
    assert shown(TRAIN, step(1), step(30, **facts)) == (
        "[train] step 30/300 (10%) · loss 0.7311 · 26,431 useful tokens/s · ETA 9.3 s · "
        "memory 3.00 GiB"
    )


@pytest.mark.parametrize("event", [{"scores": {"loss": 0.81}}, {"loss": 0.81}])
def test_the_loss_on_valid_stays_while_training_goes_on(event: dict[str, Any]) -> None:
    valid = {"type": "eval", "step": 30, "split": "valid"} | event
    line = shown(TRAIN, step(30, loss=0.7), valid, step(31, loss=0.69))
    assert "loss 0.6900 · valid loss 0.8100 (step 30)" in line and "F1" not in line
    assert "valid loss" not in shown(TRAIN, valid, {"type": "phase", "name": "evaluate"})


def test_a_count_that_has_just_begun_has_no_time_left() -> None:
    events = [TRAIN, step(1), step(30) | {"t": 1.2}]
    assert "ETA" not in shown(*events) and "ETA 9.3 s" in shown(TRAIN, step(1), step(30))


def test_skipped_updates_are_told() -> None:
    assert "2 skipped" in shown(TRAIN, step(9, loss=1.0, skipped_steps=2))
    assert "skipped" not in shown(TRAIN, step(9, loss=1.0, skipped_steps=0))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tokenise train", "tokenise train 1,000/2,000 samples (50%)"),
        ("generate humaneval", "generate humaneval 1,000/2,000 answers (50%)"),
        ("pretrain", "pretrain 1,000/2,000 steps (50%)"),
        ("run programs", "run programs 1,000/2,000 (50%)"),
    ],
)
def test_a_count_says_what_it_counts(name: str, line: str) -> None:
    event = {"type": "progress", "name": name, "done": 1000, "total": 2000}
    assert shown({"type": "phase", "name": "evaluate"}, event) == f"[evaluate] {line}"


def test_following_knows_the_job_of_the_run(tmp_path: Any) -> None:
    import io

    from nbhelpers.runs.following import _Watch
    from nbhelpers.runs.progress import LogView
    from nbhelpers.runs.run import Run, write_json

    write_json(tmp_path / "run.json", {"job": "finetune"})
    assert _Watch(Run(tmp_path), LogView(io.StringIO()), 1.0).progress.job == "finetune"
