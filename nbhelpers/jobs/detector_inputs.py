"""The programs of a detector run as token ids: rows, their edited variants, further data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.common.formatting import number
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.pool import begin, worthwhile
from nbhelpers.common.result_files import DetectorFile, Record
from nbhelpers.data.audit import Audit, audit
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection import (
    DetectionData,
    data_arguments,
    load_detection_data,
    read_rows,
)
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.data.detection_splits import NearRows
from nbhelpers.data.edits import EDITS, FULL_LANGUAGES, edit_rows
from nbhelpers.data.findings import Findings
from nbhelpers.data.languages import language_of
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.models.detector import FACTS_FILE, build_detector_tokenizer, reading_form
from nbhelpers.jobs.models.encoders import Tokeniser
from nbhelpers.jobs.models.inputs import TokenTable, tokenise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.data.detection_early import Early


# ------------------------------------------------------------------------------------------------
# Further programs for a trained detector: only those that its training cannot have known.


REASONS = {
    "other_language": "in other languages",
    "not_human": "not human",
    "repeated": "repeated",
    "same_code": "known from train or valid",
    "task": "of a task of train or valid",
    "author": "by an author of train or valid",
    "near_code": "like a program of train or valid",
}


def new_rows(
    rows: Sequence[CodeRow],
    known: Sequence[CodeRow],
    *,
    languages: Sequence[str] = (),
    only_humans: bool = False,
) -> tuple[list[CodeRow], dict[str, int]]:
    """Return the rows that are new beside the known ones, and how many are left out by reason.

    A row that shares its task with train is no test of retrieval, and one that is like a known
    program, or by a known person, is not unseen. Valid counts as known: the threshold and the best
    checkpoint were chosen on it.

    Args:
        rows: In their order; of equal texts the first stays.
        known: Rows of train and valid.
        languages: Keep the rows in these; none: all.
        only_humans: Leave out AI code, and code of the known rows' authors.
    """
    people = {row.author.casefold() for row in known if row.label != "ai"} - {""}
    tasks = {row.task for row in known} - {""}
    texts = {canonical(row.code, "flat") for row in known}
    seen: set[str] = set()

    asked = {language_of(name) for name in languages}

    def reasons(row: CodeRow, text: str) -> Iterator[str]:
        if asked and row.language not in asked:
            yield "other_language"
        if only_humans and row.label == "ai":
            yield "not_human"
        if text in seen:
            yield "repeated"
        if text in texts:
            yield "same_code"
        if row.task in tasks:
            yield "task"
        if only_humans and row.author.casefold() in people:
            yield "author"

    unseen_rows, left_out = [], Counter[str]()
    for row in rows:
        text = canonical(row.code, "flat")
        reason = next(reasons(row, text), None)
        if reason is None:
            seen.add(text)
            unseen_rows.append(row)
        else:
            left_out[reason] += 1
    like = _like(unseen_rows, known)
    left_out["near_code"] = int(like.sum())
    unseen_rows = [row for row, is_like in zip(unseen_rows, like, strict=True) if not is_like]
    return unseen_rows, {reason: left_out[reason] for reason in REASONS if left_out[reason]}


def _like(rows: Sequence[CodeRow], known: Sequence[CodeRow]) -> np.ndarray:
    """Return (rows,) whether each resembles a known one."""
    texts = [canonical(row.code, "text") for row in (*known, *rows)]
    places = np.arange(len(texts))
    return NearRows(texts).like(places[len(known) :], places[: len(known)]) >= 0


def left_out_said(left_out: dict[str, int]) -> str:
    """Write how many rows are left out, and why.

    >>> left_out_said({"task": 2, "near_code": 1})
    '2 of a task of train or valid, 1 like a program of train or valid'
    """
    return ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in left_out.items())


# ------------------------------------------------------------------------------------------------
# What an evaluation must share with the training of its detector, and what it must not.


MODEL = ("objective", "pooling", "similarity_pooling", "projection_size")


def require_alike(checkpoint: Path | None, settings: Mapping[str, Any]) -> None:
    """Stop where settings are not those that the checkpoint's `detector.json` tells.

    Raises:
        ConfigError: Names each.
    """
    if checkpoint is None:
        return
    facts = read_raw(DetectorFile, checkpoint.parent / FACTS_FILE)
    odd = [name for name, value in settings.items() if name in facts and facts[name] != value]
    if odd:
        raise ConfigError(
            f"{checkpoint.parent.name} was trained with "
            f"{', '.join(f'{name}={facts[name]}' for name in odd)}, and is to be scored with "
            f"{', '.join(f'{name}={settings[name]}' for name in odd)}.",
            fix=" ".join(f"-o {name}={facts[name]}" for name in odd),
        )


def without_known(context: RunContext, data: DetectionData) -> DetectionData:
    """Return the data of an evaluation without test rows that its detector was trained on.

    Other splits of the same data, or other data that share rows with them, put programs of the
    training into the test.

    Raises:
        DataError: Nothing is left, or one class.
    """
    if context.checkpoint is None:
        return data
    record = read_raw(Record, context.checkpoint.parents[2] / "run.json")
    trained_settings = (record.get("preset") or {}).get("settings")
    if not trained_settings or data_arguments(trained_settings) == data_arguments(context.settings):
        return data
    try:
        trained = load_detection_data(**data_arguments(trained_settings))
    except DataError as error:
        context.warn(f"Whether the test holds programs of the training is not known: {error}")
        return data
    known = [trained.rows[at] for name in ("train", "valid") for at in trained.splits[name]]
    splits = dict(data.splits)
    for name in ("test", "held_out"):
        if name not in splits:
            continue
        rows = [data.rows[at] for at in splits[name]]
        unseen_rows, left_out = new_rows(rows, known)
        ids = {id(row) for row in unseen_rows}
        splits[name] = splits[name][np.array([id(row) in ids for row in rows], dtype=bool)]
        if left_out:
            context.warn(
                f"{name}: {len(rows) - len(unseen_rows):,} of {len(rows):,} programs are left out: "
                f"{left_out_said(left_out)}."
            )
    _require_rows(data, splits["test"], is_labelled=context.settings.objective != "similar")
    return replace(data, splits=splits)


def _require_rows(data: DetectionData, test: np.ndarray, *, is_labelled: bool) -> None:
    labels = {data.rows[at].label for at in test}
    if len(labels) < (2 if is_labelled else 1):
        left = f"all but {next(iter(labels))} code" if labels else "every program"
        raise DataError(
            f"In the test split of {data.source} {left} is known to the detector from its "
            "training.",
            fix="leave the split as the run had it, or name data that are new to it; for people's "
            "code alone set unseen_humans",
        )


# ------------------------------------------------------------------------------------------------
# The programs of a detector run as token ids: rows, their edited forms, and further data.


ABSENT = -1  # in a list of table rows: this program has no such form
LABELS = {"human": 0, "ai": 1, None: -1}
SCORED = ("valid", "test", "held_out")


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run, tokenised.

    Args:
        rows: (rows of the data,) row of each program in the token table.
        forms: By edit, (train rows,) table rows of the edited train programs, or `ABSENT`.
        edits: By edit, (test rows,) the same of the test programs that it changes.
        edited_codes: By edit, the texts of the edited test programs, for the floors.
        others: Name of further programs (`unseen_humans`, `retrieval_data`) to rows and table rows.
        left_out: By name, how many of them were read, and how many are left out by reason.
        form: In which the tokenizer was given the programs.
        floors: Waits for the floors that are fitted beside the training; None: they are fitted
            when they are needed.
        similarity: Likewise, the baseline of the similarity space by split.
    """

    data: DetectionData
    audit: dict[str, Any] | None
    table: TokenTable
    found: Tokeniser
    rows: NDArray[np.int64]
    forms: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    edits: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    edited_codes: dict[str, list[str | None]] = field(default_factory=dict)
    others: dict[str, tuple[list[CodeRow], NDArray[np.int64]]] = field(default_factory=dict)
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    form: str = ""
    floors: Callable[[], Any] | None = None
    similarity: Callable[[], Any] | None = None

    @property
    def truncated(self) -> int:
        """Programs of the data that are longer than `seq_len`; edited forms do not count."""
        special = 1 + (self.table.bos_id is not None)
        lengths = np.diff(self.table.offsets)[self.rows] + special
        return int((lengths > self.table.seq_len).sum())

    def labels(self, split: str) -> NDArray[np.int64]:
        """(rows of the split,) 0 human, 1 AI, -1 without a label."""
        picked = self.data.splits[split]
        return np.array([LABELS[self.data.rows[row].label] for row in picked], dtype=np.int64)

    def split_rows(self, split: str) -> list[CodeRow]:
        """The programs of a split."""
        return [self.data.rows[row] for row in self.data.splits[split]]


