"""Detectors and similarity spaces on local data, each run as a notebook does it.

    python benchmarks/detector_gpu.py runs OUT PLAN.json    the runs of a plan, some at a time
    python benchmarks/detector_gpu.py seed OUT --programs FILE.jsonl    the seed's job shape

A plan is a list of {"name", "preset", "overrides"}; `model: codebert-shape` stands for CodeBERT's
sizes with random weights and a tokenizer trained on the data. Each result is copied to OUT as JSON,
and one line per run is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbhelpers as nb

SEED_PROGRAMS = 47_523  # rows of the seed's data set
LANGUAGES = ("python", "java", "javascript", "c", "cpp", "go", "rust", "csharp")


def run_one(item: dict[str, Any], out: Path) -> None:
    """Run one configuration and print its line, or its failure."""
    name, over = item["name"], dict(item["overrides"])
    if over.get("model") == "codebert-shape":
        from clones_gpu import shape_folder  # it stands beside this script

        over |= {"model": str(shape_folder("codebert", out)), "random_weights": True}
    hardware = nb.detect_hardware()
    try:
        chosen = nb.load_preset("detector", item["preset"], hardware=hardware, overrides=over)
        plan = nb.plan_batch(chosen, hardware)
        budget = nb.predict_memory(chosen, plan, hardware)
        run = nb.launch(chosen, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
        result = nb.follow(run)
    except nb.NbhelpersError as error:
        print(f"{name} FAILED {type(error).__name__}: {error}", flush=True)
        return
    shutil.copy(run.result_path, out / f"{name}.json")
    print(json.dumps({"name": name} | figures(result.data)), flush=True)


def figures(data: dict[str, Any]) -> dict[str, Any]:
    """Return one line of a result."""
    found: dict[str, Any] = {}
    for split, scores in (data.get("scores") or {}).items():
        found[split] = _short(scores)
    memory = data["memory"]
    return found | {
        "similarity": _retrieval(data.get("similarity")),
        "compile": data.get("compile"),
        "phases": data.get("phases"),
        "throughput": data.get("throughput"),
        "inference": data.get("inference"),
        "memory": [memory["predicted_bytes"], memory["measured_bytes"], memory["error_percent"]],
        "timing": {k: round(v, 1) for k, v in data["timing"].items()},
        "evals": [{k: round(v, 4) for k, v in line.items()} for line in data["training"]["evals"]],
        "warnings": data["warnings"],
    }


def _short(scores: dict[str, Any]) -> dict[str, Any]:
    names = ("roc_auc", "tpr", "fpr", "f1", "ece")
    own = {k: (scores["metrics"].get(k), (scores.get("intervals") or {}).get(k)) for k in names}
    floors = {
        name: {k: (found.get("metrics") or {}).get(k) for k in ("roc_auc", "tpr", "fpr")}
        | {"lead": found.get("lead")}
        for name, found in (scores.get("floors") or {}).items()
    }
    edits = {
        name: {
            k: found.get(k)
            for k in (
                "roc_auc",
                "tpr",
                "tpr_unedited",
                "tpr_loss",
                "fpr",
                "fpr_unedited",
                "skipped",
            )
        }
        | {"tfidf": {k: found["floors"].get("tfidf", {}).get(k) for k in ("tpr", "tpr_unedited")}}
        for name, found in (scores.get("edits") or {}).items()
    }
    return {"model": own, "floors": floors, "edits": edits}


def _retrieval(similarity: dict[str, Any] | None) -> Any:
    if not similarity:
        return None
    wanted = ("split", "query", "pool", "n_queries", "pool_size", "mrr", "mrr_interval", "floors")
    lines = [{k: row.get(k) for k in wanted} for row in similarity["retrieval"]]
    return {"retrieval": lines, "pairs": similarity.get("pairs")}


def runs(options: argparse.Namespace) -> None:
    """Run a plan, `--at-once` runs at a time."""
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    with ThreadPoolExecutor(options.at_once) as pool:
        for done in [pool.submit(run_one, item, options.out) for item in plan]:
            done.result()


def seed_rows(programs: Path, target: Path, count: int = SEED_PROGRAMS) -> Path:
    """Write as many programs as the seed had, lengths as in Rosetta Code, labels at random.

    Each is made of lines of real programs of one language, as many as a real one has. What is
    learnt from them means nothing; the work is the seed's. `count`: the first of them alone.
    """
    rows = [json.loads(line) for line in programs.read_text(encoding="utf-8").splitlines()]
    draw = random.Random(0)
    lines: dict[str, list[str]] = {}
    for row in rows:
        lines.setdefault(row["language"], []).extend(row["code"].splitlines())
    with target.open("w", encoding="utf-8") as file:
        for number in range(count):
            like = rows[draw.randrange(len(rows))]
            n_lines = max(3, like["code"].count("\n"))
            code = "\n".join(draw.choice(lines[like["language"]]) for _ in range(n_lines)) + "\n"
            label = "ai" if draw.random() < 0.5 else "human"
            row = {"code": code, "language": like["language"], "label": label}
            row |= {"task": f"task {number // 12}", "source": "made up", "generator": label}
            file.write(json.dumps(row) + "\n")
    return target


def seed(options: argparse.Namespace) -> None:
    """Run the seed's job: 80 % train, ten epochs, CodeBERT's shape."""
    data = seed_rows(options.programs, options.out / "seed.jsonl")
    over = {
        "model": "codebert-shape",
        "data": str(data),
        "on_failed_audit": "go_on",
        "track": "none",
    }
    over |= json.loads(options.set)
    run_one({"name": "seed-shape", "preset": options.preset, "overrides": over}, options.out)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["runs", "seed"])
    parser.add_argument("out", type=Path)
    parser.add_argument("plan", type=Path, nargs="?")
    parser.add_argument("--programs", type=Path, help="JSONL with `code` and `language`")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--preset", default="h100")
    parser.add_argument("--set", default="{}", help="further overrides, as JSON")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    {"runs": runs, "seed": seed}[options.what](options)


if __name__ == "__main__":
    main()
