"""Detection data: rows of human and AI code, split so that nothing is shared, with a full account.

Rows come from JSONL, JSON, CSV, TSV or Parquet files, a folder of them, a data set on the hub, code
files in two folders `human/` and `ai/`, or, without labels, any code file or folder.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbhelpers.common.display import Table
from nbhelpers.common.processes import garbage_stays
from nbhelpers.data.detection_rows import CodeRow, labels_read
from nbhelpers.data.detection_sources import RawRows, missing, read_source
from nbhelpers.data.detection_splits import (
    Pool,
    components,
    distinct_rows,
    draw_train,
    hold_out_rows,
    hold_out_values,
    make_pool,
    overlap_of,
    split_place,
    split_rows,
    wanted_rows,
)
from nbhelpers.data.files import check_choice, check_whole
from nbhelpers.data.findings import Findings, Policy
from nbhelpers.data.languages import language_of
from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CodeRow", "DetectionData", "hold_outs", "load_detection_data", "read_rows"]

SPLIT_CHOICES = ("auto", "given", "task")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectionData:
    """Distinct rows of code, the row numbers of each split, and what was found in them.

    `splits` has "train", "valid", "test" and, where something is held out, "held_out"; a row may be
    in none. `fingerprint` covers the rows as read, before anything is left out or drawn; it does
    not depend on ids, order or file layout. `problems` and `overlap` are JSON, `warnings` sentences
    on what is left out or not read.
    """

    rows: tuple[CodeRow, ...]
    splits: dict[str, NDArray[np.int64]]
    source: str
    revision: str | None
    licence: str
    fingerprint: str
    note: str
    canonical: str
    problems: dict[str, Any]
    overlap: dict[str, Any]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The `data` part of `result.json`."""
        return {
            "source": self.source,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "licence": self.licence,
            "note": self.note,
            "canonical": self.canonical,
            "n_rows": len(self.rows),
            "splits": {name: self._counts(name) for name in self.splits},
            "problems": self.problems,
            "overlap": self.overlap,
        }

    def _counts(self, name: str) -> dict[str, Any]:
        rows = [self.rows[at] for at in self.splits[name].tolist()]
        counts: dict[str, Any] = {
            "rows": len(rows),
            "tasks": len({row.task for row in rows if row.task}),
            **Counter(row.label or "unlabelled" for row in rows),
        }
        for field in ("language", "source", "generator"):
            pairs = Counter((getattr(row, field) or "unknown", row.label) for row in rows)
            table: dict[str, dict[str, int]] = {}
            for (value, label), n in sorted(pairs.items(), key=str):
                table.setdefault(value, {})[label or "unlabelled"] = n
            counts[f"{field}s"] = table
        return counts

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(numbers):,}" for name, numbers in self.splits.items())
        return f"DetectionData({self.source}: {parts})"

    def _repr_html_(self) -> str:
        rows = []
        for name in self.splits:
            counts = self._counts(name)
            numbers = [counts.get(key, 0) for key in ("rows", "human", "ai", "tasks")]
            rows.append((name, *numbers, ", ".join(counts["languages"])))
        heads = ("split", "rows", "human", "AI", "tasks", "languages")
        return Table(heads, rows, f"{self!r}; fingerprint {self.fingerprint[:12]}").html()


def read_rows(
    source: str,
    *,
    revision: str | None = None,
    on_bad_rows: Policy = "stop",
    findings: Findings | None = None,
    label_is_task: bool = False,
    what: str = "data",
) -> list[CodeRow]:
    """Read all usable rows of a source, repeats included, without splits.

    Args:
        source: As for `load_detection_data`; also a code file, or a folder of code files.
        revision: Branch, tag or commit on the hub.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows.
        findings: Collects what is found; its policy is used in place of `on_bad_rows`.
        label_is_task: A column `label` names the task where no other does, unless all its values
            are labels.
        what: Name of the parameter, for errors.

    Raises:
        DataError: Nothing is there, it cannot be read, or rows are bad and the policy is `stop`.
    """
    check_choice(on_bad_rows, 1.0)
    own = findings if findings is not None else Findings(on_bad_rows, str(source))
    return read_source(source, revision, own, label_is_task=label_is_task, what=what).rows


def hold_outs(data: DetectionData | Sequence[CodeRow]) -> list[str]:
    """Every value that `hold_out` can take for these rows, so that each can be left out once."""
    return hold_out_values(data.rows if isinstance(data, DetectionData) else data)


def data_arguments(settings: Any) -> dict[str, Any]:
    """Return what `load_detection_data` takes, from settings or their saved form."""
    s: Any = SimpleNamespace(**settings) if isinstance(settings, Mapping) else settings
    return {
        "source": s.data,
        "revision": s.data_revision,
        "on_bad_rows": s.on_bad_rows,
        "canonical": s.canonical,
        "languages": tuple(s.languages),
        "split": s.split,
        "split_seed": s.split_seed,
        "valid_share": s.valid_share,
        "test_share": s.test_share,
        "hold_out": s.hold_out,
        "train_fraction": s.train_fraction,
        "max_train_samples": s.max_train_samples,
        "seed": s.seed,
        "labelled": s.objective != "similar",
    }


