"""Predict measured configurations under the oldest and the newest libraries of the ranges.

Two environments are made, which share torch and all else with this one: in one transformers, peft
and trl are as old as requirements.txt allows, in the other as new. Each predicts the same
configurations of the memory grid, and runs the test that training keeps its checkpoints. The exit
code is 1 where a prediction is too far from what was measured (docs/log/memory.md), or where the
two differ as much.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("transformers", "peft", "trl")
GRID = (
    *("gemma-lora16-eager-4x512-ckpt", "gemma-qlora16-eager-2x512-adam8", "llama-loha-4x512"),
    *("llama-vera-4x512", "qwen2-lora16-4x512", "qwen2-dora8-autocast-3x500"),
    *("codebert-bf16-ckpt-64x512", "codet5-fp32-8x256", "modernbert-mlm-8x512"),
    *("codegpt-bf16-8x1024", "graph-fp16-16x512"),
)
JOBS = (
    *("job-finetune-h100", "job-finetune-qlora", "job-finetune-compiled"),
    *("job-finetune-checkpointed", "job-finetune-trl"),
    *("job-detector-t4", "job-clones-seed-legacy"),
)
TESTS = ("tests/test_causal_packing.py", "-k", "checkpointing")
MOST_PERCENT = 3.0  # of one version's measurement, which another's code may leave


def wanted(age: str) -> list[str]:
    """Return what pip is to install: each range of requirements.txt, or its lower end."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    ranges = {m[1]: m[2] for m in re.finditer(r"^([a-z]+)(>=[^ #\n]+)", text, re.MULTILINE)}
    if age == "newest":
        return [name + ranges[name] for name in LIBRARIES]
    return [f"{name}=={ranges[name].partition(',')[0].removeprefix('>=')}" for name in LIBRARIES]


def shared_environment(folder: Path) -> Path:
    """Make an environment that sees this one's packages behind its own; return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shared = sysconfig.get_paths()["purelib"]
    (folder / "lib" / version / "site-packages" / "shared.pth").write_text(f"{shared}\n")
    return folder / "bin" / "python"


def environment(folder: Path, age: str) -> Path:
    """Make an environment with its own three libraries; return its Python."""
    python = shared_environment(folder)
    upgrade = ["--upgrade"] if age == "newest" else []
    subprocess.run([python, "-m", "pip", "install", "-q", *upgrade, *wanted(age)], check=True)
    return python


def predicted(python: Path, out: Path) -> tuple[dict[str, int], dict[str, str], bool]:
    """Return bytes by configuration, the libraries' versions, and whether the test passed."""
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}

    def module(*words: str) -> int:
        command = [python, "-m", *words]
        return subprocess.run(command, cwd=ROOT, env=surroundings, check=False).returncode

    for name, names in (("memory_grid", GRID), ("memory_cases_jobs", JOBS)):
        module(f"benchmarks.{name}", "predict", str(out), *names)
    data = json.loads(out.read_text(encoding="utf-8"))
    sizes = {row["name"]: row.get("allocated_bytes", 0) for row in data["predictions"]}
    return sizes, data["versions"], module("pytest", "-q", "-p", "no:cacheprovider", *TESTS) == 0


def measured() -> dict[str, float]:
    """Return the measured bytes of the grid's table."""
    text = (ROOT / "docs/log/memory.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| ([a-z][\w+-]+) \| [\d.]+ \| ([\d.]+) \| [+-]", re.MULTILINE)
    return {match[1]: float(match[2]) * 2**30 for match in row.finditer(text)}


def problems(sizes: dict[str, dict[str, int]], truth: dict[str, float]) -> list[str]:
    """Print a line for each configuration; return what is too far off.

    Args:
        sizes: Bytes by configuration, of `oldest` and `newest`.
    """
    found = []
    print(f"{'configuration':34s} {'measured':>9s} {'oldest':>17s} {'newest':>17s}")
    for name in (*GRID, *JOBS):
        old, new = (sizes[age].get(name, 0) for age in ("oldest", "newest"))
        reference = truth.get(name) or old or 1.0  # else against each other
        errors = [100 * (size / reference - 1) for size in (old, new)]
        cells = [f"{s / 2**30:7.3f} {e:+7.2f} %" for s, e in zip((old, new), errors, strict=True)]
        shown = f"{truth[name] / 2**30:9.3f}" if name in truth else f"{'-':>9s}"
        print(f"{name:34s} {shown} {cells[0]:>17s} {cells[1]:>17s}")
        if max(map(abs, errors)) > MOST_PERCENT:
            found.append(f"{name}: more than {MOST_PERCENT:g} % off")
    return found


def main() -> int:
    """Predict under both; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the environments are made and stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nbhelpers-versions-") as temporary:
        folder = options.folder or Path(temporary)
        sizes, found = {}, []
        for age in ("oldest", "newest"):
            out = (folder / f"{age}.json").resolve()
            python = environment(folder.resolve() / age, age)
            sizes[age], versions, has_passed = predicted(python, out)
            print(f"{age}: {', '.join(f'{name} {versions.get(name)}' for name in LIBRARIES)}")
            found += [] if has_passed else [f"{age}: {TESTS[0]} fails"]
        found += problems(sizes, measured())
    for text in found:
        print(text)
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main())