class _Texts:
    """Texts in the order in which they were added, in the canonical form."""

    def __init__(self, form: str) -> None:
        self.form, self.texts = form, []

    def add(self, codes: Sequence[str | None]) -> NDArray[np.int64]:
        """Return the place of each; `ABSENT` where there is none."""
        places = np.full(len(codes), ABSENT, dtype=np.int64)
        for at, code in enumerate(codes):
            if code is not None:
                places[at] = len(self.texts)
                self.texts.append(canonical(code, self.form))
        return places


def read_inputs(context: RunContext) -> Inputs:
    """Read, audit, edit and tokenise."""
    s = context.settings
    require_alike(context.checkpoint, {name: getattr(s, name) for name in MODEL})
    early: Early | None = context.early
    data = early.data() if early else load_detection_data(**data_arguments(s))
    context.warn_all(data.warnings)
    data = without_known(context, data)
    is_audited = s.objective != "similar" and context.is_main  # once, not in every process
    verdict = _begin_audit(context, data) if is_audited else None
    texts = _Texts(s.canonical)
    rows = texts.add([row.code for row in data.rows])
    is_trained = context.checkpoint is None
    variants, edits, edited = {}, {}, {}
    if is_trained and s.augment_share:
        codes, languages = _of(data, "train")
        for name in _forms(s.augment):
            variants[name] = texts.add(_edited(context, codes, languages, name, "augment"))
    if s.edit_suite and s.objective != "similar":
        codes, languages = _of(data, "test")
        for name in EDITS:
            edited[name] = _edited(context, codes, languages, name, "edit suite")
            edits[name] = texts.add(edited[name])
    others, left_out = {}, {}
    further = {"unseen_humans": s.unseen_humans, "retrieval_data": s.retrieval_data}
    for name, source in further.items():
        if source is not None:
            new, left_out[name] = _further(context, name, source, data)
            others[name] = (new, texts.add([row.code for row in new]))
    picked = [canonical(row.code, s.canonical) for row in _train_rows(data)]
    tokeniser = build_detector_tokenizer(s, picked)
    form = reading_form(tokeniser.tokenizer, s.canonical, s.objective)
    require_alike(context.checkpoint, {"canonical": form})
    inputs = Inputs(
        data=data,
        audit=None,
        table=_table(context, texts.texts, tokeniser, form),
        found=tokeniser,
        rows=rows,
        forms=variants,
        edits=edits,
        edited_codes=edited,
        others=others,
        left_out=left_out,
        form=form,
    )
    inputs.audit = None if verdict is None else verdict()
    _tell_limits(context, inputs)
    return inputs