@garbage_stays()
def load_detection_data(
    source: str,
    *,
    revision: str | None = None,
    on_bad_rows: Policy = "stop",
    canonical: str = "text",
    languages: Sequence[str] = (),
    split: str = "auto",
    split_seed: int = 0,
    valid_share: float = 0.1,
    test_share: float = 0.1,
    hold_out: str | None = None,
    train_fraction: float = 1.0,
    max_train_samples: int | None = None,
    seed: int = 0,
    labelled: bool = True,
) -> DetectionData:
    """Load rows of code, leave repeats out, and split them so that nothing is shared.

    Rows of one text (in canonical form) count once; a text with both labels is left out. Splits
    share no task, no author and no (near-)duplicate code: given ones lose the rows that do, drawn
    ones keep together what belongs together. Both are asserted at the end.

    Args:
        source: `smoke`, a file, archive or folder of rows, a folder of `save_to_disk`, one with
            code files in `human/` and `ai/`, or a data set on the hub, which may have a
            configuration and a split: `owner/name:configuration:split`.
        revision: Branch, tag or commit on the hub; the commit it stood for is recorded.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows.
        canonical: Form in which texts are compared: raw, text or flat.
        languages: Keep the rows in these; none: all.
        split: `given`: the splits of the data; `task`: drawn; `auto`: given where there are any.
        split_seed: Of the drawn splits.
        valid_share: Share of the rows for validation, where it is drawn.
        test_share: Share of the rows for test, where it is drawn.
        hold_out: `source=NAME`, `generator=NAME` or `language=NAME`: see `hold_outs`.
        train_fraction: Share of the train rows to use: whole tasks, drawn with `seed`.
        max_train_samples: Upper limit on the train rows, applied after the fraction.
        seed: Of the draw of train rows; it leaves the other splits alone.
        labelled: Rows need a label; without, they need a task.

    Raises:
        DataError: The data cannot be found, reached or read, rows are bad and the policy is
            `stop`, a class is missing, or no split is possible.
        ConfigError: An argument is out of range.
    """
    _check(split, valid_share, test_share, max_train_samples, split_seed, seed)
    check_choice(on_bad_rows, train_fraction)
    findings = Findings(on_bad_rows, str(source))
    raw = read_source(source, revision, findings, label_is_task=not labelled)
    fingerprint = _fingerprint(raw)
    pool, counts = _pool(raw, findings, canonical, languages, labelled=labelled)
    if hold_out is not None:
        wanted_rows(pool.rows, hold_out)  # a name that is not there is told before the long search
    splits, how = split_rows(
        pool, split=split, seed=split_seed, valid_share=valid_share, test_share=test_share
    )
    if hold_out is not None:
        splits, how["hold_out"] = hold_out_rows(pool, splits, hold_out)
    overlap = overlap_of(pool, splits)  # holds for any part of train as well
    splits["train"] = _train(pool, splits["train"], train_fraction, max_train_samples, seed)
    _check_classes(pool, splits)
    return DetectionData(
        rows=tuple(pool.rows),
        splits=splits,
        source=raw.source,
        revision=raw.revision,
        licence=raw.licence,
        fingerprint=fingerprint,
        note=raw.note,
        canonical=canonical,
        problems=findings.to_dict() | counts | {"split": how},
        warnings=findings.warnings(),
        overlap=overlap,
    )


def _check(
    split: str,
    valid_share: float,
    test_share: float,
    max_train_samples: int | None,
    split_seed: int,
    seed: int,
) -> None:
    if split not in SPLIT_CHOICES:
        raise ConfigError(f"split={split!r} is not known.", fix='use "auto", "given" or "task".')
    for name, share in (("valid_share", valid_share), ("test_share", test_share)):
        if not isinstance(share, int | float) or not 0 < share < 0.5:
            raise ConfigError(f"{name}={share!r} is not in (0, 0.5).", fix=f"set {name}=0.1.")
    check_whole(0, seed=seed, split_seed=split_seed)
    if max_train_samples is not None:
        check_whole(1, max_train_samples=max_train_samples)


def _pool(
    raw: RawRows, findings: Findings, form: str, languages: Sequence[str], *, labelled: bool
) -> tuple[Pool, dict[str, Any]]:
    """Distinct rows that have what the objective needs, and how many were left out and why."""
    keep = _needed(raw, findings, languages, labelled=labelled)
    rows = [raw.rows[at] for at in keep]
    if labelled:
        _check_both(rows, raw.source)
    distinct = distinct_rows(rows, form, findings, labelled=labelled)
    findings.stop_if_needed()
    counts = {
        "rows_usable": len(raw.rows),
        "rows_distinct": len(distinct.kept),
        "duplicates": {"same_code": distinct.n_same, "both_classes": distinct.n_conflicts},
    }
    rows = [rows[at] for at in distinct.kept]
    if labelled:
        _check_both(rows, raw.source)
    pool = make_pool(rows, distinct.texts, findings, labelled=labelled)
    near = int((pool.ties.code != range(len(rows))).sum())
    counts["duplicates"] |= {"near_code": near}
    counts["rows_without"] = {
        "task": sum(not row.task for row in rows),
        "author": sum(not row.author for row in rows),
    }
    return pool, counts


