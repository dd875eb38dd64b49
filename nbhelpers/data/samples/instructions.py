"""The bundled sample of Python instructions and coding tasks; ``README.md`` says what is in it."""

from __future__ import annotations

from functools import cache

from nbhelpers.data.samples import sample_rows

SAMPLE_NOTE = (
    "A sample of Python instructions written for this project to show the machinery: twenty kinds "
    "of small task, filled in by rule. Scores on it say nothing about real code."
)


def load_instruction_rows() -> dict[str, list[dict[str, str]]]:
    """Return ``train``, ``valid`` and ``test``: rows of id, instruction, input and output."""
    return {split: sample_rows(f"tasks/{split}.jsonl") for split in ("train", "valid", "test")}


def sample_tasks() -> list[dict[str, str]]:
    """Return the rows of ``test`` as problems whose solutions can be run.

    Each has id, instruction, input, entry_point, tests (lines of ``assert``) and reference.
    """
    return sample_rows("tasks/tests.jsonl")


@cache
def plain_code() -> tuple[str, ...]:
    """Return modules of Python functions, without instructions, to pre-train on."""
    return (*sample_rows("tasks/plain-1.jsonl"), *sample_rows("tasks/plain-2.jsonl"))
