"""Promise: the contenders of the clone benchmark compute the same loss and the same gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed_clones import CASES, main
from nbhelpers.data import load_clone_data

AGREES = 1e-4


def write_folder(folder: Path, *, pairs: int) -> Path:
    """Write a part of the bundled sample in CodeXGLUE's form."""
    data, used = load_clone_data("smoke"), set()
    for name in ("train", "valid", "test"):
        split = data.splits[name]
        rows = list(zip(split.left[:pairs], split.right[:pairs], split.label, strict=False))
        used |= {function for left, right, _ in rows for function in (left, right)}
        lines = [f"{data.ids[a]}\t{data.ids[b]}\t{label}\n" for a, b, label in rows]
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    lines = [json.dumps({"idx": data.ids[at], "func": data.functions[at]}) for at in sorted(used)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("case", ["codegpt-400", "graphcodebert"])
def test_every_loop_begins_with_the_same_loss_and_gradients(tmp_path: Path, case: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_folder(data, pairs=32)
    path = main([str(tmp_path / "out"), "--data", str(data), "--cpu", "--cases", case])
    own, *others = json.loads(path.read_text(encoding="utf-8"))["speeds"]
    assert own["contender"] == "nbhelpers" and own["rates"]
    assert len(others) == (2 if CASES[case].nodes is None else 3)
    for line in others:
        assert line["loss_error"] < AGREES and line["gradient_error"] < AGREES, line["contender"]
        assert line["rates"]
