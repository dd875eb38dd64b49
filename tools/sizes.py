"""Count the package by folder: `python tools/sizes.py [CHECKOUT]`.

Lines, files, functions, modules that one other module alone imports, and how often the words that
the glossary of docs/ARCHITECTURE.md replaces are assigned.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

from lint_code import PACKAGE, ROOT, imports, modules

# Field terms stand in their place: baseline, difference, global batch, message, rows, variant, ...
REPLACED = "floors floor lead leads window windows told found said kept held given made each form"
REPLACED += " forms extent recipe rehearsal parity claim claims attendance"


def assigned(tree: ast.Module) -> Counter[str]:
    """Count the names that are bound: variables, arguments and loop variables."""
    names = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return names + Counter(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))


def main(root: Path) -> None:
    """Print one row per folder and their sum, then the replaced words."""
    known = modules(root)
    importers: Counter[str] = Counter()
    for name, path in known.items():
        importers.update({each.name for each in imports(name, path, known)} & set(known) - {name})
    rows: dict[str, Counter[str]] = {}
    words: Counter[str] = Counter()
    for path in sorted((root / PACKAGE).rglob("*.py")):
        inside = path.relative_to(root / PACKAGE).parts
        row = rows.setdefault(inside[0] if len(inside) > 1 else "(top)", Counter())
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        row["files"] += 1
        row["lines"] += len(text.splitlines())
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        row["functions"] += sum(isinstance(node, kinds) for node in ast.walk(tree))
        row["one importer"] += importers[".".join((PACKAGE, *inside))[:-3]] == 1
        words += assigned(tree)
    heads = ("lines", "files", "functions", "one importer")
    print(f"{'folder':12}" + "".join(f"{head:>14}" for head in heads))
    for name, row in [*sorted(rows.items()), ("sum", sum(rows.values(), Counter()))]:
        print(f"{name:12}" + "".join(f"{row[head]:>14,}" for head in heads))
    counts = {word: words[word] for word in REPLACED.split() if words[word]}
    print("assigned:", ", ".join(f"{word} {n}" for word, n in sorted(counts.items())))
    print("assigned in all:", sum(counts.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