def _table(context: RunContext, texts: list[str], tokeniser: Tokeniser, form: str) -> TokenTable:
    s = context.settings
    return tokenise(
        texts if form == s.canonical else [canonical(text, form) for text in texts],
        tokeniser.tokenizer,
        seq_len=s.seq_len,
        vocab_size=tokeniser.config.vocab_size,
        collapse=s.canonical == "flat",
        report=context.progress("tokenise"),
    )


def _begin_audit(context: RunContext, data: DetectionData) -> Callable[[], dict[str, Any]]:
    """Audit the data; return what gives its JSON, or stops the run.

    Many programs are audited by a process of their own, while this one edits and tokenises; few are
    judged at once.
    """
    if context.early is not None:
        return lambda: _judged(context, context.early.audit())
    if worthwhile(sum(len(row.code) for row in data.rows)) < 2:
        verdict = _judged(context, audit(data))
        return lambda: verdict
    audit_report = begin(audit, data)
    return lambda: _judged(context, audit_report())


def _judged(context: RunContext, audit_report: Audit) -> dict[str, Any]:
    """Return an audit's JSON; a hopeless set stops here unless the settings say to go on."""
    if audit_report.verdict == "hopeless":
        if context.settings.on_failed_audit == "stop":
            audit_report.require_usable()
        context.warn("The audit calls the data hopeless: " + "; ".join(audit_report.reasons))
    return audit_report.to_dict()


