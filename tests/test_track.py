"""Promise: a tracker has a run's losses, evaluations, scores and memory, once, and how it ended.

Real trackers are read back from their files: `tensorboard`, and `wandb` offline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.secrets import find_secret
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run
from tests.job_runs import STEPS, events, prepare, result, stop_at, work_in_ranks

TRACKERS = ("tensorboard", "wandb")
# A number of each kind, by job: of a step, an evaluation, and of the scores at the end.
NAMES = {
    "clones": ("train/loss", "valid/f1", "final/test/f1", "final/test/roc_auc"),
    "detector": ("train/classification_loss", "valid/roc_auc", "final/test/roc_auc"),
    "finetune": ("train/loss", "valid/loss", "final/test/bleu", "final/test/syntax_accuracy"),
}
MEMORY = ("memory/predicted_bytes", "memory/allocated_bytes", "memory/measured_bytes")


class _Accelerator:
    """Remembers what its one tracker is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.trackers: list[Any] = [SimpleNamespace(name="trackio", finish=lambda: None)]

    def init_trackers(self, *_: Any, config: Any, init_kwargs: Any) -> None:
        self.options = init_kwargs["trackio"]

    def log(self, numbers: dict[str, float], step: int) -> None:
        if numbers.get("train/loss") == 13:
            raise OSError("no space left")
        self.told.append((step, numbers))


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., tuple[_Accelerator, EventWriter]]:
    """Attempt a run whose events are written by hand."""
    from nbhelpers.jobs.track import start_tracker
    from nbhelpers.runs.events import read_events

    def attempt(*losses: float, first: int = 1) -> tuple[_Accelerator, EventWriter]:
        accelerator, writer = _Accelerator(), EventWriter(tmp_path, 0)
        facts = {"run_id": "clones-x", "job": "clones", "mode": "train"}
        facts |= {"preset": {"settings": {"track": "trackio"}}}
        earlier = read_events(writer.path)
        writer.write("phase", name="check")
        start_tracker(accelerator, writer, Run(tmp_path), facts, earlier)
        writer.write("memory", predicted_bytes=7)
        for step, loss in enumerate(losses, first):
            writer.write("step", step=step, loss=loss, total_steps=9, memory_bytes=5)
            writer.write("eval", step=step, split="valid", scores={"f1": loss})
        return accelerator, writer

    return attempt


def test_steps_that_are_made_again_are_told_once(attempt: Callable[..., Any]) -> None:
    first, writer = attempt(3.0, 2.0)
    writer.write("stopped", step=1, checkpoint="step-1")
    assert writer.listener is None and not first.trackers
    again, writer = attempt(2.0, math.nan, first=2)
    writer.write("eval", step=-1, split="test", scores={"f1": 0.5})  # it stands in the result
    memory = {"memory/predicted_bytes": 7, "memory/allocated_bytes": 5}
    assert [step for step, _ in first.told] == [1, 1, 2, 2]
    assert first.told[2] == (2, {"train/loss": 2.0} | memory)
    assert again.told == [(3, memory)]
    assert first.options == {"name": "clones-x", "resume": "allow", "group": "clones"}


def test_a_tracker_that_fails_does_not_end_the_run(attempt: Callable[..., Any]) -> None:
    accelerator, writer = attempt(3.0, 13, 2.0)
    assert [step for step, _ in accelerator.told] == [1, 1] and not accelerator.trackers
    (warning,) = events(Run(writer.path.parent), "warning")
    assert "no space left" in warning["message"]


