"""The programs of a detector run as token ids: rows, their edited forms, and further data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.canonical import canonical, marked
from nbhelpers.data.code_edits import EDITS, edit_rows
from nbhelpers.data.detection import CodeRow, DetectionData, load_detection_data, read_rows
from nbhelpers.data.detection_audit import audit
from nbhelpers.errors import DataError
from nbhelpers.models.detector_build import build_detector_tokenizer, reading_form
from nbhelpers.models.encoders import Tokeniser
from nbhelpers.models.inputs import TokenTable, tokenise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.jobs.session import Session

ABSENT = -1  # in a list of table rows: this program has no such form
LABELS = {"human": 0, "ai": 1, None: -1}
SCORED = ("valid", "test", "held_out")


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run, tokenised.

    Args:
        rows: (rows of the data,) row of each program in the token table.
        forms: By edit, (train rows,) table rows of the edited train programs, or `ABSENT`.
        edits: By edit, (test rows,) the same of the test programs.
        edited_codes: By edit, the texts of the edited test programs, for the floors.
        others: Name of further programs (`unseen_humans`, `retrieval_data`) to rows and table rows.
        form: In which the tokenizer was given the programs.
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
    form: str = ""

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


def read_inputs(session: Session) -> Inputs:
    """Read, audit, edit and tokenise."""
    s = session.settings
    data = _load(session)
    verdict = _audit(session, data) if s.objective != "similar" else None
    texts = _Texts(s.canonical)
    rows = texts.add([row.code for row in data.rows])
    is_trained = session.checkpoint is None
    forms, edits, edited = {}, {}, {}
    if is_trained and s.augment_share:
        codes, languages = _of(data, "train")
        for name in _forms(s.augment):
            forms[name] = texts.add(_edited(session, codes, languages, name, "augment"))
    if s.edit_suite and s.objective != "similar":
        codes, languages = _of(data, "test")
        for name in EDITS:
            edited[name] = _edited(session, codes, languages, name, "edit suite")
            edits[name] = texts.add(edited[name])
    others = {}
    for name in ("unseen_humans", "retrieval_data"):
        if getattr(s, name) is not None:
            found = _further(session, name, data)
            others[name] = (found, texts.add([row.code for row in found]))
    picked = [canonical(row.code, s.canonical) for row in _train_rows(data)]
    found = build_detector_tokenizer(s, picked)
    form = reading_form(found.tokenizer, s.canonical)
    table = tokenise(
        texts.texts if form == s.canonical else [marked(text) for text in texts.texts],
        found.tokenizer,
        seq_len=s.seq_len,
        vocab_size=found.config.vocab_size,
        collapse=s.canonical == "flat",
        report=session.progress("tokenise"),
    )
    _tell_cut(session, table, rows)
    return Inputs(
        data=data,
        audit=verdict,
        table=table,
        found=found,
        rows=rows,
        forms=forms,
        edits=edits,
        edited_codes=edited,
        others=others,
        form=form,
    )


def _load(session: Session) -> DetectionData:
    s = session.settings
    return load_detection_data(
        s.data,
        revision=s.data_revision,
        on_bad_rows=s.on_bad_rows,
        canonical=s.canonical,
        languages=tuple(s.languages),
        split=s.split,
        split_seed=s.split_seed,
        valid_share=s.valid_share,
        test_share=s.test_share,
        hold_out=s.hold_out,
        train_fraction=s.train_fraction,
        max_train_samples=s.max_train_samples,
        seed=s.seed,
        labelled=s.objective != "similar",
    )


def _audit(session: Session, data: DetectionData) -> dict[str, Any]:
    """Audit the data; a hopeless set stops here unless the settings say to go on."""
    found = audit(data)
    if found.verdict == "hopeless":
        if session.settings.on_failed_audit == "stop":
            found.require_usable()
        session.warn("The audit calls the data hopeless: " + "; ".join(found.reasons))
    return found.to_dict()


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
    session: Session, codes: list[str], languages: list[str], name: str, what: str
) -> list[str | None]:
    # Other names and styles than those of the test: a seed of its own.
    seed = session.settings.seed if what == "augment" else 10_000 + session.settings.seed
    return edit_rows(codes, languages, name, seed=seed, report=session.progress(what))


def _further(session: Session, name: str, data: DetectionData) -> list[CodeRow]:
    """Read further programs, without those that the training has seen."""
    s = session.settings
    source = getattr(s, name)
    seen = {canonical(row.code, "flat") for row in _train_rows(data)}
    rows, found = read_rows(source, on_bad_rows=s.on_bad_rows), []
    for row in rows:
        text = canonical(row.code, "flat")
        is_kept = text not in seen and (not s.languages or row.language in s.languages)
        if is_kept and (name != "unseen_humans" or row.label != "ai"):
            seen.add(text)
            found.append(row)
    if not found:
        raise DataError(
            f"{name}={source} holds no program that is new to the training.",
            fix=f"name other data, or leave {name} out",
        )
    if len(found) < len(rows):
        session.warn(
            f"{name}: {len(rows) - len(found)} of {len(rows)} programs are left out: repeated, "
            "known from training, in other languages, or not human."
        )
    return found


def _tell_cut(session: Session, table: TokenTable, rows: NDArray[np.int64]) -> None:
    special = 1 + (table.bos_id is not None)
    cut = int((np.diff(table.offsets)[rows] + special > table.seq_len).sum())
    if cut:
        session.warn(
            f"{cut} programs ({cut / len(rows):.1%}) are longer than seq_len={table.seq_len} and "
            "are cut."
        )
