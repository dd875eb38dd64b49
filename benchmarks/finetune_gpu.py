"""Fine-tuning of Gemma-2-2B's shape (random weights) or SmolLM2 on a GPU, as a notebook does it.

    python benchmarks/finetune_gpu.py study OUT --data rows.jsonl      the five runs
    python benchmarks/finetune_gpu.py capped OUT --data rows.jsonl     smaller cards
    python benchmarks/finetune_gpu.py speed OUT --data rows.jsonl      full rows and own
    python benchmarks/finetune_gpu.py smollm2 OUT --data rows.jsonl --mbpp mbpp.jsonl

Each result is copied to OUT as JSON, and one line per run is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import traceback
from pathlib import Path
from typing import Any

import nbhelpers as nb
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.runs.studies import run_study
from nbhelpers.runs.study_plan import plan_study

SHAPE = {"model": "gemma-2-2b", "random_weights": True, "template": "alpaca", "track": "none"}
FEW = {"eval_samples": 8, "max_new_tokens": 24, "valid_samples": 16, "epochs": 1}
# What a card lets the allocator have: its memory less the CUDA context (GiB).
CAPS = {"t4": 14.3, "l4": 21.6, "a100-40gb": 38.9, "rtx6000ada": 46.6, "h100": 78.4}
STEPS, BATCH = 30, 16


def long_rows(source: Path, target: Path, count: int, words: int) -> Path:
    """Write rows whose answers are longer than any `seq_len`, so that every sample is cut to it."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    pool = [row["output"] for row in rows]
    with target.open("w", encoding="utf-8") as file:
        for number in range(count):
            text, at = "", number
            while len(text.split()) < words:
                text += pool[at % len(pool)] + f"\n# {at}\n"
                at += 7
            row = rows[number % len(rows)] | {"output": text}
            row["instruction"] += f" Number {number}."
            file.write(json.dumps(row) + "\n")
    return target


