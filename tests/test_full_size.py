"""Promise: the full test list, every pair of 912 functions, is read, written, scored and reported
in seconds and in little memory. Encoding apart, which is the GPU's part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_on_disk import write_run

pytestmark = pytest.mark.slow

N_PAIRS = 415_416
MAKE = """
import json, sys
from pathlib import Path
import numpy as np

folder = Path(sys.argv[1])
left, right = np.triu_indices(912, 1)
rng = np.random.default_rng(4)
label = rng.random(len(left)) < 0.14
rows = rng.permutation(len(left))
functions = [json.dumps({"idx": str(7 * i), "func": f"int f{i}() {{}}"}) for i in range(912)]
(folder / "data.jsonl").write_text("\\n".join(functions))
lines = zip(left[rows].tolist(), right[rows].tolist(), label.tolist(), strict=True)
(folder / "test.txt").write_text("".join(f"{7 * a}\\t{7 * b}\\t{c:d}\\n" for a, b, c in lines))
"""
SCRIPT = """
import json, sys, time
from pathlib import Path
import numpy as np

def step(name, began=[time.process_time()]):
    now = time.process_time()
    spent[name], began[0] = now - began[0], now

spent, folder, run = {}, Path(sys.argv[1]), Path(sys.argv[2])
rng = np.random.default_rng(5)

from nbhelpers.data import load_clone_data
data = load_clone_data(str(folder), require=("test",))
pairs = data.splits["test"]
step("read")

from nbhelpers.metrics.pairs import best_threshold, score_pairs
from nbhelpers.metrics.ranking import is_positive
logit = rng.normal(size=len(pairs)) + 4.0 * pairs.label - 2.0
p, q = (1 / (1 + np.exp(-logit - rng.normal(size=len(pairs)) / 9)) for _ in range(2))
p, q = p.astype(np.float32), q.astype(np.float32)
threshold = best_threshold(pairs.label, p)
scores = score_pairs(pairs.left, pairs.right, pairs.label, p, q, threshold, seen=None,
                     priors={"natural": 0.137}, bootstrap_samples=200, seed=3)
step("score")

from nbhelpers.metrics.predictions import PredictionWriter
ids = data.ids
with PredictionWriter(run / "predictions.jsonl") as writer:
    for start in range(0, len(p), 8192):
        part = slice(start, start + 8192)
        writer.write_chunk(
            split="test", start=start, label=pairs.label[part], p=p[part], p_reversed=q[part],
            id1=[ids[i] for i in pairs.left[part].tolist()],
            id2=[ids[i] for i in pairs.right[part].tolist()],
            prediction=is_positive(p[part], threshold))
step("write")
result = json.loads((run / "result.json").read_text())
(run / "result.json").write_text(json.dumps(result | {"scores": {"test": scores}}))
status = Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
peak = int(status.split("VmHWM:")[1].split()[0])
print(json.dumps({"spent": spent, "peak_mib": peak / 1024, "f1": scores["orders"]["given"]["f1"]}))
"""


def python(*words: object, cwd: Path) -> str:
    root = Path(__file__).resolve().parent.parent
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


MEASURED = """
import runpy, sys, time
sys.argv = sys.argv[1:]
try:
    runpy.run_module("nbhelpers", run_name="__main__", alter_sys=True)
finally:
    peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
    print(f"\\nused {time.process_time():.2f} s, {peak:.0f} MiB")
"""


def measured(*words: object, cwd: Path) -> tuple[str, float, float]:
    """Run a command of the shell; return what it said, CPU seconds and peak MiB."""
    said, _, used = python("-c", MEASURED, "nbhelpers", *words, cwd=cwd).rpartition("\nused ")
    seconds, mib = used.replace(" s,", "").replace(" MiB", "").split()
    return said, float(seconds), float(mib)


def test_the_full_test_list_takes_seconds_and_little_memory(tmp_path: Path) -> None:
    folder, run = tmp_path / "data", tmp_path / "runs" / "clones-codegpt-0123456789"
    folder.mkdir()
    write_run(run)
    python("-c", MAKE, folder, cwd=tmp_path)  # in a process of its own: its memory does not count
    told = json.loads(python("-c", SCRIPT, folder, run, cwd=tmp_path))
    spent = told["spent"]
    assert spent["read"] < 3 and spent["write"] < 5 and spent["score"] < 8, spent
    assert told["peak_mib"] < 400, told
    text, seconds, mib = measured("report", run, cwd=tmp_path)
    assert "415,416 pairs of 912 functions" in text and f"{told['f1']:.3f}" in text
    assert seconds < 20 and mib < 1500
    text, seconds, mib = measured(
        "score-predictions", folder / "test.txt", run / "predictions.txt", cwd=tmp_path
    )
    assert f"n_pairs: {N_PAIRS}" in text and f"f1: {told['f1']:.6g}" in text
    assert seconds < 10 and mib < 1000


CHILD = """
from nbhelpers.jobs.measure import peak_rss_bytes
print(peak_rss_bytes())
"""
PARENT = """
import subprocess, sys
held = b"x" * (900 << 20)
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True).stdout)
"""


def test_a_workers_memory_is_not_its_parents(tmp_path: Path) -> None:
    assert 0 < int(python("-c", PARENT, CHILD, cwd=tmp_path)) < 800 << 20
