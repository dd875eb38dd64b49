"""What a threshold fixed on some humans of a new source keeps on the others of that source.

    python benchmarks/detector_calibration.py predictions.jsonl ... [--scores logit tfidf]

Reads rows of programs whose source was left out of training: `source`, `label` and scores, as
`predictions.jsonl` of a run with `hold_out=source=NAME` has them. Draws 100, 300 and 1,000 humans
of each source, fixes the threshold on them as `nbhelpers calibrate` does, and scores the rest;
many times. With `--by task` whole tasks are drawn, so that the rest solves other tasks. Prints a
line for each source, and one of all sources pooled.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.metrics.intervals import promised_fpr
from nbhelpers.use.calibrate import allowed_above

SIZES = (100, 300, 1000)
LEFT = 100  # humans that must be left to measure on
TARGET, CONFIDENCE = 0.01, 0.95


def draws(
    humans: np.ndarray, machines: np.ndarray, groups: np.ndarray, n: int, splits: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (splits,) humans of the rest above the threshold, and (splits,) TPR.

    Args:
        groups: (humans,) number of what is drawn together.
    """
    draw, allowed = np.random.default_rng(seed), allowed_above(n, TARGET, CONFIDENCE) or 0
    above, found = np.zeros(splits), np.zeros(splits)
    for at in range(splits):
        order = np.argsort(draw.permutation(groups.max() + 1)[groups], kind="stable")
        threshold = np.sort(humans[order[:n]])[n - 1 - allowed]
        above[at] = (humans[order[n:]] > threshold).sum()
        found[at] = (machines > threshold).mean()
    return above, found


def words(values: np.ndarray, form: str = ".2%") -> str:
    """Write a mean with the range that holds 95 % of the splits."""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"{values.mean():{form}} [{low:{form}}, {high:{form}}]"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("predictions", nargs="+", type=Path)
    parser.add_argument("--scores", nargs="+", default=["logit"])
    parser.add_argument("--by", choices=("program", "task"), default="program")
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in options.predictions:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("split", "held_out") == "held_out":
                rows[row["source"]].append(row)
    print("score", "source", "humans", "rest", "promised", "FPR", "TPR", "broken", sep="\t")
    for score in options.scores:
        for n in SIZES:
            tell(rows, score, n, options)


def tell(
    rows: dict[str, list[dict[str, Any]]], score: str, n: int, options: argparse.Namespace
) -> None:
    """Print a line for each source that has enough humans, and one of all of them."""
    promised = promised_fpr(n, allowed_above(n, TARGET, CONFIDENCE) or 0, CONFIDENCE)
    above, tprs, rest, broken = np.zeros(options.splits), [], 0, []
    for source, programs in sorted(rows.items()):
        of = {
            label: np.array([row[score] for row in programs if row["label"] == label])
            for label in ("human", "ai")
        }
        left = len(of["human"]) - n
        if left < LEFT:
            continue
        groups = np.arange(len(of["human"]))
        if options.by == "task":
            tasks = [row["task"] for row in programs if row["label"] == "human"]
            groups = np.unique(tasks, return_inverse=True)[1]
        counts, found = draws(of["human"], of["ai"], groups, n, options.splits, options.seed)
        is_broken = counts / left > promised
        broken.append(is_broken.mean())
        above, rest, tprs = above + counts, rest + left, [*tprs, found]
        line = (words(counts / left), words(found, ".3f"), f"{is_broken.mean():.1%}")
        print(score, source, n, left, f"{promised:.2%}", *line, sep="\t")
    if rest:
        line = (words(above / rest), words(np.mean(tprs, axis=0), ".3f"), f"{np.mean(broken):.1%}")
        print(score, "all", n, rest, f"{promised:.2%}", *line, sep="\t")


if __name__ == "__main__":
    main()
