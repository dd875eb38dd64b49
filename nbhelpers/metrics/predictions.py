"""Predictions on disk: one line per pair, in the order of the pair file, and their evaluator.

`predictions.jsonl` holds the probabilities; `predictions.txt` beside it holds
`id1<TAB>id2<TAB>0|1`, the form that CodeXGLUE's evaluator reads. Our evaluator of that form refuses
what theirs lets pass: missing, contradicting and unknown predictions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import numpy as np

from nbhelpers.common.files import is_number, parsed
from nbhelpers.errors import DataError
from nbhelpers.metrics.pairs import METRICS, binary_scores

FIELDS = ("split", "row", "id1", "id2", "label", "p", "p_reversed", "prediction")
_SHOWN = 3

Pair = tuple[str, str]


class Sink(Protocol):
    """Takes the scores of a split piece by piece, in file order, each pair exactly once."""

    def __call__(self, start: int, p_given: np.ndarray, swapped: np.ndarray) -> None:
        """Take P(clone) of the pairs from row `start` on, as given and with functions swapped."""


class PredictionWriter:
    """Writes both files piece by piece; they appear under their names only when complete.

    Use it in a `with` block: the `*.partial` files grow while pairs are scored. An exception inside
    removes them, and a killed process leaves them as they are. The text file gets the pairs of the
    test split alone, because an evaluator compares it with the answers of one split. Memory is that
    of one piece and of the ids.

    Args:
        path: The JSON-lines file; the text file stands beside it with the suffix `.txt`.
    """

    def __init__(self, path: str | Path) -> None:
        """Remember where to write; files are opened on entering the block."""
        self.path = Path(path)
        self.txt_path = self.path.with_suffix(".txt")
        self.n_written = 0
        self._files: dict[Path, IO[str]] = {}

    def __enter__(self) -> Self:
        """Open both temporary files."""
        for target in (self.path, self.txt_path):
            temporary = target.with_name(f"{target.name}.partial")
            self._files[target] = temporary.open("w", encoding="utf-8", newline="\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        """Rename both files when the block ended well, remove them otherwise."""
        for file in self._files.values():
            file.close()
        for target, file in self._files.items():
            if kind is None:
                Path(file.name).replace(target)
            else:
                Path(file.name).unlink(missing_ok=True)

    def write_chunk(
        self,
        *,
        split: str,
        start: int,
        id1: Sequence[str],
        id2: Sequence[str],
        label: Sequence[int] | np.ndarray,
        p: Sequence[float] | np.ndarray,
        p_reversed: Sequence[float] | np.ndarray | None,
        prediction: Sequence[int] | np.ndarray,
    ) -> None:
        """Append consecutive pairs of a split, (n,) of everything, from its row `start` on.

        Rows count from 0 within their split, as the pair file has them.

        Raises:
            DataError: A probability is not finite; the first such row is named.
        """
        p_given = np.asarray(p, dtype=np.float64)
        swapped = None if p_reversed is None else np.asarray(p_reversed, dtype=np.float64)
        for column in (p_given, swapped):
            bad = np.flatnonzero(~np.isfinite(column)) if column is not None else ()
            if len(bad):
                raise DataError(
                    f"P(clone) of {split} row {start + bad[0]} (counted from 0) is "
                    f"{column[bad[0]]}.",
                    fix="look for non-finite weights: the model has not produced a score there",
                )
        labels, decided = (np.asarray(x, dtype=np.int64).tolist() for x in (label, prediction))
        encode = json.JSONEncoder(ensure_ascii=False).encode
        texts = {each: encode(each) for each in {*id1, *id2}}  # an id stands in many pairs
        swapped_texts = ["null"] * len(p_given) if swapped is None else map(repr, swapped.tolist())
        columns = (range(start, start + len(p_given)), id1, id2, labels, p_given.tolist())
        rows = zip(*columns, swapped_texts, decided, strict=True)
        # As `json` writes a dict of `FIELDS`, which takes three times as long.
        head = f'{{"split": {encode(split)}, "row": '
        self._files[self.path].writelines(
            f'{head}{row}, "id1": {texts[a]}, "id2": {texts[b]}, "label": {y}, "p": {p_row!r}, '
            f'"p_reversed": {other}, "prediction": {called}}}\n'
            for row, a, b, y, p_row, other, called in rows
        )
        if split == "test":
            self._files[self.txt_path].writelines(
                f"{a}\t{b}\t{called}\n" for a, b, called in zip(id1, id2, decided, strict=True)
            )
        self.n_written += len(p_given)


def read_predictions(
    path: str | Path, *, split: str | None = None, fields: Sequence[str] = FIELDS
) -> dict[str, list[Any]]:
    """Return columns of a `predictions.jsonl`, ids as text, of one split or of all.

    Args:
        path: The JSON-lines file.
        split: The split to keep; None: all.
        fields: The columns to keep. Few of them keep a large file small in memory.

    Raises:
        DataError: The file is missing, or a line is not such a prediction (named by number).
    """
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    for number, line in _lines(Path(path)):
        row = parsed(line)
        if not _is_prediction(row):
            raise DataError(
                f"{path}, line {number}: not a prediction of a pair",
                fix="Write the file with PredictionWriter, or evaluate again to make it anew.",
            )
        if split is None or row["split"] == split:
            for name, column in columns.items():
                column.append(row[name])
    return columns


def _is_prediction(row: Mapping[str, Any] | None) -> bool:
    return (
        not set(FIELDS) - set(row or ())
        and row["label"] in (0, 1)
        and is_number(row["p"])
        and (row["p_reversed"] is None or is_number(row["p_reversed"]))
    )


def evaluate_predictions(answers_path: str | Path, predictions_path: str | Path) -> dict[str, Any]:
    """Score a predictions file against an answers file, both `id1<TAB>id2<TAB>0|1`.

    A pair that stands twice with the same value counts once, as in CodeXGLUE's evaluator. Binary
    scores compare with CodeXGLUE and GraphCodeBERT, `*_macro` with ISSTA22: never mix the two.

    Returns:
        n_pairs, n_repeated_answers, n_repeated_predictions, prior and the scores of `METRICS` but
        for the areas, which need probabilities.

    Raises:
        DataError: A line cannot be read, a prediction is missing or contradicts another one, or a
            pair is not among the answers. All kinds found are in the message.
    """
    answers, repeated_answers, problems = _read_labelled(Path(answers_path))
    _refuse(problems, answers_path)
    predictions, repeated_predictions, problems = _read_labelled(Path(predictions_path))
    problems["missing predictions"] = [f"{a} {b}" for a, b in answers if (a, b) not in predictions]
    problems["pairs that are not among the answers"] = [
        f"{a} {b}" + (" (the answers have it reversed)" if (b, a) in answers else "")
        for a, b in predictions
        if (a, b) not in answers
    ]
    _refuse(problems, predictions_path)
    if not answers:
        raise DataError(f"{answers_path}: no answers", fix="Give the split's pair file.")
    labels = list(answers.values())
    scores = binary_scores(labels, [predictions[pair] for pair in answers], 0.5)
    return {
        "n_pairs": len(answers),
        "n_repeated_answers": repeated_answers,
        "n_repeated_predictions": repeated_predictions,
        "prior": sum(labels) / len(labels),
    } | {name: scores[name] for name in METRICS if not name.endswith("_auc")}


def _read_labelled(path: Path) -> tuple[dict[Pair, int], int, dict[str, list[str]]]:
    """Return pair to label, the number of harmless repeats, and all problems by kind."""
    labels: dict[Pair, int] = {}
    repeated = 0
    problems: dict[str, list[str]] = {}
    for number, line in _lines(path):
        parts = line.split("\t") if "\t" in line else line.split()
        if len(parts) != 3 or parts[2] not in ("0", "1"):
            kind = "lines that are not id1<TAB>id2<TAB>0|1"
            problems.setdefault(kind, []).append(f"line {number}: {line[:60]!r}")
            continue
        pair, label = (parts[0], parts[1]), int(parts[2])
        if labels.get(pair, label) != label:
            kind = "pairs with both labels"
            problems.setdefault(kind, []).append(f"{pair[0]} {pair[1]} (line {number})")
        repeated += pair in labels
        labels.setdefault(pair, label)
    return labels, repeated, problems


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the lines that are not blank; a BOM and CRLF are no part of them."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n").strip(" ")
    except OSError as error:
        text = f"cannot read {path}: {error.strerror}"
        raise DataError(text, fix="Check the path and its spelling.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte 0x{error.object[error.start]:02x}).",
            fix="Unpack it if it is compressed, and save it as UTF-8.",
        ) from error


def _refuse(problems: Mapping[str, list[str]], path: str | Path) -> None:
    texts = [
        f"{len(rows)} {kind}: {'; '.join(rows[:_SHOWN])}{' …' if len(rows) > _SHOWN else ''}"
        for kind, rows in problems.items()
        if rows
    ]
    if texts:
        raise DataError(
            f"{path} cannot be scored: {'. '.join(texts)}.",
            fix="Give one line per pair of the answers, in the same id order, with label 0 or 1.",
        )