def run_one(name: str, preset: Any, hardware: Any, out: Path, plan_for: Any = None) -> None:
    """Run one configuration and print its line, or its failure."""
    planned = plan_for or hardware
    plan = nb.plan_batch(preset, planned)
    budget = nb.predict_memory(preset, plan, planned)
    print(f"== {name}: {plan}; {budget}", flush=True)
    try:
        run = nb.launch(preset, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
        result = nb.follow(run)
    except nb.NbhelpersError as error:
        print(f"{name} FAILED {type(error).__name__}: {error}", flush=True)
        return
    keep(name, result, out)


def keep(name: str, result: Any, out: Path) -> None:
    """Copy result and generations, and print the figures that go into the log."""
    shutil.copy(result.path / "result.json", out / f"{name}.json")
    if (result.path / "generations.jsonl").is_file():
        shutil.copy(result.path / "generations.jsonl", out / f"{name}.generations.jsonl")
    print(json.dumps({"name": name} | figures(result.data)), flush=True)


def figures(data: dict[str, Any]) -> dict[str, Any]:
    """Return one line of a result."""
    memory, rank = data["memory"], (data["memory"].get("per_rank") or [{}])[0]
    gib = {
        "predicted_gib": memory.get("predicted_bytes"),
        "allocated_gib": memory.get("measured_bytes"),
        "reserved_gib": rank.get("peak_reserved_bytes"),
    }
    model, speed = data["model"], data.get("throughput") or {}
    return {
        **{key: value and round(value / 2**30, 2) for key, value in gib.items()},
        "useful_tokens_per_s": round(speed.get("useful_tokens_per_s") or 0),
        "mfu_4n": speed.get("mfu_4n"),
        "steps": data["training"]["optimizer_steps"],
        "loss": [data["training"]["first_loss"], data["training"]["last_loss"]],
        "attention": model.get("attention"),
        "compiled": model.get("compiled"),
        "parity": (model.get("parity") or {}).get("relative_error"),
        "timing": {k: round(v, 1) for k, v in data["timing"].items()},
        "energy": data.get("energy"),
        "scores": {k: v["metrics"] for k, v in data["scores"].items()},
    }


def study(options: argparse.Namespace, hardware: Any) -> None:
    """Run the five runs of the study one after the other."""
    over = SHAPE | FEW | {"data": str(options.data), "max_train_samples": STEPS * BATCH}
    preset = nb.load_preset("finetune", "h100", hardware=hardware, overrides=over)
    planned = plan_study(preset, hardware, adapters=options.adapters, run_dir=options.out / "runs")
    print(planned.text(), flush=True)
    done = run_study(planned, hardware=hardware, run_dir=options.out / "runs")
    for row in done.rows:
        if row.result is not None:
            keep(f"study-{row.name}", row.result, options.out)
        print(row.name, row.status, row.baseline, row.error, flush=True)
    shutil.copy(done.path / "study.json", options.out / "study.json")


def capped(options: argparse.Namespace, hardware: Any) -> None:
    """Run the presets of smaller cards under their memory, with samples of full length."""
    rows = long_rows(options.data, options.out / "long.jsonl", STEPS * BATCH + 40, 900)
    os.environ["NBHELPERS_WORKER_MODULE"] = "benchmarks.capped_worker"
    for name in options.cards:
        os.environ["NBHELPERS_CAP_GIB"] = str(CAPS[name])
        os.environ["NBHELPERS_CAP_OLD"] = str(int(name == "t4"))
        over = SHAPE | FEW | {"data": str(rows), "max_train_samples": STEPS * BATCH}
        if name == "t4":
            over |= {"precision": "fp16", "attention": "eager", "compile_layers": "off"}
        else:  # the worker would look at the real card and find room without compiling
            over |= {"compile_layers": "on"}
        for method in options.methods:
            card = plan_hardware(name)
            changes = over | {"method": method}
            preset = nb.load_preset("finetune", name, hardware=card, overrides=changes)
            run_one(f"capped-{name}-{method}", preset, hardware, options.out, plan_for=card)


def speed(options: argparse.Namespace, hardware: Any) -> None:
    """Measure useful tokens per second: 16 full rows of 1,024, then the preset's own batch."""
    rows = long_rows(options.data, options.out / "full.jsonl", 40 * BATCH + 40, 1600)
    common = SHAPE | FEW | {"compile_layers": "on"}
    full = common | {"data": str(rows), "seq_len": 1024, "max_train_samples": 40 * BATCH}
    own = common | {"data": str(options.data)}
    for name, over in (("speed-full-1024", full), ("speed-preset", own)):
        preset = nb.load_preset("finetune", "h100", hardware=hardware, overrides=over)
        run_one(name, preset, hardware, options.out)


def smollm2(options: argparse.Namespace, hardware: Any) -> None:
    """Tune SmolLM2-135M on real instructions; score it on held-out MBPP. Seed 0 is the base."""
    over = {"model": "smollm2", "data": str(options.data), "mbpp_data": str(options.mbpp)}
    over |= {"evaluate": "all", "run_generated_code": "anywhere", "tasks": ["mbpp"], "epochs": 2}
    over |= {"generation_batch_size": 256, "eval_samples": 150, "max_new_tokens": 256}
    for seed in options.seeds:
        changes = over | ({"seed": seed} if seed else {"method": "base"})
        preset = nb.load_preset("finetune", "h100", hardware=hardware, overrides=changes)
        run_one(f"smollm2-{seed or 'base'}", preset, hardware, options.out)


JOBS = {"study": study, "capped": capped, "speed": speed, "smollm2": smollm2}


def main() -> None:
    """Run the jobs that were named, one after the other; one that fails does not stop the rest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--mbpp", type=Path)
    parser.add_argument("--cards", nargs="+", default=[c for c in CAPS if c != "h100"])
    parser.add_argument("--methods", nargs="+", default=["lora"])
    parser.add_argument("--adapters", default="all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        JOBS[options.job](options, nb.detect_hardware())
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    main()
