"""Compare predictions of the memory grid with what was measured; prints tables in Markdown.

python benchmarks/memory_compare.py PRED.json MEASURED.jsonl [--all]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.memory_cases import cap_of, without_cap
from benchmarks.memory_grid import verdict_under
from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, TIGHT

GIB = 2**30


def error_percent(predicted: float | None, measured: float) -> float | None:
    """Return by how many percent a prediction is above (+) or below (-) the measured value.

    >>> error_percent(101, 100)
    1.0
    """
    return None if predicted is None else 100 * (predicted - measured) / measured


def read_measured(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last result of each configuration, by name."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {row["name"]: row for row in rows}


def joined(
    predictions: list[dict[str, Any]], measured: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Pair predictions with measurements without a cap; the largest error first."""
    rows = []
    for row in predictions:
        seen = measured.get(row["name"])
        if seen is None or not seen.get("ok"):
            continue
        line = {"name": row["name"], "opaque": row.get("opaque", []), "seconds": row["seconds"]}
        for key in ("allocated_bytes", "reserved_bytes"):
            line[key], line[f"measured_{key}"] = row.get(key), seen[key]
            line[f"{key}_error"] = error_percent(row.get(key), seen[key])
        line["first_step_error"] = error_percent(
            row.get("allocated_bytes"), max(seen["steps"][0]["phases"].values())
        )
        line["failed"] = row.get("error")
        rows.append(line)
    return sorted(rows, key=lambda line: -abs(line["allocated_bytes_error"] or 1e9))


def shares(rows: list[dict[str, Any]], key: str) -> str:
    """Say in a sentence how many errors are within 1, 3 and 5 percent, and the worst ones."""
    errors = [row[f"{key}_error"] for row in rows if row[f"{key}_error"] is not None]
    if not errors:
        return f"{key}: nothing to compare"
    within = ", ".join(
        f"within {limit} %: {sum(abs(e) <= limit for e in errors)} ({_share(errors, limit):.0f} %)"
        for limit in (1, 3, 5)
    )
    middle = statistics.median(abs(e) for e in errors)
    return (
        f"{key.partition('_')[0]}: {len(errors)} of {len(rows)} predicted; {within}; "
        f"median {middle:.2f} %; from {min(errors):+.2f} to {max(errors):+.2f} %"
    )


def _share(errors: list[float], limit: float) -> float:
    return 100 * sum(abs(e) <= limit for e in errors) / len(errors)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the configurations with predicted and measured GiB as a Markdown table."""
    lines = [
        "| configuration | allocated | measured | error | reserved | measured | error | note |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["name"]]
        for key in ("allocated_bytes", "reserved_bytes"):
            cells += [_gib(row[key]), _gib(row[f"measured_{key}"]), _percent(row[f"{key}_error"])]
        cells.append(row["failed"] or "; ".join(row["opaque"])[:60])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.3f}"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.2f} %"


def confusion(predictions: list[dict[str, Any]], measured: dict[str, dict[str, Any]]) -> str:
    """Return verdicts under caps against what happened, and name each wrong one."""
    known = {row["name"]: row for row in predictions if row.get("allocated_bytes")}
    counts = {verdict: [0, 0] for verdict in (FITS, TIGHT, DOES_NOT_FIT)}
    wrong = []
    for name, seen in measured.items():
        cap, plain = cap_of(name), without_cap(name)
        row = known.get(plain)
        if cap is None or row is None:
            continue
        ran = bool(seen.get("ok"))
        if not ran and seen.get("error") != "OutOfMemory":
            continue
        sizes = (row["allocated_bytes"], row["reserved_bytes"] or row["allocated_bytes"])
        verdict = verdict_under(plain, *sizes, cap)
        counts[verdict][0 if ran else 1] += 1
        if (verdict == FITS and not ran) or (verdict == DOES_NOT_FIT and ran):
            wrong.append(f"{name}: {verdict}, and it {'ran' if ran else 'ran out of memory'}")
    lines = ["| verdict | ran | out of memory |", "|---|---|---|"]
    lines += [f"| {verdict} | {ran} | {out} |" for verdict, (ran, out) in counts.items()]
    return "\n".join([*lines, "", *(wrong or ["No verdict was wrong."])])


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("predicted", type=Path)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--all", action="store_true", help="every configuration, not only > 1 %%")
    options = parser.parse_args()
    predictions = json.loads(options.predicted.read_text(encoding="utf-8"))["predictions"]
    measured = read_measured(options.measured)
    rows = joined(predictions, measured)
    for key in ("allocated_bytes", "reserved_bytes"):
        print(f"- {shares(rows, key)}")
    sure = [row for row in rows if not row["opaque"]]
    print(f"- without those named opaque: {shares(sure, 'allocated_bytes')}")
    broken = [n for n, r in measured.items() if "@" not in n and not r.get("ok")]
    print(f"- not measured: {', '.join(broken) or 'none'}\n")
    shown = [r for r in rows if options.all or abs(r["allocated_bytes_error"] or 1e9) > 1]
    print(table(shown) + "\n")
    print(confusion(predictions, measured))


if __name__ == "__main__":
    main()
