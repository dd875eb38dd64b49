"""Do N GPUs give what one gives, and how much faster? The same experiment on 1 and on N GPUs.

    python benchmarks/gpus_agree.py DATA OUT --shape graphcodebert --gpus 1 2 [--steps 100]

Each configuration runs with `per_device_train_batch_size` 16 and a global batch of 64, as a
notebook starts it. Speed: optimizer steps after the first tenth, with dropout, in the preset's
precision. Agreement: without dropout, in fp32; weights are compared tensor by tensor (norm of the
difference over the norm of what training changed), predictions pair by pair.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from clones_gpu import SHAPES, shape_folder
from safetensors.numpy import load_file

import nbhelpers as nb
from nbhelpers.metrics.predictions import read_predictions

PAIRS_PER_STEP = 64


def train(settings: dict[str, Any], preset: str, gpus: int, out: Path) -> Any:
    """Run one configuration to its end and return the finished run."""
    hardware = nb.detect_hardware()
    chosen = nb.load_preset(
        "clones", preset, hardware=hardware, overrides=settings | {"num_gpus": gpus}
    )
    plan = nb.plan_batch(chosen, hardware)
    budget = nb.predict_memory(chosen, plan, hardware)
    run = nb.launch(chosen, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
    nb.follow(run)
    return run


def rate(run: Any) -> dict[str, float]:
    """Return pairs and useful tokens per second after the first tenth of the steps."""
    lines = (run.path / "events-rank0.jsonl").read_text().splitlines()
    steps = [e for e in map(json.loads, lines) if e["type"] == "step"]
    first = next(s for s in steps if s["step"] >= steps[-1]["total_steps"] / 10)
    last = steps[-1]
    seconds = last["elapsed_s"] - first["elapsed_s"]
    return {
        "pairs_per_s": (last["examples"] - first["examples"]) / seconds,
        "useful_tokens_per_s": (last["useful_tokens"] - first["useful_tokens"]) / seconds,
        "steps": last["step"] - first["step"],
    }


def weights(run: Any) -> dict[str, np.ndarray]:
    """Return the tensors of the last checkpoint."""
    last = json.loads((run.checkpoints_path / "index.json").read_text())["last"]
    return load_file(run.checkpoints_path / last / "model.safetensors")


def compare(one: Any, many: Any, start: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return how far weights, predictions and scores of two runs are apart."""
    a, b = weights(one), weights(many)
    apart = {
        name: float(
            np.linalg.norm(a[name] - b[name]) / max(np.linalg.norm(a[name] - start[name]), 1e-12)
        )
        for name in a
    }
    worst = max(apart, key=apart.get)
    p, q = (read_predictions(run.predictions_path) for run in (one, many))
    same_pairs = all(p[k] == q[k] for k in ("split", "row", "id1", "id2", "label"))
    scores = [run.result().scores["test"]["orders"]["given"] for run in (one, many)]
    return {
        "weights_worst": (worst, apart[worst]),
        "weights_median": float(np.median(list(apart.values()))),
        "predictions": len(p["p"]),
        "pairs_equal_and_in_order": same_pairs and len(p["p"]) == len(q["p"]),
        "p_max_difference": float(np.abs(np.array(p["p"]) - np.array(q["p"])).max()),
        "f1": [s["f1"] for s in scores],
        "roc_auc": [s["roc_auc"] for s in scores],
    }


def main() -> None:
    """Parse the command line, run everything, print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="graphcodebert")
    parser.add_argument("--preset", default="h100")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--agree-steps", type=int, default=20)
    parser.add_argument("--speed-only", action="store_true")
    given = parser.parse_args()
    graph = given.shape == "graphcodebert"
    common = {"model": str(shape_folder(given.shape, given.out)), "random_weights": True}
    common |= {"data": str(given.data), "train_fraction": 1.0, "epochs": 1, "floors": False}
    common |= {"seq_len": 400, "data_flow_length": 128 if graph else None}
    common |= {"per_device_train_batch_size": 16, "bootstrap_samples": 100, "max_eval_pairs": 256}
    common |= {"global_batch_size": PAIRS_PER_STEP, "logging_steps": 5}
    fast = common | {"max_train_samples": given.steps * PAIRS_PER_STEP, "learning_rate": 1e-4}
    rates = {n: rate(train(fast, given.preset, n, given.out / "speed")) for n in given.gpus}
    first = rates[given.gpus[0]]["useful_tokens_per_s"]
    for n, found in rates.items():
        print(
            json.dumps(
                {"shape": given.shape, "gpus": n, "times": found["useful_tokens_per_s"] / first}
                | found
            ),
            flush=True,
        )
    if given.speed_only:
        return
    exact = common | {"dropout": 0.0, "precision": "fp32", "learning_rate": 1e-4}
    exact |= {"max_train_samples": given.agree_steps * PAIRS_PER_STEP}
    still = exact | {"learning_rate": 1e-30}  # ends with the weights that training starts from
    start = weights(train(still, given.preset, given.gpus[0], given.out / "start"))
    runs = {n: train(exact, given.preset, n, given.out / "agree") for n in given.gpus}
    one = runs[given.gpus[0]]
    for n in given.gpus[1:]:
        print(
            json.dumps({"shape": given.shape, "gpus": n} | compare(one, runs[n], start)), flush=True
        )


if __name__ == "__main__":
    main()
