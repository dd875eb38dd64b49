"""Scores of several detectors on a source that they have not seen, and their equal-weight sums.

    python benchmarks/detector_sources.py OUT PROGRAMS.jsonl MODEL [--encoders NAME ...]

PROGRAMS has `code, language, label, source, split` (train, val, test) in each line; MODEL is a
folder with an encoder. Each source is left out in turn: members learn from the others' train rows,
are standardised on their val rows, and score all rows of the one left out. `in` is the data's own
split. Encoders train on a GPU as a notebook does, six at once; the rest on the CPU's cores. Prints
the ROC-AUC by source of each member, then of sums of standardised scores.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import nbhelpers as nb
from nbhelpers.data.canonical import canonical
from nbhelpers.data.layout_features import layout_features
from nbhelpers.metrics.ngrams import NgramVectors

Fold = tuple[list[int], list[int], list[int]]  # rows of train, valid, test
Scores = tuple[np.ndarray, np.ndarray]  # of valid, of test
ENCODER = {
    "objective": "both",
    "epochs": 10,
    "freeze_epochs": 2,
    "encoder_learning_rate": 2e-4,
    "per_device_train_batch_size": 256,
    "compile_layers": "off",
    "on_failed_audit": "go_on",
    "floors": False,
    "edit_suite": False,
    "bootstrap_samples": 100,
    "max_retrieval_pool": 200,
    "track": "none",
}
PLAIN = {"augment": [], "augment_share": 0.0}
ENCODERS = {
    "edited": {},
    "edited, detect": {"objective": "detect"},
    "plain": PLAIN,
    "plain, detect, 3 epochs": PLAIN | {"objective": "detect", "epochs": 3, "freeze_epochs": 1},
}
# Name: how letters are shown, sizes of the n-grams.
NGRAMS = {
    "n-grams": ("as they are", range(1, 7)),
    "masked n-grams": ("masked", range(1, 8)),
    "n-grams of words": ("word", range(1, 8)),
    "n-grams without layout": ("flat", range(1, 7)),
}
SUMS = [
    ("plain", "n-grams"),
    ("plain", "masked n-grams"),
    ("plain", "n-grams", "masked n-grams"),
    ("plain", "n-grams", "layout"),
    ("edited", "n-grams"),
    ("edited", "n-grams", "masked n-grams"),
    ("n-grams", "masked n-grams"),
]


def folds(rows: list[dict[str, Any]]) -> dict[str, Fold]:
    """Return by source that is left out, and `in`, the rows of train, valid and test."""
    found: dict[str, Fold] = {}
    for source in sorted({row["source"] for row in rows}):
        of_others = [i for i, row in enumerate(rows) if row["source"] != source]
        parts = [[i for i in of_others if rows[i]["split"] == name] for name in ("train", "val")]
        found[source] = (*parts, [i for i, row in enumerate(rows) if row["source"] == source])
    names = ("train", "val", "test")
    found["in"] = tuple([i for i, r in enumerate(rows) if r["split"] == n] for n in names)
    return found


def shown(code: str, form: str) -> str:
    """Return a program in a form that keeps, blurs or drops its letters or its layout."""
    text = canonical(code, "text")
    if form == "masked":  # every letter alike: layout, and how long words are
        return re.sub(r"[0-9]", "0", re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", text)))
    if form == "word":
        return re.sub(r"[A-Za-z_]\w*", "a", re.sub(r"\d+", "0", text))
    return re.sub(r"\s+", " ", text) if form == "flat" else text


def balanced(rows: list[dict[str, Any]], chosen: list[int]) -> np.ndarray:
    """Return weights by which both classes count alike within a source and language."""
    cells = [(rows[i]["source"], rows[i]["language"]) for i in chosen]
    sizes = Counter(cells)
    classes = Counter((cell, rows[i]["label"]) for cell, i in zip(cells, chosen, strict=True))
    return np.array(
        [
            sizes[cell] / 2 / classes[cell, rows[i]["label"]]
            for cell, i in zip(cells, chosen, strict=True)
        ]
    )


def linear(rows: list[dict[str, Any]], fold: Fold, name: str) -> Scores:
    """Return the scores of a logistic regression on n-grams; its strength is chosen on valid."""
    form, sizes = NGRAMS[name]
    texts = [shown(row["code"], form) for row in rows]
    y = np.array([row["label"] == "ai" for row in rows], dtype=int)
    train, valid, test = fold
    vectors = NgramVectors(sizes=tuple(sizes), min_texts=3)
    matrix = vectors.fit_transform([texts[i] for i in train])
    others = [vectors.transform([texts[i] for i in part]) for part in (valid, test)]
    tried = []
    for strength in (1.0, 3.0, 10.0):
        model = LogisticRegression(C=strength, max_iter=200)
        model.fit(matrix, y[train], sample_weight=balanced(rows, train))
        scores = tuple(model.decision_function(part) for part in others)
        tried.append((roc_auc_score(y[valid], scores[0]), scores))
    return max(tried, key=lambda one: one[0])[1]


def layout(rows: list[dict[str, Any]], fold: Fold) -> Scores:
    """Return the scores of boosted trees on the layout features."""
    table = np.array([list(layout_features(shown(r["code"], "")).values()) for r in rows])
    y = np.array([row["label"] == "ai" for row in rows], dtype=int)
    model = HistGradientBoostingClassifier(
        max_iter=200, learning_rate=0.05, max_leaf_nodes=15, l2_regularization=1.0, random_state=0
    )
    model.fit(table[fold[0]], y[fold[0]], sample_weight=balanced(rows, fold[0]))
    return tuple(model.decision_function(table[part]) for part in fold[1:])


def encoder(
    rows: list[dict[str, Any]], fold: Fold, name: str, model: str, folder: Path, seed: int
) -> Scores:
    """Train an encoder as a notebook does, and return its logits."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(rows[i] | {"split": split, "generator": str(i)})
        for split, part in zip(("train", "val", "test"), fold, strict=True)
        for i in part
    ]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"model": model, "data": str(folder / "data.jsonl"), "seed": seed}
    hardware = nb.detect_hardware()
    preset = nb.load_preset(
        "detector", "h100", hardware=hardware, overrides=ENCODER | ENCODERS[name] | settings
    )
    plan = nb.plan_batch(preset, hardware)
    budget = nb.predict_memory(preset, plan, hardware)
    run = nb.launch(preset, plan, budget, hardware=hardware, run_dir=folder, force=True)
    nb.follow(run)
    logits = dict.fromkeys(range(len(rows)), np.nan)
    for line in run.predictions_path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        logits[int(row["generator"])] = row["logit"]
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
    parts = [np.array([logits[i] for i in part]) for part in fold[1:]]
    return tuple(np.nan_to_num(part, nan=np.nanmean(part)) for part in parts)  # repeats left out


