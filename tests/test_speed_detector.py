"""Promise: the contenders of the detector benchmark compute the same loss and gradients."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.speed_detector import main
from nbhelpers.data.detection import read_rows

AGREES = 1e-4


def test_every_loop_begins_with_the_same_loss_and_gradients(tmp_path: Path) -> None:
    programs = tmp_path / "programs.jsonl"
    rows = [{"code": row.code, "language": row.language} for row in read_rows("smoke")]
    programs.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    main([str(tmp_path / "out"), "--programs", str(programs), "--cpu", "--seconds", "0.1"])
    page = json.loads((tmp_path / "out" / "detector.json").read_text(encoding="utf-8"))
    own, *others = page["speeds"]
    assert own["contender"] == "nbhelpers" and own["rates"] and len(others) == 2
    for line in others:
        assert line["loss_error"] < AGREES and line["gradient_error"] < AGREES, line["contender"]
        assert line["rates"]