def test_what_lies_where_a_tracker_writes_is_named(
    attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        Path(__file__).mkdir()

    monkeypatch.setattr(_Accelerator, "init_trackers", refuse)
    with pytest.raises(ConfigError) as caught:
        attempt(1.0)
    assert caught.value.fix == f"see to {__file__}, where it writes, or leave track out"


def test_a_login_of_wandb_is_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert find_secret("WANDB_API_KEY") is None
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n login user\n password stored\n")
    (tmp_path / "netrc").chmod(0o600)
    assert find_secret("WANDB_API_KEY") == "stored"


def _work(run: Run, wants_stop: Callable[[], bool] = lambda: False) -> None:
    """Do a run as a worker does, which tells how it ended."""
    from accelerate.state import AcceleratorState

    from nbhelpers.jobs import worker

    AcceleratorState._reset_state(reset_partial_state=True)
    with EventWriter(run.path, 0) as writer:
        try:
            worker.work(run, writer, wants_stop)
        except BaseException as error:
            worker._fail(run, writer, error)


def _broken(run: Run, step: int) -> Callable[[], bool]:
    """Fail while an optimizer step is made."""
    is_due = stop_at(run, step)

    def fail() -> bool:
        assert not is_due(), "the cable is cut"
        return False

    return fail


def _told(name: str, run: Run) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Return the tracker's numbers with their steps, and how each attempt ended."""
    return (_read_tensorboard if name == "tensorboard" else _read_wandb)(run)


def _read_tensorboard(run: Run) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    numbers: dict[str, list[tuple[int, float]]] = {}
    ends = []
    assert len(list((run.path / "nbhelpers").glob("*/hparams.yml"))) == 1
    # Files of one second are named by a count without leading zeros: not the order they came in.
    for path in sorted(
        (run.path / "nbhelpers").glob("events.*"), key=lambda each: each.stat().st_mtime_ns
    ):
        events = EventAccumulator(str(path))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            numbers.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
        if "status/text_summary" in events.Tags()["tensors"]:
            ends += [
                e.tensor_proto.string_val[0].decode() for e in events.Tensors("status/text_summary")
            ]
    return numbers, ends


def _read_wandb(run: Run) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    import json

    from wandb.proto import wandb_internal_pb2 as wandb

    ends, ids = [], set()
    for path in sorted(run.path.glob("wandb/offline-run-*/*.wandb")):  # each has the whole run
        numbers: dict[str, list[tuple[int, float]]] = {}
        status, code = "", None
        for content in _records(path.read_bytes()):
            record = wandb.Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                assert record.run.display_name == run.id and record.run.project == "nbhelpers"
                config = {item.key: item.value_json for item in record.run.config.update}
            if record.HasField("config"):
                config |= {item.key: item.value_json for item in record.config.update}
            for item in record.history.item:
                key, value = item.key or item.nested_key[0], json.loads(item.value_json)
                numbers.setdefault(key, []).append((record.history.step.num, value))
            for item in record.summary.update:
                status = json.loads(item.value_json) if item.key == "status" else status
            code = record.exit.exit_code if record.HasField("exit") else code
        assert config["track"] == '"wandb"' and code == (status != "finished")
        ends.append(status)
    assert len(ids) == 1 and ids.pop().startswith(run.id)
    return numbers, ends


def _records(data: bytes) -> list[bytes]:
    """Return the records of a file of wandb's: blocks of 32 KiB as LevelDB's log has them."""
    records, parts, at = [], b"", 7
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if left < 7 or not kind:
            at += left
            continue
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            records.append(parts)
            parts = b""
    return records


@pytest.fixture(params=TRACKERS)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a tracker that is installed; nobody is logged in."""
    pytest.importorskip(request.param, reason=f"optional: pip install {request.param}")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/dev/null")
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("job", ["clones", "detector", "finetune", "trl"])
def test_a_run_also_one_that_is_stopped_and_fails_is_one_run_of_its_tracker(
    job: str, tracker: str, tmp_path: Path
) -> None:
    changes = {"track": tracker} | ({"engine": "trl"} if job == "trl" else {})
    job = "finetune" if job == "trl" else job
    run = prepare(job, tmp_path / "runs", **changes)
    if is_disturbed := job == "clones" or "engine" in changes:  # each of the two loops
        _work(run, stop_at(run, 2))
        _work(run, _broken(run, 4))
    _work(run)
    numbers, ends = _told(tracker, run)
    if is_disturbed:
        assert ends.pop(0) == "stopped" and "the cable is cut" in ends.pop(0)
    assert ends == ["finished"]
    assert [step for step, _ in numbers["train/loss"]] == list(range(1, STEPS[job] + 1))
    history = result(run)["training"]["history"]
    losses = [value for _, value in numbers["train/loss"]]
    assert losses == pytest.approx([line["loss"] for line in history], rel=1e-5)
    for name in (*NAMES[job], *MEMORY):
        if job == "finetune" and name == "memory/predicted_bytes":
            continue
        assert name in numbers, sorted(numbers)
        steps = [step for step, _ in numbers[name]]
        assert steps == sorted(set(steps)), name
    scores = result(run)["scores"]["test"]
    for name in (each for each in NAMES[job] if each.startswith("final/")):
        values = scores["orders"]["given"] if job == "clones" else scores["metrics"]
        (told,) = numbers[name]
        assert told == (STEPS[job] + 1, pytest.approx(values[name.split("/")[-1]], rel=1e-5))


@pytest.mark.slow
def test_of_two_processes_the_first_tells(tracker: str, tmp_path: Path) -> None:
    run = prepare("clones", tmp_path / "runs", track=tracker, num_gpus=2)
    assert run.read_json()["plan"]["world_size"] == 2
    work_in_ranks(run)
    numbers, ends = _told(tracker, run)
    assert [step for step, _ in numbers["train/loss"]] == list(range(1, 11))
    assert ends == ["finished"] and len(events(run, "start")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb"], indirect=True)
def test_a_key_that_no_tracker_takes_is_refused_at_once(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    from nbhelpers.jobs import worker

    wandb.teardown()  # it remembers that this process was offline
    monkeypatch.setenv("WANDB_API_KEY", "short")
    run = prepare("clones", tmp_path / "runs", track=tracker)
    with EventWriter(run.path, 0) as writer, pytest.raises(ConfigError, match="does not start"):
        worker.work(run, writer, lambda: False)
