"""A made-up run folder of a detector as a worker leaves it, for the tests of what reads one."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from run_on_disk import MIB, write_events, write_facts

from nbhelpers.metrics.detection import choose_operating_point, score_detection
from nbhelpers.metrics.slices import Edited, edit_scores, slice_scores

SETTINGS = {
    "model": "codebert",
    "data": "paired.jsonl",
    "random_weights": False,
    "objective": "both",
    "canonical": "text",
    "seq_len": 512,
    "global_batch_size": 256,
    "learning_rate": 1.0e-3,
    "encoder_learning_rate": 3.0e-5,
    "hold_out": "source=humaneval",
    "unseen_humans": "humans.jsonl",
    "on_failed_audit": "stop",
    "target_fpr": 0.01,
    "pretrain_steps": 0,
    "seed": 3,
    "targets": {"roc_auc": 0.88, "fpr": 0.12, "similarity.mrr": 0.9, "timing.total_s": 6300},
}
PLAN = {
    "world_size": 1,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 4,
    "global_batch_size": 256,
}
BUDGET = {
    "lines": [
        {"name": "weights", "size_bytes": 480 * MIB, "note": "fp32"},
        {"name": "optimizer", "size_bytes": 960 * MIB, "note": "two moments"},
        {"name": "activations", "size_bytes": 9000 * MIB, "note": "64 x 512 tokens"},
    ],
    "total_bytes": 10440 * MIB,
    "capacity_bytes": 80 * 1024 * MIB,
    "verdict": "fits",
}
TARGET_FPR = 0.01


class Programs:
    """Made-up programs of a split with their logits; `quality` moves the two classes apart."""

    def __init__(self, seed: int, n: int = 240, *, quality: float = 3.0, humans: bool = False):
        rng = np.random.default_rng(seed)
        self.labels = np.zeros(n, int) if humans else (np.arange(n) % 2)
        self.languages = np.where(np.arange(n) // 2 % 3 == 0, "java", "python").tolist()
        self.tasks = [f"t{at // 4}" for at in range(n)]
        self.logits = rng.normal(size=n) + quality * (self.labels - 0.5)
        self.tfidf = rng.normal(size=n) + 2.0 * (self.labels - 0.5)
        self.rng, self.n = rng, n

    def rows(self) -> list[Any]:
        """Return the rows as the slices want them."""
        lines = [4, 14, 30, 60]
        return [
            SimpleNamespace(
                code="x\n" * lines[at % 4 - at % 2],
                language=self.languages[at],
                task=self.tasks[at],
                generator="gpt" if self.labels[at] else "",
                source="rosetta" if at % 3 else "codenet",
            )
            for at in range(self.n)
        ]

    def floors(self) -> dict[str, Any]:
        """Return the floors' scores and thresholds; one was skipped."""
        line = float(np.quantile(self.tfidf[self.labels == 0], 0.99))
        noise = self.rng.normal(size=self.n)
        return {"tfidf": (self.tfidf, line), "length": (noise, 2.3), "layout": "too few rows"}

    def scores(self, point: Any, *, whole: bool = False, seed: int = 0) -> dict[str, Any]:
        """Return the scores of the split; `whole`: with slices and the edit suite."""
        floors = self.floors()
        more = {"tasks": self.tasks, "resamples": 100, "seed": seed}
        found = score_detection(
            self.labels, self.logits, point, prevalences=[0.5, 0.05], floors=floors, **more
        )
        if whole:
            found |= slice_scores(
                self.rows(), self.labels, self.logits, point, resamples=100, seed=seed
            )
            edited = {}
            for name, loss in {"reformat": 0.2, "rename": 2.4}.items():
                at = np.arange(0, self.n, 2) + (np.arange(self.n // 2) % 2)
                moved = self.logits[at] - loss * self.labels[at]
                edited[name] = Edited(
                    at, moved, {"tfidf": self.tfidf[at] - 1.5, "length": at * 0.0}
                )
            found["edits"] = edit_scores(
                self.labels, self.logits, edited, point, floors=floors, **more
            )
        return found


@functools.cache
def _scored() -> dict[str, Any]:
    """Return operating point, scores and programs by split; made once."""
    valid, test = Programs(1, 800), Programs(2)
    held_out, unseen = Programs(3, 120, quality=0.6), Programs(4, 200, humans=True)
    unseen.logits += 2.5
    point = choose_operating_point(
        valid.labels, valid.logits, target_fpr=TARGET_FPR, target_miss_rate=0.05
    )
    scores = {
        "valid": valid.scores(point),
        "test": test.scores(point, whole=True),
        "held_out": held_out.scores(point),
        "unseen_humans": unseen.scores(point),
    }
    programs = {"valid": valid, "test": test, "held_out": held_out, "unseen_humans": unseen}
    return {"point": point, "scores": scores, "programs": programs}


def similarity(lead: float = 0.08) -> dict[str, Any]:
    """Return the scores of a similarity space."""

    def retrieval(query: str, pool: str, mrr: float) -> dict[str, Any]:
        floor = {"mrr": mrr - lead, "map_at_r": 0.3, "lead": [lead, lead - 0.03, lead + 0.03]}
        return {
            "split": "test",
            "query": query,
            "pool": pool,
            "n_queries": 300,
            "pool_size": 1200,
            "mrr": mrr,
            "mrr_interval": [mrr - 0.02, mrr + 0.02],
            "map_at_r": 0.41,
            "map_at_r_interval": [0.38, 0.44],
            "floors": {
                "tfidf": floor,
                "raw_encoder": {"mrr": 0.2, "map_at_r": 0.1, "lead": [0.5, 0.4, 0.6]},
            },
        }

    rows = [retrieval("all", "all", 0.71), retrieval("python", "java", 0.69)]
    return {
        "dimensions": 256,
        "retrieval": [*rows, retrieval("java", "python", 0.66)],
        "pairs": {
            "n_pairs": 2000,
            "n_positive": 1000,
            "roc_auc": 0.931,
            "roc_auc_interval": [0.92, 0.94],
            "average_precision": 0.92,
            "threshold": 0.61,
            "accuracy": 0.86,
            "f1": 0.85,
            "floors": {
                "tfidf": {
                    "roc_auc": 0.84,
                    "roc_auc_interval": [0.82, 0.86],
                    "average_precision": 0.8,
                    "threshold": 0.3,
                    "accuracy": 0.77,
                    "f1": 0.76,
                }
            },
        },
        "headline": {
            "mrr": 0.71,
            "map_at_r": 0.41,
            "pair_roc_auc": 0.931,
            "pair_accuracy": 0.86,
            "pair_f1": 0.85,
        },
    }


def _training() -> dict[str, Any]:
    history = [
        {
            "step": s,
            "loss": 0.3 + 4 * 0.98**s,
            "classification_loss": 0.69 * 0.985**s,
            "contrastive_loss": 0.5 + 4 * 0.98**s,
            "learning_rate": 1e-3,
        }
        for s in range(1, 201, 10)
    ]
    evals = [
        {"step": s, "split": "valid", "scores": {"roc_auc": 1 - 20 / (s + 60), "tpr": s / 300}}
        for s in (100, 200)
    ]
    return {
        "optimizer_steps": 200,
        "epochs": 10,
        "examples": 51_200,
        "skipped_steps": 0,
        "first_loss": 4.3,
        "last_loss": 0.4,
        "history": history,
        "evals": evals,
        "best_step": 200,
        "resumed_from": None,
    }


def _data() -> dict[str, Any]:
    both = {"human": 60, "ai": 60}
    counts = {"rows": 240, "tasks": 60, "human": 120, "ai": 120}
    counts |= {"languages": {"java": both, "python": both}, "sources": {"rosetta": both}}
    counts |= {"generators": {"gpt": {"ai": 120}, "unknown": {"human": 120}}}
    return {
        "source": "paired.jsonl",
        "revision": None,
        "licence": "MIT",
        "fingerprint": "f" * 64,
        "canonical": "text",
        "note": "",
        "truncated": 31,
        "splits": dict.fromkeys(("train", "valid", "test"), counts),
        "problems": {"rows_read": 4000, "rows_dropped": {"no code": 3}, "split": {"how": "task"}},
        "overlap": {"train/test": {"code": 0, "task": 0, "author": 0, "near_code": 0}},
    }


def result(**changes: Any) -> dict[str, Any]:
    """Return a whole result as a worker writes it; `changes` replaces top-level parts."""
    found = _scored()
    data = {
        "schema": 1,
        "run_id": "detector-codebert-0123456789",
        "job": "detector",
        "mode": "train",
        "preset": "h100",
        "settings": SETTINGS,
        "precision": "bf16",
        "plan": PLAN,
        "budget": BUDGET,
        "command": "nbhelpers train detector --preset h100",
        "git_commit": "abcdef0123456789",
        "seed": 3,
        "versions": {"python": "3.12.1", "torch": "2.11.0"},
        "data": _data(),
        "audit": {
            "verdict": "usable with warnings",
            "reasons": ["one human population"],
            "warnings": ["93 % of <human> files end with a newline"],
            "facts": {
                "features": [
                    {"feature": "final newline", "raw": 0.971, "canonical": 0.5, "higher_in": "ai"}
                ]
            },
        },
        "model": {
            "name": "microsoft/codebert-base",
            "revision": "3b0952f",
            "architecture": "RobertaModel",
            "parameters": 124_645_632,
            "random_weights": False,
            "tokenizer": "RobertaTokenizer",
            "seq_len": 512,
            "pooling": "mean",
            "projection_size": 256,
            "pretrain": None,
        },
        "operating_point": found["point"].to_dict(),
        "scores": found["scores"],
        "similarity": similarity(),
        "training": _training(),
        "timing": {"data_s": 8.1, "train_s": 300.0, "evaluate_s": 90.0, "total_s": 410.0},
        "phases": {
            "data_s": 3.0,
            "forward_s": 90.0,
            "backward_s": 180.0,
            "optimizer_s": 12.0,
            "evaluate_s": 15.0,
        },
        "compile": {
            "is_on": True,
            "recompiles": 4,
            "self_test": {"is_on": True, "largest_difference": 2e-4, "tolerance": 0.05},
        },
        "throughput": {
            "programs_per_s": 1271.2,
            "useful_tokens_per_s": 258_000.0,
            "padded_tokens_per_s": 281_000.0,
            "useful_share": 0.918,
            "mfu_6n": 0.412,
        },
        "inference": {"ms_per_file": 0.41, "files_per_s": 2439.0, "ms_alone": 9.5}
        | {"batch_size": 128, "n_files": 960},
        "memory": {
            "device": "cuda",
            "what": "allocator peak",
            "per_rank": [{"rank": 0, "peak_allocated_bytes": 10000 * MIB}],
            "predicted_bytes": 10440 * MIB,
            "measured_bytes": 10000 * MIB,
            "error_percent": 4.4,
            "predicted_lines": BUDGET["lines"],
        },
        "gpu": [
            {
                "index": 0,
                "name": "NVIDIA H100",
                "mean_utilisation_percent": 96.0,
                "peak_memory_used_bytes": 12000 * MIB,
            }
        ],
        "warnings": ["the tokenizer of <x> was converted"],
    }
    return copy.deepcopy(data | changes)


def predictions() -> list[dict[str, Any]]:
    """Return the lines of predictions.jsonl."""
    found, lines = _scored(), []
    for split, programs in found["programs"].items():
        p, calls = (
            found["point"].probabilities(programs.logits),
            found["point"].calls(programs.logits),
        )
        for at in range(programs.n):
            line = {"split": split, "id": f"{split}{at}", "place": f"paired.jsonl:{at + 1}"}
            line |= {"language": programs.languages[at], "task": programs.tasks[at]}
            line |= {"label": ("human", "ai")[programs.labels[at]], "source": "", "generator": ""}
            line |= {"logit": float(programs.logits[at]), "p_ai": float(p[at]), "call": calls[at]}
            lines.append(line)
    return lines


def write_detector(folder: Path, *, data: dict[str, Any] | None = None) -> Path:
    """Write a finished run folder."""
    data = (copy.deepcopy(data) if data else result()) | {"run_id": folder.name}
    write_facts(folder, data, "h100", "half of the programs exceed 256", 256)

    def step(second: int) -> dict[str, Any]:
        losses = {"loss": 4.5, "contrastive_loss": 3.9}
        told = {name: value - second / 1000 for name, value in losses.items()}
        return told | {"total_steps": 200, "epoch": 0.3, "classification_loss": 0.6}

    ended = {"t": 1601.0, "type": "eval", "rank": 0, "step": 60, "split": "valid"}
    ended |= {"scores": {"roc_auc": 0.91, "tpr": 0.42}}
    write_events(folder, [ended], step=step, every=30, memory_bytes=9000 * MIB, num_gpus=1)
    lines = [json.dumps(row) for row in predictions()]
    (folder / "predictions.jsonl").write_text("\n".join(lines) + "\n")
    return folder
