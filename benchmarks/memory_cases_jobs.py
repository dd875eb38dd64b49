"""Our own jobs in the memory grid: predicted from their presets, measured by the worker.

    python benchmarks/memory_cases_jobs.py measure OUT [NAME ...] [--at-once 3]
    python benchmarks/memory_cases_jobs.py predict PRED.json [NAME ...] [--gpu h200]

Models have the published shapes with random weights; the data is made up so that every sample is
as long as `seq_len`, and a run lasts three optimizer steps. Results are appended to
OUT/measured.jsonl in the form of `memory_measure`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import nbhelpers as nb
from benchmarks.clones_gpu import shape_folder
from nbhelpers.hardware.detection import plan_hardware

STEPS = 3
_BASE = {"track": "none", "bootstrap_samples": 100, "epochs": 1}
_TUNE = _BASE | {"model": "gemma-2-2b", "random_weights": True, "template": "alpaca"}
_TUNE |= {"eval_samples": 8, "max_new_tokens": 8, "valid_samples": 16, "max_train_samples": 48}
_TUNE |= {"compile_layers": "off"}
_COMPILED = {"compile_layers": "on", "evaluate": "none"}  # training is their peak
_AGAIN = {"gradient_checkpointing": True}
_PAIRS = _BASE | {"random_weights": True, "train_fraction": 1.0, "floors": False}
_PAIRS |= {"max_train_samples": STEPS * 64, "max_eval_pairs": 64}
_DETECT = _BASE | {"random_weights": True, "floors": False, "edit_suite": False}
_DETECT |= {"on_failed_audit": "go_on", "freeze_epochs": 0, "compile_layers": "off"}

_OLD = {"attention": "eager", "precision": "fp16"}  # what a T4 takes by itself
_HALF = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 64}

# name: (job, preset, overrides, shape)
JOBS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "job-finetune-h100": ("finetune", "h100", _TUNE, None),
    "job-finetune-a100-40gb": ("finetune", "a100-40gb", _TUNE, None),
    "job-finetune-compiled": ("finetune", "h100", _TUNE | _COMPILED, None),
    "job-finetune-checkpointed": ("finetune", "h100", _TUNE | _COMPILED | _AGAIN, None),
    "job-finetune-trl": ("finetune", "a100-40gb", _TUNE | {"engine": "trl"}, None),
    "job-finetune-t4": ("finetune", "t4", _TUNE | _OLD, None),
    "job-finetune-qlora": ("finetune", "a100-40gb", _TUNE | {"method": "qlora"}, None),
    "job-finetune-seed-t4": ("finetune", "seed-t4", _TUNE | {"save_steps": 50}, None),
    "job-clones-codegpt-h100": ("clones", "h100", _PAIRS | _HALF, "codegpt"),
    "job-clones-codegpt-t4": ("clones", "t4", _PAIRS | {"precision": "fp16"}, "codegpt"),
    "job-clones-seed-legacy": ("clones", "seed-legacy", _PAIRS, "codegpt"),
    "job-clones-codebert": ("clones", "a100-40gb", _PAIRS | {"seq_len": 400}, "codebert"),
    "job-detector-a100": ("detector", "a100-40gb", _DETECT, "codebert"),
    "job-detector-t4": ("detector", "t4", _DETECT | {"precision": "fp16"}, "codebert"),
}


def _statement(draw: random.Random) -> str:
    """A Java statement with names of random letters, so that a new tokenizer finds its words."""
    names = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(3)]
    return f"int {names[0]} = {names[1]} + {draw.randrange(9999)} * {names[2]};"


def write_functions(folder: Path, count: int = 260, statements: int = 180) -> Path:
    """Write long functions and pairs in the layout of CodeXGLUE."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            body = "\n  ".join(_statement(draw) for _ in range(statements))
            text = f"int f{number}() {{\n  {body}\n  return {number};\n}}"
            file.write(json.dumps({"func": text, "idx": str(number)}) + "\n")
    for name, pairs in (("train", 4 * 64), ("valid", 64), ("test", 64)):
        first = {"train": 0, "valid": 220, "test": 240}[name]
        last = {"train": 220, "valid": 240, "test": 260}[name]
        lines = {
            f"{a}\t{b}\t{(a + b) % 2}\n"
            for a, b in (draw.sample(range(first, last), 2) for _ in range(2 * pairs))
        }
        (folder / f"{name}.txt").write_text("".join(sorted(lines)[:pairs]), encoding="utf-8")
    return folder