def main() -> None:
    """Train all members on all folds, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("programs", type=Path)
    parser.add_argument("model")
    parser.add_argument("--encoders", nargs="*", default=["plain", "edited"])
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.programs.open(encoding="utf-8")]
    parts, jobs = folds(rows), {}
    with ProcessPoolExecutor(9) as cores, ThreadPoolExecutor(6) as runs:
        for source, fold in parts.items():
            jobs["layout", source] = cores.submit(layout, rows, fold)
            for name in NGRAMS:
                jobs[name, source] = cores.submit(linear, rows, fold, name)
            for name in options.encoders:
                folder = options.out / f"{name} {source}".replace(", ", "-").replace(" ", "-")
                arguments = (rows, fold, name, options.model, folder.resolve(), options.seed)
                jobs[name, source] = runs.submit(encoder, *arguments)
    tell(rows, parts, jobs, options.encoders)


def tell(
    rows: list[dict[str, Any]],
    parts: dict[str, Fold],
    jobs: dict[tuple[str, str], Future[Scores]],
    encoders: list[str],
) -> None:
    """Print the ROC-AUC by source of members and of their sums."""
    y = np.array([row["label"] == "ai" for row in rows], dtype=int)
    members = [*encoders, *NGRAMS, "layout"]
    print("scores", *parts, "mean of sources", sep="\t")
    for names in [*((name,) for name in members), *SUMS]:
        if not set(names) <= set(members):
            continue
        areas = []
        for source, fold in parts.items():
            scores = [jobs[name, source].result() for name in names]
            total = sum((test - valid.mean()) / valid.std() for valid, test in scores)
            areas.append(roc_auc_score(y[fold[2]], total))
        mean = np.mean(areas[:-1])
        print(" + ".join(names), *(f"{area:.3f}" for area in [*areas, mean]), sep="\t")


if __name__ == "__main__":
    main()
