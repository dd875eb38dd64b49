"""The bundled sample of small programs in two styles; ``README.md`` says what is in it."""

from __future__ import annotations

from pathlib import Path

from nbhelpers.data.samples import sample_rows

SAMPLE_NOTE = (
    "Small programs written for this project in two styles, terse (here: human) and explaining "
    "(here: ai): they show the machinery. Scores on them say nothing about real code, and a model "
    "trained on them detects nothing real."
)
ENDINGS = {"python": ".py", "java": ".java"}


def load_style_rows() -> list[dict[str, str]]:
    """Return the programs, the same ones everywhere.

    A row has id, code, language, label, task, author, generator, source, licence and split.
    """
    splits = ("train", "valid", "test")
    return [row for split in splits for row in sample_rows(f"programs/{split}.jsonl")]


def write_style_files(folder: str | Path, *, tasks: int = 3) -> Path:
    """Write programs of the test split as files to try a detector on, and return the folder.

    Of each task one program per language and style, in a file named by task and style; files of
    that name are replaced.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    rows = [row for row in sample_rows("programs/test.jsonl") if row["id"].endswith("-1")]
    chosen = list(dict.fromkeys(row["task"] for row in rows))[:tasks]
    for row in rows:
        if row["task"] in chosen:
            style = "terse" if row["label"] == "human" else "explaining"
            name = f"{row['task']}-{style}{ENDINGS[row['language']]}"
            (place / name).write_text(row["code"], encoding="utf-8", newline="\n")
    return place
