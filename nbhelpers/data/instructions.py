"""Instructions and their answers, ready for training: read, split, compared, put in a template."""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError
from ..tables import left
from .instruction_overlap import compare_splits
from .instruction_rows import PlacedRow
from .instruction_sources import read_source
from .instruction_splits import hold_out, limit_train, official_splits
from .problems import Policy, ProblemLog
from .sources import check_choice
from .templates import AS_WRITTEN, render, resolve_template


class Sample(NamedTuple):
    """One example after the template; the completion has no end token."""

    id: str
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionData:
    """Samples of "train", "valid" and "test", where they come from, and what was found in them.

    `fingerprint` covers the rows of all splits as they stand in the files, before anything is held
    out or drawn; it does not depend on ids, order, file layout or template. `template` is the one
    used ("none": the rows bring their own prompts). `problems` is JSON: counts, rows_read,
    rows_dropped, examples, notes, facts, and `duplicates` between train and the others.
    """

    splits: dict[str, list[Sample]]
    source: str
    revision: str | None
    licence: str
    fingerprint: str
    template: str
    note: str = ""
    problems: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        return f"InstructionData({self.source}: {parts}; template {self.template})"

    def _repr_html_(self) -> str:
        like = self.problems.get("duplicates", {}).get("train_rows_like", {})
        head = ("split", "rows", "characters per answer", "train rows like these")
        rows = ""
        for name, samples in self.splits.items():
            mean = sum(len(s.completion) for s in samples) / len(samples) if samples else 0
            shared = str(sum(like[name].values())) if name in like else ""
            cells = (name, f"{len(samples):,}", f"{mean:,.0f}", shared)
            rows += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
        caption = html.escape(f"{self!r}; fingerprint {self.fingerprint[:12]}")
        titles = "".join(f"<th>{title}</th>" for title in head)
        return left(f"<table><caption>{caption}</caption><tr>{titles}</tr>{rows}</table>")


def load_instructions(
    source: str,
    *,
    revision: str | None = None,
    template: str = "auto",
    on_bad_rows: Policy = "stop",
    train_fraction: float = 1.0,
    max_train_samples: int | None = None,
    valid_samples: int = 200,
    eval_samples: int = 100,
    split_seed: int = 0,
    seed: int = 0,
    remove_duplicates: bool = False,
    tokenizer: Any = None,
) -> InstructionData:
    """Load instructions, hold out evaluation rows, and put each row in a template.

    Args:
        source: `smoke`, a file or a folder (JSON, JSON Lines, CSV, Parquet), or a data set on the
            hub as `owner/name`.
        revision: Branch, tag or commit on the hub; the commit it stood for is recorded.
        template: One of `checks_finetune.TEMPLATES`.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows
            and records it.
        train_fraction: Share of the train rows to use, drawn with `seed`.
        max_train_samples: Upper limit on the train rows, applied after the fraction.
        valid_samples: Rows for the loss during training.
        eval_samples: Rows of the test split.
        split_seed: Of the rows held out where the data has no such split.
        seed: Of the draw of train rows; it leaves the held-out rows alone.
        remove_duplicates: Drop train rows that equal or nearly equal an evaluation row, or ask the
            same question.
        tokenizer: Of the model; for the template `chat` only.

    Raises:
        DataError: The data cannot be found, reached or read, rows are bad and the policy is
            `stop`, or there are too few rows.
        ConfigError: An argument is out of range, or the template cannot be used.
    """
    check_choice(on_bad_rows, train_fraction)
    _check_whole(valid_samples=valid_samples, eval_samples=eval_samples)
    if max_train_samples is not None:
        _check_whole(max_train_samples=max_train_samples)
    log = ProblemLog(on_bad_rows, source)
    raw = read_source(source, revision, log)
    fingerprint = _fingerprint(raw.splits)
    sizes = {"valid_samples": valid_samples, "eval_samples": eval_samples}
    try:
        splits = hold_out(official_splits(raw.splits, log), **sizes, split_seed=split_seed, log=log)
    except DataError as error:  # rows that were left out may be why there are too few
        found = log.freeze()
        message = f"{error.message} {found.left_out()}".rstrip()
        raise DataError(message, fix=error.fix, details=found.report()) from error
    log.facts["rows"] = {name: len(rows) for name, rows in splits.items()}
    splits, duplicates = compare_splits(splits, log, remove=remove_duplicates)
    splits["train"] = limit_train(
        splits["train"], fraction=train_fraction, max_samples=max_train_samples, seed=seed
    )
    used = resolve_template(template, splits["train"][0].row.form, tokenizer)
    if used == AS_WRITTEN and template != "auto":
        log.add("own_prompts", splits["train"][0].file, None, f"template={template}")
    return InstructionData(
        splits={name: _samples(rows, used, tokenizer) for name, rows in splits.items()},
        source=raw.source,
        revision=raw.revision,
        licence=raw.licence,
        fingerprint=fingerprint,
        template=used,
        note=raw.note,
        problems=log.freeze().to_dict() | {"duplicates": duplicates},
    )


def _check_whole(**values: object) -> None:
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise ConfigError(
                f"{name}={value!r} is no whole number from 1 up.", fix=f"set {name}=100, say."
            )


def _samples(rows: list[PlacedRow], template: str, tokenizer: Any) -> list[Sample]:
    samples = []
    for placed in rows:
        try:
            samples.append(Sample(placed.id, *render(placed.row, template, tokenizer)))
        except DataError as error:
            raise DataError(
                f"{placed.file}:{placed.line}: {error.message}", fix=error.fix
            ) from error
    return samples


def _fingerprint(splits: dict[str, list[PlacedRow]]) -> str:
    """SHA-256 of what the rows say: sorted digests of their texts, per split."""
    total = hashlib.sha256()
    for name in sorted(splits):
        digests = sorted(hashlib.sha256(repr(p.row).encode()).digest() for p in splits[name])
        total.update(f"\n{name} {len(digests)}\n".encode() + b"".join(digests))
    return total.hexdigest()
