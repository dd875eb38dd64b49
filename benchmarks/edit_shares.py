"""The share of real programs that each edit changes, leaves as they are, or refuses.

    python benchmarks/edit_shares.py DATA [--save FILE]

DATA is a folder with `detector/paired.jsonl`, `detector/rosetta_2021_human.jsonl`,
`bigclonebench_10pct/data.jsonl` and `instructions/*.jsonl`. --save writes what each program became,
so that two versions can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path

from nbhelpers.data.edits import EDITS, edit_rows

WORD = re.compile(r"[^\W\d]\w*")
FILES = {
    "detector": ("detector/paired.jsonl", "code", ""),
    "rosetta": ("detector/rosetta_2021_human.jsonl", "code", ""),
    "bigclonebench": ("bigclonebench_10pct/data.jsonl", "func", "java"),
    "mbpp": ("instructions/mbpp.jsonl", "code", "python"),
    "alpaca": ("instructions/code_alpaca_python.jsonl", "output", "python"),
}


def programs(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Return the distinct programs of each file and language."""
    corpora: dict[tuple[str, str], dict[str, None]] = {}
    for name, (file, column, language) in FILES.items():
        with (folder / file).open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                key = (name, row.get("language") or language)
                corpora.setdefault(key, {})[row[column]] = None
    return {key: list(codes) for key, codes in corpora.items()}


def changed_words(code: str, text: str) -> tuple[int, int]:
    """How many words of a program have become others, and how many it has."""
    before, after = WORD.findall(code), WORD.findall(text)
    if len(before) != len(after):
        return 0, 0
    return sum(a != b for a, b in zip(before, after, strict=True)), len(before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    saved = arguments.save.open("w", encoding="utf-8") if arguments.save else None
    print("| data | language | programs | edit | edited | unchanged | refused | words renamed |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NBHELPERS_CACHE"] = cache
        for (name, language), codes in programs(arguments.folder).items():
            for edit in EDITS:
                texts = edit_rows(codes, [language] * len(codes), edit)
                refused = sum(text is None for text in texts)
                same = sum(text == code for text, code in zip(texts, codes, strict=True))
                shares = [len(codes) - refused - same, same, refused]
                cells = [f"{100 * share / len(codes):.1f} %" for share in shares]
                words = ""
                if edit == "rename":
                    pairs = [(c, t) for c, t in zip(codes, texts, strict=True) if t is not None]
                    counts = [changed_words(*pair) for pair in pairs]
                    new, total = (sum(count[i] for count in counts) for i in (0, 1))
                    words = f"{100 * new / max(total, 1):.1f} %"
                row = (name, language, f"{len(codes):,}", edit, *cells, words)
                print(f"| {' | '.join(row)} |", flush=True)
                if saved:
                    saved.write(json.dumps([name, language, edit, texts]) + "\n")


if __name__ == "__main__":
    main()