def _needed(
    raw: RawRows, findings: Findings, languages: Sequence[str], *, labelled: bool
) -> list[int]:
    what = "label" if labelled else "task"
    has = [row.label is not None if labelled else bool(row.task) for row in raw.rows]
    if not any(has):
        fix = (
            f"add a column label; read are {labels_read()}. Or set objective=similar, which needs "
            "tasks alone."
            if labelled
            else "add a column task that names what each program solves."
        )
        raise missing(raw, what, fix)
    for at, row in enumerate(raw.rows):
        if not has[at]:
            findings.add(f"no_{what}", *split_place(row.place))
    findings.stop_if_needed()
    keep = [at for at, is_there in enumerate(has) if is_there]
    if not languages:
        return keep
    asked = {language_of(name) for name in languages}
    chosen = [at for at in keep if raw.rows[at].language in asked]
    if not chosen:
        there = Counter(raw.rows[at].language or "unknown" for at in keep)
        raise DataError(
            f"languages={list(languages)} leaves no row of {raw.source}.",
            fix=f"choose among {', '.join(name for name, _ in there.most_common(12))}.",
        )
    if len(chosen) < len(keep):
        findings.add("other_language", raw.source, None, n=len(keep) - len(chosen))
    return chosen


def _check_both(rows: Sequence[CodeRow], source: str) -> None:
    labels = Counter(row.label for row in rows)
    if len(labels) == 2:
        return
    if not labels:
        raise DataError(
            f"{source} has no usable row: every text stands under both labels.",
            fix="keep one label for each program.",
        )
    there = next(iter(labels))
    lack = "AI" if there == "human" else "human"
    alone = "; a trained detector takes people's code alone as unseen_humans"
    raise DataError(
        f"{source} has one class only: all {len(rows):,} usable rows are {there}. "
        f"With no {lack} code there is nothing to tell apart, and ROC-AUC is undefined.",
        fix=f"add {lack} rows of the same tasks; or set objective=similar, which needs no labels"
        f"{alone if lack == 'AI' else ''}.",
    )


def _train(
    pool: Pool,
    train: NDArray[np.int64],
    fraction: float,
    max_samples: int | None,
    seed: int,
) -> NDArray[np.int64]:
    rows = [pool.rows[at] for at in train.tolist()]
    groups = components(len(rows), [pool.ties.task[train]])
    drawn = draw_train(rows, groups, fraction=fraction, max_samples=max_samples, seed=seed)
    if len(drawn) < len(train):
        pool.findings.add("draw", *split_place(rows[0].place), n=len(train) - len(drawn))
    return train[drawn]


def _check_classes(pool: Pool, splits: dict[str, NDArray[np.int64]]) -> None:
    for name in ("train", "valid", "test"):
        numbers = splits[name]
        if not len(numbers):
            raise DataError(
                f"The split {name} has no rows left.",
                fix="set split=task to have splits drawn, or raise train_fraction or "
                "max_train_samples."
                if name == "train"
                else "set split=task to have splits drawn.",
                details=pool.findings.report(),
            )
        labels = pool.labels(numbers)
        if not pool.labelled or len(labels) == 2:
            continue
        only = next(iter(labels))
        lack = "AI" if only == "human" else "human"
        why = {
            "train": "a model would learn to say one thing",
            "valid": "ROC-AUC would be undefined, and a threshold cannot be chosen",
            "test": "ROC-AUC would be undefined",
        }[name]
        raise DataError(
            f"The split {name} has one class only: all {len(numbers):,} rows are {only}; {why}.",
            fix=f"give it {lack} rows, or set split=task to have splits with both classes drawn"
            + (", or raise train_fraction." if name == "train" else "."),
            details=pool.findings.report(),
        )


def _fingerprint(raw: RawRows) -> str:
    """SHA-256 of what the rows say: sorted digests, per given split."""
    total = hashlib.sha256()
    by_split: dict[str, list[bytes]] = {}
    for row in raw.rows:
        contents = (
            row.code,
            row.label,
            row.language,
            row.task,
            row.author,
            row.generator,
            row.source,
        )
        by_split.setdefault(row.split, []).append(hashlib.sha256(repr(contents).encode()).digest())
    for split, digests in sorted(by_split.items()):
        total.update(f"\n{split} {len(digests)}\n".encode() + b"".join(sorted(digests)))
    return total.hexdigest()
