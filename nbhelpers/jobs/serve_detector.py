"""The process that holds a detector: it answers with scores, over the pipes of `serve`."""

from __future__ import annotations

import base64
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.data.canonical import canonical
from nbhelpers.errors import OutOfMemory, Stopped
from nbhelpers.jobs.serve import Line, serve

if TYPE_CHECKING:
    from nbhelpers.jobs.load_detector import Loaded

PART = 512  # programs whose tokens are held at once
HEAD_CHARACTERS, HEAD_CHARACTERS_PER_TOKEN = 64_000, 32


def operations(line: Line) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the operations of one process by name; `load` comes before `score`."""
    models: dict[str, Loaded] = {}

    def load(folder: str, device: str) -> dict[str, Any]:
        from nbhelpers.jobs.load import choose_device
        from nbhelpers.jobs.load_detector import load_detector

        used = choose_device(device)
        models["model"] = load_detector(Path(folder), device=used)
        return {"device": str(used), "settings": models["model"].settings}

    def score(codes: list[str], batch_size: int, vectors: bool) -> dict[str, Any]:
        """Logits, token counts, and unit vectors as base64 of float32, (programs, dimensions)."""
        return scores(models["model"], line, codes, batch_size=batch_size, with_vectors=vectors)

    return {"load": load, "score": score, "export": _export(line)}


def _export(line: Line) -> Callable[..., dict[str, Any]]:
    def export(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
        from nbhelpers.jobs.detector_export import export_detector
        from nbhelpers.use.trained import TrainedDetector

        options["out"] = Path(options["out"])
        detector = TrainedDetector.from_dict(trained)
        return export_detector(detector, report=line.report, **options)

    return export


def scores(
    loaded: Loaded, line: Line, codes: list[str], *, batch_size: int, with_vectors: bool
) -> dict[str, Any]:
    """Return what a detector says of programs, in their order.

    Raises:
        Stopped: It was cancelled.
        OutOfMemory: A batch does not fit.
    """
    logits: list[float] = []
    tokens: list[int] = []
    rows: list[Any] = []
    for start in range(0, len(codes), PART):
        heads, counts = read_heads(loaded, codes[start : start + PART])
        part_logits, vectors = _scored(loaded, line, heads, batch_size)
        logits += [float(each) for each in part_logits]
        tokens += counts
        if with_vectors:
            rows.append(vectors)
    return {"logits": logits, "tokens": tokens} | (_packed(rows) if with_vectors else {})


def read_heads(loaded: Loaded, codes: list[str]) -> tuple[list[str], list[int]]:
    """Return the part of each program that has to be read, and the tokens of the whole.

    A file of megabytes would take half a minute for the few hundred tokens that the model sees. Of
    a program longer than its head the tokens are estimated from those of the head.
    """
    seq_len, form = loaded.settings["seq_len"], loaded.settings["canonical"]
    limit = max(HEAD_CHARACTERS, HEAD_CHARACTERS_PER_TOKEN * seq_len)
    texts = [canonical(code, form) for code in codes]
    # The canonical form drops blanks at the end: a letter there keeps those that are in the middle.
    heads = [text if len(text) <= limit else f"{text[:limit]}x" for text in texts]
    counts = _token_counts(loaded, heads)
    for row, text in enumerate(texts):
        if len(text) <= limit:
            continue
        if counts[row] > 2 * seq_len:
            counts[row] = round(counts[row] * len(text) / limit)
        else:  # tokens of hundreds of characters: nothing can be left out
            heads[row], counts[row] = text, _token_counts(loaded, [text])[0]
    return heads, counts


def _token_counts(loaded: Loaded, texts: list[str]) -> list[int]:
    """Tokens of each text, special ones too, none cut off."""
    table = loaded.table(texts)
    special = 1 if table.bos_id is None else 2
    return [int(end - begin) + special for begin, end in pairwise(table.offsets)]


def _scored(loaded: Loaded, line: Line, codes: list[str], batch_size: int) -> tuple[Any, Any]:
    def stop(done: int, total: int) -> None:
        if line.is_cancelled():
            raise Stopped("Scoring was stopped.", fix="ask again")

    try:
        return loaded.score(codes, batch_size=batch_size, report=stop)
    except Exception as error:
        if "out of memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        raise OutOfMemory(
            f"Scoring {batch_size} programs at once needs more memory than there is.",
            fix="give a smaller batch_size, close other models, or load with device='cpu'",
            details=str(error)[:2000],
        ) from None  # the frames of the error hold the batch


def _packed(rows: list[Any]) -> dict[str, Any]:
    import numpy as np

    table = np.ascontiguousarray(np.concatenate(rows) if rows else np.zeros((0, 0)), "<f4")
    packed = base64.b64encode(table.tobytes()).decode("ascii")
    return {"vectors": packed, "dimensions": table.shape[1]}


def main(requests: int, replies: int) -> None:
    """Serve until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook cancels by a message
    line = Line(requests, replies)
    from nbhelpers.jobs.worker import quiet_libraries

    quiet_libraries()
    serve(line, operations(line))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
