"""Promise: the process gives the very numbers of the model, and the notebook's has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from detector_folder import STEP, make_run

pytestmark = pytest.mark.slow

PROGRAMS = ["def f(a):\n    return a + 1\n", "", "class A { int x; }\n" * 40, "</s> x\n"]
ASK = """
import json, sys
from nbhelpers.use.detector import load_detector
codes, run, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
with load_detector(run, device="cpu", batch_size=2) as detector:
    scored = detector._asked(codes)
    vectors = detector._vectors(codes).tolist()
    batch = detector.detect(folder, evidence=folder + "/sheets", progress=False)
    sheet = detector.score_code(codes[0] * 3, language="python")
assert "torch" not in sys.modules and "transformers" not in sys.modules
edits = {each.edit: each.p_ai for each in sheet.edits}
told = {"logits": [each.logit for each in scored], "tokens": [each.tokens for each in scored]}
told |= {"vectors": vectors, "rows": [row.to_dict() for row in batch.rows], "edits": edits}
print(json.dumps(told))
"""


def test_scores_lengths_vectors_and_sheets_of_a_tiny_model(tmp_path: Path) -> None:
    from nbhelpers.data.edits import EDITS
    from nbhelpers.jobs.load import load_detector

    run = make_run(tmp_path / "detector-tiny")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "f.py").write_text(PROGRAMS[0])
    (folder / "A.java").write_text(PROGRAMS[2])
    command = [sys.executable, "-c", ASK, json.dumps(PROGRAMS), str(run), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)

    loaded = load_detector(run / "checkpoints" / STEP, device="cpu")
    logits, vectors = loaded.score(PROGRAMS, batch_size=4)
    np.testing.assert_allclose(told["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(told["vectors"], vectors, atol=1e-5)
    read = loaded.table(PROGRAMS).lengths
    assert [min(n, loaded.facts.seq_len) for n in told["tokens"]] == read.tolist()
    assert told["tokens"][2] > loaded.facts.seq_len == read[2]

    rows = {row["file"]: row for row in told["rows"]}
    assert rows["f.py"]["logit"] == pytest.approx(logits[0], abs=1e-5)
    assert rows["f.py"]["truncated_share"] == 0 < rows["A.java"]["truncated_share"]
    assert set(told["edits"]) == set(EDITS) and told["edits"]["rename"] is not None
    sheets = sorted(path.name for path in (folder / "sheets").iterdir())
    named = [f"{row['rank']:05d}-{row['file']}" for row in told["rows"] for _ in ("html", "json")]
    assert [name[: len(start)] for name, start in zip(sheets, named, strict=True)] == named
