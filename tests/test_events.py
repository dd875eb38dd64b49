"""Promise: events survive crashes; a torn, corrupt or missing line costs only itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbhelpers.runs.events import EventWriter, last_events, merge, read_events, tail


def test_an_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "e.jsonl", rank=1) as writer:
        written = writer.write("step", step=3, loss=0.5, place=tmp_path)
    assert read_events(tmp_path / "e.jsonl") == [written]
    assert written["rank"] == 1 and written["type"] == "step" and written["t"] > 1e9
    assert written["place"] == str(tmp_path)


def test_the_rank_names_the_file_in_a_run_folder(tmp_path: Path) -> None:
    EventWriter(tmp_path, rank=2).write("end")
    EventWriter(tmp_path).write("exit")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events-launcher.jsonl", "events-rank2.jsonl"]


def test_an_event_is_visible_at_once(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", rank=0)
    writer.write("start")
    assert len(read_events(tmp_path / "e.jsonl")) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_without_a_json_word_become_null(tmp_path: Path, value: float) -> None:
    with EventWriter(tmp_path / "e.jsonl", rank=0) as writer:
        writer.write("step", loss=value, nested={"grads": [value, 1.0]})
    line = (tmp_path / "e.jsonl").read_text()
    found = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["loss"] is None and found["nested"]["grads"] == [None, 1.0]


def test_numpy_values_become_numbers(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with EventWriter(tmp_path / "e.jsonl", rank=0) as writer:
        found = writer.write("step", loss=np.float32(0.5), sizes=np.arange(2), n=np.int64(7))
    assert (found["loss"], found["sizes"], found["n"]) == (0.5, [0, 1], 7)


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"t": 1, "type": "st',
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'{"type": "no time"}',
        b'{"t": 1}',
        b'{"t": "1", "type": "x"}',
        b"",
        b"[" * 100_000,
    ],
)
def test_a_corrupt_line_costs_itself_only(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"t": 1, "type": "a"}\n' + garbage + b'\n{"t": 2, "type": "b"}\n')
    assert [event["type"] for event in read_events(path)] == ["a", "b"]
    assert [event["type"] for event in tail(path)[0]] == ["a", "b"]


def test_a_torn_last_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"t": 1, "type": "a"}\n{"t": 2, "ty')
    events, offset = tail(path)
    assert [event["type"] for event in events] == ["a"]
    assert tail(path, offset) == ([], offset)
    with path.open("ab") as file:
        file.write(b'pe": "b"}\n')
    events, offset = tail(path, offset)
    assert [event["type"] for event in events] == ["b"] and offset == path.stat().st_size


def test_a_writer_after_a_crash_does_not_join_the_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"t": 1, "type": "a"}\n{"t": 2, "ty')
    EventWriter(path, rank=0).write("b")
    assert [event["type"] for event in read_events(path)] == ["a", "b"]


def test_a_missing_file_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none") == [] == last_events(tmp_path / "none")
    assert tail(tmp_path / "none", 5) == ([], 5)


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"t": 1, "type": "a"}\n')
    assert [event["type"] for event in tail(path, 10_000)[0]] == ["a"]


def test_the_last_events_begin_at_the_given_offset(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "e.jsonl", rank=0) as writer:
        writer.write("error")
        start = writer.path.stat().st_size
        writer.write("step")
    assert [e["type"] for e in last_events(writer.path, offset=start)] == ["step"]
    assert [e["type"] for e in last_events(writer.path, max_bytes=20)] == []


def test_ranks_and_launcher_are_merged_by_time(tmp_path: Path) -> None:
    for name, t in (("rank0", 3), ("rank1", 1), ("launcher", 2)):
        line = json.dumps({"t": t, "type": name})
        (tmp_path / f"events-{name}.jsonl").write_text(line + "\n")
    assert [event["type"] for event in merge(tmp_path)] == ["rank1", "launcher", "rank0"]


def test_two_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    code = (
        "import sys; from nbhelpers.runs.events import EventWriter\n"
        "w = EventWriter(sys.argv[1], 0)\n"
        "for i in range(300): w.write('step', who=sys.argv[2], text='x' * 500)"
    )
    path = tmp_path / "e.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", code, str(path), who]) for who in "ab"]
    assert [process.wait(300) for process in both] == [0, 0]
    assert len(read_events(path)) == len(path.read_bytes().splitlines()) == 600


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", rank=0)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="is closed"):
        writer.write("step")
