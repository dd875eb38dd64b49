"""A made-up run folder of a fine-tuning as a worker leaves it, for the tests of what reads one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from run_on_disk import MIB, write_events, write_facts

from nbhelpers.metrics.generation import score_generations, score_tasks

SETTINGS = {
    "model": "gemma-2-2b",
    "data": "iamtarun/python_code_instructions_18k_alpaca",
    "random_weights": False,
    "seq_len": 512,
    "global_batch_size": 16,
    "learning_rate": 2.0e-4,
    "method": "lora",
    "lora_r": 16,
    "lora_alpha": None,
    "lora_target_modules": ["q_proj", "v_proj"],
    "evaluate": "all",
    "tasks": ["humaneval", "mbpp"],
    "max_new_tokens": 256,
    "pretrain_steps": 0,
    "seed": 3,
    "bootstrap_samples": 200,
    "targets": {"syntax_accuracy": 0.9, "humaneval.pass@1": 0.5},
}
PLAN = {
    "world_size": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "global_batch_size": 16,
}
BUDGET = {
    "lines": [
        {"name": "weights", "size_bytes": 5000 * MIB, "note": "bf16"},
        {"name": "adapters", "size_bytes": 320 * MIB, "note": "fp32, with two moments"},
        {"name": "activations", "size_bytes": 2600 * MIB, "note": "4 x 512 tokens"},
    ],
    "total_bytes": 7920 * MIB,
    "capacity_bytes": 15 * 1024 * MIB,
    "verdict": "fits",
}
DECODING = {"mode": "greedy", "max_new_tokens": 256}
SIGNATURES = {"bleu": "nrefs:1|case:mixed|tok:nb-python-1|smooth:exp", "chrf": "nrefs:1|nc:6"}
PROMPT = "Below is an instruction.\n\n### Instruction:\nReturn twice x.\n\n### Response:\n"
RIGHT = "def twice(x):\n    return 2 * x"
WRONG = "def twice(x)\n    return 2 * x"


def text_scores(syntax: float = 0.92, bleu: float = 31.2, samples: int = 200) -> dict[str, Any]:
    """Return the scores of generated answers on a test split."""
    metrics = {"syntax_accuracy": syntax, "bleu": bleu, "chrf": 48.7, "exact_match": 0.11}
    metrics |= {"stopped": 0.965, "mean_new_tokens": 87.4}
    intervals = {"syntax_accuracy": [syntax - 0.04, syntax + 0.03], "bleu": [bleu - 3, bleu + 2.5]}
    return {
        "n_samples": samples,
        "metrics": metrics,
        "intervals": intervals | {"exact_match": [0.07, 0.16]},
        "signatures": SIGNATURES,
        "tokenizer": "nb-python-1",
        "syntax_errors": {"invalid syntax": 10, "unterminated string": 6},
        "decoding": DECODING,
    }


def task_scores(passed: float, problems: int = 164) -> dict[str, Any]:
    """Return the scores of generated programs on a set of problems."""
    won = round(passed * problems)
    metrics = {"pass@1": passed, "syntax_accuracy": 0.95, "stopped": 0.98, "mean_new_tokens": 101.0}
    return {
        "n_samples": problems,
        "metrics": metrics,
        "intervals": {"pass@1": [passed - 0.06, passed + 0.06]},
        "outcomes": {"passed": won, "failed": problems - won - 3, "timeout": 3},
        "decoding": DECODING,
    }


def result(name: str = "r16", **scores: Any) -> dict[str, Any]:
    """Return a whole result as a worker writes it; `scores` replaces those by split."""
    method = {"b": "base", "q": "qlora"}.get(name[0], "lora")
    rank = int(name.rpartition("r")[2]) if method != "base" else 16
    trained = 0 if method == "base" else 1_297_920 * rank
    history = [
        {"step": s, "loss": 0.4 + 1.1 * 0.97**s, "learning_rate": 2e-4} for s in range(1, 101, 5)
    ]
    training = {
        "optimizer_steps": 100,
        "epochs": 3,
        "examples": 1600,
        "skipped_steps": 0,
        "first_loss": 1.467,
        "last_loss": 0.46,
        "history": history,
        "evals": [{"step": s, "loss": 0.9 - s / 500} for s in (50, 100)],
        "resumed_from": None,
    }
    splits = {"samples": 1600, "tokens": 336_000, "supervised_tokens": 190_000, "cut": 48}
    return {
        "schema": 1,
        "run_id": f"finetune-gemma-2-2b-{name}-0123456789",
        "job": "finetune",
        "mode": "train",
        "preset": "t4",
        "settings": SETTINGS | {"method": method, "lora_r": rank},
        "precision": "bf16",
        "plan": PLAN,
        "budget": BUDGET,
        "command": f"nbhelpers train finetune --preset t4 -o method={method}",
        "git_commit": "abcdef0123456789",
        "seed": 3,
        "versions": {"python": "3.12.1", "torch": "2.11.0", "peft": "0.20.0"},
        "adapter": {
            "name": name,
            "method": method,
            "r": None if method == "base" else rank,
            "alpha": None if method == "base" else 2.0 * rank,
            "target_modules": [] if method == "base" else ["q_proj", "v_proj"],
            "trainable_parameters": trained,
            "total_parameters": 2_614_341_888 + trained,
        },
        "model": {
            "name": "google/gemma-2-2b",
            "revision": "c5ebcd4",
            "architecture": "Gemma2ForCausalLM",
            "parameters": 2_614_341_888,
            "random_weights": False,
            "attention": "flex",
            "loss": "chunked",
            "compiled": True,
            "parity": {"max_difference": 0.0031, "agrees": True},
        },
        "data": {
            "source": SETTINGS["data"],
            "revision": "r1",
            "licence": "apache-2.0",
            "fingerprint": "f" * 64,
            "template": "alpaca",
            "note": "",
            "splits": {
                "train": splits,
                "valid": {"samples": 100, "tokens": 21_000, "supervised_tokens": 12_000, "cut": 3},
                "test": {"samples": 200, "tokens": 42_000, "supervised_tokens": 24_000, "cut": 0},
            },
            "problems": {"counts": {"duplicate_rows": 12}, "notes": ["5 train rows are in test"]},
            "lengths": {
                "edges": [0, 128, 256, 512, 1024],
                "counts": [300, 700, 552, 48],
                "seq_len": 512,
                "cut_share": 0.03,
            },
            "example": [["Instruction <x>: double", False], [RIGHT, True]],
        },
        "scores": {
            "test": text_scores(),
            "humaneval": task_scores(0.25),
            "mbpp": task_scores(0.3, 500),
        }
        | scores,
        "training": training if method != "base" else {"optimizer_steps": 0, "history": []},
        "timing": {"data_s": 8.1, "train_s": 640.0, "evaluate_s": 300.0, "total_s": 963.0},
        "throughput": {}
        if method == "base"
        else {
            "useful_tokens_per_s": 26_400.0,
            "padded_tokens_per_s": 27_000.0,
            "samples_per_s": 125.7,
            "useful_share": 0.978,
            "mfu_4n": 0.279,
            "tokens_per_update": 3360.0,
            "samples_per_update": 16.0,
        },
        "energy": {"joules": 345_600.0, "watts_mean": 540.0},
        "memory": {
            "device": "cuda",
            "what": "allocator peak",
            "per_rank": [{"rank": 0, "peak_allocated_bytes": 7500 * MIB}],
            "predicted_bytes": 7920 * MIB,
            "measured_bytes": 7500 * MIB,
            "error_percent": 5.6,
            "predicted_lines": BUDGET["lines"],
        },
        "gpu": [
            {
                "index": 0,
                "name": "Tesla T4",
                "mean_utilisation_percent": 96.0,
                "peak_memory_used_bytes": 8000 * MIB,
            }
        ],
        "warnings": ["attention <auto> chose flex"],
    }


def generation(at: int, *, split: str = "test", answer: str = RIGHT, **more: Any) -> dict[str, Any]:
    """Return one line of generations.jsonl."""
    row = {"split": split, "id": f"{at}", "prompt": PROMPT, "answer": answer}
    row |= {"reference": RIGHT if split == "test" else None, "new_tokens": 20, "stopped": True}
    return row | {"outcome": None, "detail": None} | more


def generations(wrong: int = 4, passed: int = 8, samples: int = 40) -> list[dict[str, Any]]:
    """Return the generations of a run: so many test answers do not parse, so many programs pass."""
    rows = [generation(at, answer=WRONG if at < wrong else RIGHT) for at in range(samples)]
    rows[-1] |= {"answer": "x = 1", "stopped": False}
    for task in ("humaneval", "mbpp"):
        ends = [("passed", None)] * passed + [("timeout", "more than 10 s")]
        ends += [("failed", "AssertionError: 3 != 4")] * (samples - len(ends))
        for at, (outcome, detail) in enumerate(ends):
            rows.append(generation(at, split=task, outcome=outcome, detail=detail))
    return rows


def scored(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of generations as a worker makes them."""
    of = {name: [r for r in rows if r["split"] == name] for name in ("test", "humaneval", "mbpp")}
    found = {"test": score_generations(of["test"], seed=0, resamples=100)}
    found |= {name: score_tasks(of[name], resamples=100) for name in ("humaneval", "mbpp")}
    return {name: scores | {"decoding": DECODING} for name, scores in found.items()}


def write_finetune(
    folder: Path, *, data: dict[str, Any] | None = None, rows: list[dict[str, Any]] | None = None
) -> Path:
    """Write a finished run folder; without `data`, its scores are those of its generations."""
    rows = generations() if rows is None else rows
    data = (copy.deepcopy(data) if data else result(**scored(rows))) | {"run_id": folder.name}
    write_facts(folder, data, "t4", "a T4 has room for 512", 768)
    write_steps(folder)
    lines = [json.dumps(row) for row in rows]
    (folder / "generations.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_steps(folder: Path, extra: list[dict[str, Any]] = ()) -> None:
    """Write the events of a run of ten minutes."""

    def step(second: int) -> dict[str, Any]:
        told = {"total_steps": 100, "epoch": 0.3, "loss": 1.5 - second / 1000}
        told |= {"learning_rate": 2e-4, "useful_tokens_per_s": 26_400.0}
        return told | {"skipped_steps": 0}

    ended = {"t": 1601.0, "type": "eval", "rank": 0, "step": 60, "loss": 0.8}
    write_events(folder, [ended, *extra], step=step, memory_bytes=7000 * MIB, num_gpus=1)
