"""Which rows train and which are held out.

Draws follow from the text of a row and a seed, not from its place: a row more or less, or another
order, leaves the rest of a draw as it is. The held-out rows depend on `split_seed` alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from ..errors import DataError
from .instruction_rows import PlacedRow
from .problems import ProblemLog

Splits = dict[str, list[PlacedRow]]

# task_id of MBPP, both ends included. Source: github.com/google-research/google-research, mbpp,
# README ("Evaluation Details").
MBPP_RANGES = {"prompt": (1, 10), "test": (11, 510), "valid": (511, 600), "train": (601, 974)}


def one_line(text: str) -> str:
    """A text with runs of white space taken as one blank."""
    return " ".join(text.split())


def question_key(placed: PlacedRow) -> str:
    """What two rows of one question share."""
    return one_line(placed.row.question)


def row_key(placed: PlacedRow) -> str:
    """What two equal rows share."""
    return f"{question_key(placed)}\0{one_line(placed.row.answer)}"


def _draw_key(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def official_splits(splits: Splits, log: ProblemLog) -> Splits:
    """MBPP in one file, sorted by its authors' ranges of task_id; other data as it is.

    The 10 problems for prompts are left out. Held-out rows drawn at random would train on problems
    that pass@1 is measured on.
    """
    rows = splits.get("train", [])
    if len(splits) != 1 or not rows or any(placed.task_id is None for placed in rows):
        return splits
    found: Splits = {name: [] for name in ("train", "valid", "test", "prompt")}
    for placed in rows:
        name = mbpp_split(placed.task_id)
        if name is None:
            return splits
        found[name].append(placed)
    if not all(found[name] for name in ("train", "valid", "test")):
        return splits
    n_prompt = len(found.pop("prompt"))
    detail = ", ".join(f"{name} {len(part)}" for name, part in found.items())
    file = rows[0].file
    log.add(
        "official_splits", file, None, f"{detail}; {n_prompt} for prompts left out", n=len(rows)
    )
    return found


def mbpp_split(task_id: int | None) -> str | None:
    """Split of an MBPP problem.

    >>> mbpp_split(11), mbpp_split(510), mbpp_split(974), mbpp_split(975)
    ('test', 'test', 'train', None)
    """
    ranges = MBPP_RANGES.items()
    return next((n for n, (low, high) in ranges if task_id and low <= task_id <= high), None)


def hold_out(
    splits: Splits, *, valid_samples: int, eval_samples: int, split_seed: int, log: ProblemLog
) -> Splits:
    """Splits with a validation and a test part, held out of train where the data has none.

    Rows of one question stay on one side. An evaluation split of the data itself is cut to the
    number asked for.

    Args:
        splits: With at least "train".
        valid_samples: Rows of "valid" at most.
        eval_samples: Rows of "test" at most.
        split_seed: Of both draws.
        log: Gets notes on what was done.

    Raises:
        DataError: Too few rows; the error says what fits.
    """
    wanted = {"test": eval_samples, "valid": valid_samples}
    missing = {name: n for name, n in wanted.items() if name not in splits}
    train = splits["train"]
    if missing and len(train) < sum(missing.values()) + 1:
        raise _too_few(len(train), missing)
    done = {
        name: _cut(splits[name], n, name, split_seed, log)
        for name, n in wanted.items()
        if name in splits
    }
    left = train
    for name, n in missing.items():
        done[name], left = _take(left, n, split_seed, name)
        log.add("held_out", train[0].file, None, f"{len(done[name])} for {name}", n=len(done[name]))
        if len(done[name]) < n:
            log.add(
                "short_split",
                name,
                None,
                f"{len(done[name])} of {n}: equal questions stay together",
            )
    if not left or not all(done.values()):
        raise _too_alike(train, missing)
    return {"train": left, "valid": done["valid"], "test": done["test"]}


def _take(
    rows: list[PlacedRow], n: int, seed: int, name: str
) -> tuple[list[PlacedRow], list[PlacedRow]]:
    """Draw whole groups of one question until n rows are drawn; both parts keep their order."""
    keys = [question_key(placed) for placed in rows]
    sizes = Counter(keys)
    chosen: set[str] = set()
    room = n
    for key in sorted(sizes, key=lambda key: _draw_key(seed, f"{name}\0{key}")):
        if sizes[key] <= room:
            chosen.add(key)
            room -= sizes[key]
        if not room:
            break
    taken = [placed for placed, key in zip(rows, keys, strict=True) if key in chosen]
    return taken, [placed for placed, key in zip(rows, keys, strict=True) if key not in chosen]


def _cut(rows: list[PlacedRow], n: int, name: str, seed: int, log: ProblemLog) -> list[PlacedRow]:
    if len(rows) <= n:
        if len(rows) < n:
            log.add("short_split", name, None, f"{len(rows)} of {n}")
        return rows
    log.add("split_cut", rows[0].file, None, f"{name}: {n} of {len(rows):,}", n=len(rows) - n)
    return draw(rows, n, seed)


def draw(rows: list[PlacedRow], n: int, seed: int) -> list[PlacedRow]:
    """Draw n rows and keep their order; a smaller draw is part of a larger one."""
    if n >= len(rows):
        return rows
    met: Counter[str] = Counter()
    order = []
    for at, placed in enumerate(rows):
        key = row_key(placed)
        order.append((_draw_key(seed, f"{key}\0{met[key]}"), at))
        met[key] += 1
    return [rows[at] for at in sorted(at for _, at in sorted(order)[:n])]


def _too_few(n_rows: int, missing: dict[str, int]) -> DataError:
    names = {"valid": "valid_samples", "test": "eval_samples"}
    asked = " and ".join(f"{names[name]}={n}" for name, n in missing.items())
    fits = max(1, n_rows // 10)
    parts = " and ".join(f"{names[name]}={min(n, fits)}" for name, n in missing.items())
    is_hopeless = n_rows < len(missing) + 1
    return DataError(
        f"The data has {n_rows:,} training rows, too few to hold out {asked} and still train.",
        fix="give more rows, or files of their own for validation and test."
        if is_hopeless
        else f"set {parts}, which fit, or give files of their own for validation and test.",
    )


def _too_alike(train: list[PlacedRow], missing: dict[str, int]) -> DataError:
    """Enough rows, but too few questions to lie on both sides."""
    sizes = Counter(question_key(placed) for placed in train)
    names = {"valid": "valid_samples", "test": "eval_samples"}
    asked = " and ".join(f"{names[name]}={n}" for name, n in missing.items())
    n_questions = "1 question" if len(sizes) == 1 else f"{len(sizes):,} questions"
    fix = "give rows with other questions, or files of their own for validation and test."
    if len(sizes) > len(missing):
        parts = " and ".join(
            f"{names[name]}={max(n, max(sizes.values()))}" for name, n in missing.items()
        )
        fix = f"set {parts}, so that whole questions fit; or {fix}"
    return DataError(
        f"The {len(train):,} training rows ask {n_questions}, and rows of one question stay "
        f"on one side: {asked} cannot be held out.",
        fix=fix,
    )


def limit_train(
    rows: list[PlacedRow], *, fraction: float, max_samples: int | None, seed: int
) -> list[PlacedRow]:
    """First the fraction (rounded down, at least one row), then the upper limit."""
    wanted = max(1, int(len(rows) * fraction + 1e-9))
    return draw(rows, min(wanted, max_samples or wanted), seed)