def write_programs(path: Path, tasks: int = 110, per_task: int = 10) -> Path:
    """Write long programs of people and machines for the detector, several for each task."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(tasks * per_task):
            label = "ai" if number % 2 else "human"
            body = "\n    ".join(_statement(draw)[4:-1] for _ in range(90))
            row = {"code": f"def f{number}():\n    {body}\n    return {number}\n"}
            row |= {"language": "python", "label": label, "generator": label}
            row |= {"task": f"task {number // per_task}", "source": "made up"}
            file.write(json.dumps(row) + "\n")
    return path


def write_answers(path: Path, count: int = 90, words: int = 700) -> Path:
    """Write instructions whose answers are longer than any `seq_len`."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = "\n".join(_statement(draw) for _ in range(words // 6))
            row = {"instruction": f"Write program {number}.", "input": "", "output": text}
            file.write(json.dumps(row) + "\n")
    return path


def data_of(job: str, out: Path) -> Path:
    """Write the data of a job and return where it lies."""
    out.mkdir(parents=True, exist_ok=True)
    if job == "clones":
        return write_functions(out / "functions")
    if job == "detector":
        return write_programs(out / "programs.jsonl")
    return write_answers(out / "answers.jsonl")


def planned(name: str, out: Path, data: dict[str, Path], hardware: Any) -> tuple[Any, Any]:
    """Return the preset and the batch plan of a job."""
    job, preset, overrides, shape = JOBS[name]
    overrides = overrides | {"data": str(data[job])}
    if shape is not None:
        overrides |= {"model": str(shape_folder(shape, out))}
    chosen = nb.load_preset(job, preset, hardware=hardware, overrides=overrides)
    return chosen, nb.plan_batch(chosen, hardware)


def measure_one(name: str, out: Path, data: dict[str, Path], hardware: Any) -> dict[str, Any]:
    """Run a job as a notebook does; returns its line."""
    started = time.monotonic()
    found: dict[str, Any] = {"name": name}
    try:
        preset, plan = planned(name, out, data, hardware)
        budget = nb.predict_memory(preset, plan, hardware)
        run = nb.launch(preset, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
        memory = nb.follow(run).data["memory"]
        rank = memory["per_rank"][0]
        found |= {
            "ok": True,
            "allocated_bytes": rank["peak_allocated_bytes"],
            "reserved_bytes": rank["peak_reserved_bytes"],
            "ledger_bytes": budget.allocated_bytes,
            "memory": memory,
            "steps": [{"phases": {"run": rank["peak_allocated_bytes"]}}],
        }
    except Exception as error:
        found |= {"ok": False, "error": type(error).__name__, "text": str(error)[:600]}
        found["traceback"] = traceback.format_exc()[-1500:]
    return found | {"wall_s": time.monotonic() - started}


def measure(options: argparse.Namespace) -> None:
    """Run jobs, some at a time."""
    hardware = nb.detect_hardware()
    names = options.names or list(JOBS)
    data = {job: data_of(job, options.out) for job in {JOBS[name][0] for name in names}}
    lock = Lock()

    def one(name: str) -> None:
        found = measure_one(name, options.out, data, hardware)
        with lock, (options.out / "measured.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        told = found.get("allocated_bytes") or f"{found.get('error')}: {found.get('text')}"
        print(name, told, f"{found['wall_s']:.1f} s", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, names))


def predict(options: argparse.Namespace) -> None:
    """Simulate jobs and add them to a file of predictions."""
    from benchmarks.memory_grid import keep
    from nbhelpers.jobs.simulated.jobs import simulate_settings

    hardware = plan_hardware(options.gpu)
    place = options.out.parent / "jobs"
    names = options.names or list(JOBS)
    data = {job: data_of(job, place) for job in {JOBS[name][0] for name in names}}
    for name in names:
        started = time.monotonic()
        row: dict[str, Any] = {"name": name}
        try:
            preset, plan = planned(name, place, data, hardware)
            budget = simulate_settings(preset, plan, hardware)
            row |= {
                "allocated_bytes": budget.allocated_bytes,
                "reserved_bytes": budget.reserved_bytes,
                "opaque": list(budget.opaque),
                "notes": list(budget.notes),
                "lines": {line.name: line.size_bytes for line in budget.lines},
                "phases": {line.name: line.size_bytes for line in budget.phases},
            }
        except Exception as error:
            row |= {"error": type(error).__name__, "text": str(error)[:600]}
            row["traceback"] = traceback.format_exc()[-2000:]
        keep(options, row | {"seconds": round(time.monotonic() - started, 2)})


def main() -> None:
    """Read the arguments and do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "predict"])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--at-once", type=int, default=3)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    {"measure": measure, "predict": predict}[options.what](options)


if __name__ == "__main__":
    main()