def _train_rows(data: DetectionData) -> list[CodeRow]:
    return [data.rows[row] for row in data.splits.get("train", ())]


def _of(data: DetectionData, split: str) -> tuple[list[str], list[str]]:
    rows = [data.rows[row] for row in data.splits.get(split, ())]
    return [row.code for row in rows], [row.language for row in rows]


def _forms(augment: Sequence[str]) -> list[str]:
    """Return the edits that train rows are drawn from: both together where both are asked for."""
    both = {"rename", "reformat"} <= set(augment)
    return [*augment, *(["rename_reformat"] if both else [])]


def _edited(
    context: RunContext, codes: list[str], languages: list[str], name: str, what: str
) -> list[str | None]:
    # Other names and styles than those of the test: a seed of its own.
    seed = context.settings.seed if what == "augment" else 10_000 + context.settings.seed
    edited = edit_rows(codes, languages, name, seed=seed, report=context.progress(what))
    return only_changed(codes, edited, context.settings.canonical)


def only_changed(codes: Sequence[str], edited: Sequence[str | None], form: str) -> list[str | None]:
    """Return the edited programs, None where the model would read the same text as before.

    A program without comments is not one whose comments were stripped: counted as edited, it would
    hide what the edit does to the others.
    """
    return [
        None if new is None or canonical(new, form) == canonical(code, form) else new
        for code, new in zip(codes, edited, strict=True)
    ]


def _further(
    context: RunContext, name: str, source: str, data: DetectionData
) -> tuple[list[CodeRow], dict[str, int]]:
    """Read further programs, without those that the training has seen; and what is left out."""
    s = context.settings
    known = [data.rows[row] for split in ("train", "valid") for row in data.splits.get(split, ())]
    findings = Findings(s.on_bad_rows, source)
    rows = read_rows(source, findings=findings, what=name)
    context.warn_all([f"{name}: {warning}" for warning in findings.warnings()])
    is_human = name == "unseen_humans"
    # A rate over languages that the training never saw would promise what no one gets.
    languages = s.languages or sorted({row.language for row in known} if is_human else ())
    unseen_rows, left_out = new_rows(rows, known, languages=languages, only_humans=is_human)
    if not unseen_rows:
        raise DataError(
            f"{name}={source} holds no program that is new to the training: "
            f"{left_out_said(left_out) or 'it is empty'}.",
            fix=f"name other data, or leave {name} out",
        )
    if left_out:
        context.warn(
            f"{name}: {len(rows) - len(unseen_rows):,} of {len(rows):,} programs are left out: "
            f"{left_out_said(left_out)}."
        )
    return unseen_rows, {"rows_read": len(rows), **left_out}


def _tell_limits(context: RunContext, inputs: Inputs) -> None:
    s = context.settings
    others = sorted({row.language for row in inputs.data.rows} - set(FULL_LANGUAGES))
    if others and {*inputs.forms, *inputs.edits} - {"strip_comments"}:
        context.warn(
            f"Programs in {', '.join(others)} are neither renamed nor reformatted, only those in "
            f"{' and '.join(FULL_LANGUAGES)} are."
        )
    if context.checkpoint is None and s.freeze_epochs >= s.epochs:
        context.warn(
            f"The encoder never learns: freeze_epochs={s.freeze_epochs} of epochs={s.epochs}."
        )
    if inputs.truncated:
        share = inputs.truncated / len(inputs.rows)
        verb = "is" if inputs.truncated == 1 else "are"
        context.warn(
            f"{number(inputs.truncated, 'program')} ({share:.1%}) {verb} longer than "
            f"seq_len={inputs.table.seq_len} and {verb} cut."
        )
