"""Function pairs in memory: `CloneData`, its splits, and the checks that make them sound."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.common.display import Table
from nbhelpers.data.files import Fault, check_text
from nbhelpers.data.findings import Findings
from nbhelpers.errors import DataError

# ------------------------------------------------------------------------------------------------
# Pairs of functions with a label: the types, what is checked in them, and their fingerprint.
#
# Both forms of the data (a folder in the CodeXGLUE layout, the hub's Parquet rows) end here:
# distinct functions once, and per split three small arrays. File order is kept, because predictions
# are written in it.


FEW_PAIRS = 30  # to train on: nothing can be learnt of fewer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClonePairs:
    """One split: function indices of both members and the label (1 = clone), in file order."""

    left: np.ndarray  # (n_pairs,) int32
    right: np.ndarray  # (n_pairs,) int32
    label: np.ndarray  # (n_pairs,) int8

    def __len__(self) -> int:
        return len(self.label)

    @property
    def prior(self) -> float:
        """Share of clones."""
        return float(self.label.mean()) if len(self) else float("nan")

    def functions(self) -> np.ndarray:
        """Indices of the functions that occur, ascending."""
        if not len(self):
            return np.zeros(0, dtype=np.int32)
        occurs = np.zeros(max(int(self.left.max()), int(self.right.max())) + 1, dtype=bool)
        occurs[self.left] = occurs[self.right] = True
        return np.flatnonzero(occurs).astype(np.int32)

    def take(self, rows: np.ndarray) -> ClonePairs:
        """The pairs at `rows` (indices or a mask)."""
        return ClonePairs(left=self.left[rows], right=self.right[rows], label=self.label[rows])

    def __repr__(self) -> str:
        return f"ClonePairs({len(self):,} pairs, {100 * self.prior:.1f} % clones)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CloneData:
    """Function pairs: each function once, the pairs of every split, and what was found in them.

    `text_group` numbers the whitespace-normalised text of each function, so that two ids of one
    text share a number. `fingerprint` covers texts and labels of the data as read, before
    `train_fraction`; it does not depend on ids, file layout, row order or functions that no pair
    uses.
    """

    ids: list[str]
    functions: list[str]
    text_group: np.ndarray  # (n_functions,) int32
    splits: dict[str, ClonePairs]
    source: str
    revision: str | None
    fingerprint: str
    licence: str
    note: str
    problems: Findings

    @property
    def n_distinct_texts(self) -> int:
        """Functions that differ in more than white space."""
        return int(self.text_group.max()) + 1 if len(self.text_group) else 0

    @property
    def facts(self) -> dict[str, Any]:
        """Answers of `problems.facts`: what the splits share, repeated rows, share of clones."""
        return self.problems.facts

    def seen_members(self, split: str) -> np.ndarray:
        """Number of members of each pair (0, 1, 2) whose text occurs in the train pairs used.

        Raises:
            DataError: The data set has no train split, so that nothing is known of what was seen.
        """
        if "train" not in self.splits:
            raise DataError(
                f"{self.source} has no train split, so it is unknown which texts a model has seen.",
                fix="add train.txt to the folder, or leave out the strata.",
            )
        seen = np.zeros(self.n_distinct_texts, dtype=np.int8)
        seen[self.text_group[self.splits["train"].functions()]] = 1
        pairs = self.splits[split]
        return seen[self.text_group[pairs.left]] + seen[self.text_group[pairs.right]]

    def to_dict(self) -> dict[str, Any]:
        """The `data` part of `result.json`."""
        return {
            "source": self.source,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "licence": self.licence,
            "note": self.note,
            "n_functions": len(self.functions),
            "n_distinct_texts": self.n_distinct_texts,
            "splits": {name: _split_row(pairs) for name, pairs in self.splits.items()},
            "problems": self.problems.to_dict(),
        }

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(pairs):,}" for name, pairs in self.splits.items())
        return f"CloneData({self.source}: {len(self.functions):,} functions; pairs: {parts})"

    def _repr_html_(self) -> str:
        rows = []
        for name, pairs in self.splits.items():
            share = f"{100 * pairs.prior:.1f} %"
            counts = _split_row(pairs)
            rows.append((name, counts["pairs"], counts["clones"], share, counts["functions"]))
        title = f"{self!r}; fingerprint {self.fingerprint[:12]}"
        return Table(("split", "pairs", "clones", "share", "functions"), rows, title).html()


def _split_row(pairs: ClonePairs) -> dict[str, int]:
    return {
        "pairs": len(pairs),
        "clones": int(pairs.label.sum()),
        "functions": len(pairs.functions()),
    }


class RawSplit(NamedTuple):
    """A split as read, before the checks that need all rows; `place(i)` says where row i stands."""

    pairs: ClonePairs
    place: Callable[[int], tuple[str, int]]

    def take(self, rows: np.ndarray) -> RawSplit:
        """The rows of these numbers."""
        return RawSplit(self.pairs.take(rows), lambda row: self.place(int(rows[row])))


class FunctionTable:
    """Distinct functions while they are read: an id names one text, or it names none.

    An id that comes with two texts is withdrawn: which one is meant cannot be known.
    """

    def __init__(self, findings: Findings, *, rows_are_functions: bool) -> None:
        self.findings = findings
        self.ids: list[str] = []
        self.texts: list[str | None] = []
        self.index: dict[str, int] = {}
        self.bad_ids: set[str] = set()
        self._number: dict[str, int] = {}
        self._places: list[tuple[str, int]] = []
        self._repeats_are_notes = rows_are_functions
        self._rows = 1 if rows_are_functions else 0

    def add(self, id_: str, text: str, file: str, line: int) -> int:
        """Number of the function; -1 where the id or the text cannot be used."""
        known = self._number.get(id_)
        if known is not None:
            return self._add_again(known, id_, text, file, line)
        fault = text_fault(text)
        if fault:
            if id_ not in self.bad_ids:
                detail = f"id {id_!r}: {fault.detail}"
                self.findings.add(fault.kind, file, line, detail, rows=self._rows)
            self.bad_ids.add(id_)
            return -1
        if id_ in self.bad_ids:  # its first text was empty, or not text
            self.findings.add(
                "clashing_id",
                file,
                line,
                f"id {id_!r} stood before without a usable text",
                rows=self._rows,
            )
            return -1
        number = len(self.ids)
        self._number[id_] = self.index[id_] = number
        self.ids.append(id_)
        self.texts.append(text)
        self._places.append((file, line))
        return number

    def reject(self, id_: str) -> None:
        """Withdraw an id whose line cannot be used; the caller has logged why."""
        self.bad_ids.add(id_)
        self.index.pop(id_, None)
        if id_ in self._number:
            self.texts[self._number[id_]] = None

    def _add_again(self, number: int, id_: str, text: str, file: str, line: int) -> int:
        if self.texts[number] == text:
            if self._repeats_are_notes:
                self.findings.add("repeated_function", file, line, f"id {id_!r}")
            return number
        first_file, first_line = self._places[number]
        if self.texts[number] is not None:
            detail = f"id {id_!r} has another text at {file}:{line}"
            self.findings.add("clashing_id", first_file, first_line, detail, rows=self._rows)
            self.texts[number] = None
            self.index.pop(id_, None)
            self.bad_ids.add(id_)
        elif not self._repeats_are_notes:
            return -1
        detail = f"id {id_!r} has another text at {first_file}:{first_line}"
        self.findings.add("clashing_id", file, line, detail, rows=self._rows)
        return -1


def text_fault(text: str) -> Fault | None:
    """What makes a text unusable, or None.

    >>> text_fault("int f() { return 1; }") is None
    True
    >>> text_fault("   ").kind
    'empty_function'
    """
    if not text.strip():
        return Fault("empty_function", "no text" if not text else "white space only")
    try:
        check_text(text, "it")
    except Fault as fault:
        return fault
    return None


def text_groups(functions: Iterable[str]) -> np.ndarray:
    """Number each text by its first occurrence, runs of white space taken as one blank.

    >>> text_groups(["int  f()", "int g()", "int f()\\n"]).tolist()
    [0, 1, 0]
    """
    known: dict[str, int] = {}
    return np.array(
        [known.setdefault(" ".join(text.split()), len(known)) for text in functions], dtype=np.int32
    )


def fingerprint(functions: list[str], splits: dict[str, ClonePairs]) -> str:
    """SHA-256 of what the pairs say: texts in use, and sorted (text, text, label) per split."""
    digests = [hashlib.sha256(text.encode()).digest() for text in functions]
    used: set[bytes] = set()
    for pairs in splits.values():
        used.update(digests[i] for i in pairs.functions())
    order = sorted(used)
    number_of = {digest: n for n, digest in enumerate(order)}
    rank = np.array([number_of.get(digest, 0) for digest in digests], dtype=np.int64)
    total = hashlib.sha256(b"".join(order))
    for name in sorted(splits):
        pairs = splits[name]
        key = (rank[pairs.left] * len(order) + rank[pairs.right]) * 2 + pairs.label
        total.update(f"\n{name} {len(pairs)}\n".encode())
        total.update(np.sort(key).astype("<i8").tobytes())
    return total.hexdigest()


def subsample(
    pairs: ClonePairs, *, fraction: float = 1.0, max_samples: int | None = None, seed: int = 0
) -> ClonePairs:
    """Draw without replacement and keep file order: first the fraction, then the upper limit.

    A fraction of n rows is n x fraction rounded down, at least one row.
    """
    draw = np.random.default_rng(seed)
    rows = np.arange(len(pairs))
    wanted = max(1, int(len(rows) * fraction + 1e-9))
    for n in (wanted, max_samples):
        if n is not None and n < len(rows):
            rows = np.sort(draw.choice(rows, n, replace=False))
    return pairs if len(rows) == len(pairs) else pairs.take(rows)


# ------------------------------------------------------------------------------------------------
# Checks that need every row of a split, and the assembly of a `CloneData` from its parts.


def _keys(pairs: ClonePairs, numbers: np.ndarray) -> np.ndarray:
    """One number per unordered pair of `numbers`, so that equal pairs have equal keys."""
    left, right = numbers[pairs.left].astype(np.int64), numbers[pairs.right].astype(np.int64)
    return np.minimum(left, right) * (int(numbers.max()) + 1) + np.maximum(left, right)


def _rows_with_both_labels(keys: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Mask of the rows whose key occurs with label 0 and with label 1."""
    ordered = np.sort(keys * 2 + label)  # a key with both labels: an even number, then the next
    both = ordered[:-1][(ordered[1:] == ordered[:-1] + 1) & (ordered[:-1] % 2 == 0)] // 2
    return np.isin(keys, both) if len(both) else np.zeros(len(keys), dtype=bool)


def _repeats(keys: np.ndarray) -> np.ndarray:
    """Mask of the rows whose key stood in an earlier row."""
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():  # quick to see for the pairs of a full test list
        return np.zeros(len(keys), dtype=bool)
    repeated = np.ones(len(keys), dtype=bool)
    repeated[np.unique(keys, return_index=True)[1]] = False
    return repeated


def _usable(split: RawSplit, table: FunctionTable, findings: Findings) -> np.ndarray:
    """Numbers of the rows to keep; what is wrong with the others is a finding."""
    pairs, keep = split.pairs, np.ones(len(split.pairs), dtype=bool)
    withdrawn = np.array([text is None for text in table.texts] or [False], dtype=bool)
    bad = withdrawn[pairs.left] | withdrawn[pairs.right]
    same = (pairs.left == pairs.right) & ~bad
    keys = _keys(pairs, np.arange(len(withdrawn)))
    both = _rows_with_both_labels(keys, pairs.label) & ~bad & ~same
    for kind, mask in (("bad_function", bad), ("self_pair", same), ("both_labels", both)):
        for row in np.flatnonzero(mask).tolist():
            left, right = table.ids[pairs.left[row]], table.ids[pairs.right[row]]
            detail = f"{left!r}, {right!r}, label {pairs.label[row]}"
            findings.add(kind, *split.place(row), detail)
        keep &= ~mask
    return np.flatnonzero(keep)


def _split_facts(
    name: str, split: RawSplit, groups: np.ndarray, findings: Findings
) -> dict[str, int]:
    """Rows of one split that repeat others or contradict them, each also a note."""
    pairs, numbers = split.pairs, np.arange(len(groups))
    exact = _repeats(pairs.left.astype(np.int64) * len(groups) + pairs.right)
    mirrored = _repeats(_keys(pairs, numbers)) & ~exact
    text_keys = _keys(pairs, groups)
    identical = (groups[pairs.left] == groups[pairs.right]) & (pairs.label == 0)
    conflicts = _rows_with_both_labels(text_keys, pairs.label)
    facts = {}
    for kind, mask in (
        ("duplicate_rows", exact),
        ("mirrored_rows", mirrored),
        ("identical_not_clones", identical),
        ("text_conflicts", conflicts),
    ):
        n = len(np.unique(text_keys[mask])) if kind == "text_conflicts" else int(mask.sum())
        facts[kind] = n
        if n:
            first = f"first of {n:,} in {name}" if "rows" in kind else f"first in {name}"
            findings.add(kind, *split.place(int(np.flatnonzero(mask)[0])), first, n=n)
    if name == "train" and len(pairs) < FEW_PAIRS:
        findings.add("few_rows", *split.place(0), f"train has {len(pairs):,}")
    if pairs.prior in (0.0, 1.0):
        findings.add("one_label", name, None, f"every label is {int(pairs.prior)}")
    return facts


def _shared(
    raw: dict[str, RawSplit], groups: np.ndarray, findings: Findings
) -> dict[str, dict[str, int]]:
    """What every two splits share: ids, texts (functions of the second), pairs."""
    shared: dict[str, dict[str, int]] = {"ids": {}, "texts": {}, "pairs": {}}
    members = {name: split.pairs.functions() for name, split in raw.items()}
    numbers = np.arange(len(groups))
    for one, other in combinations(raw, 2):
        label = f"{one}/{other}"
        n_ids = len(np.intersect1d(members[one], members[other]))
        shared["ids"][label] = n_ids
        in_one = np.isin(groups[members[other]], groups[members[one]])
        shared["texts"][label] = int(in_one.sum())
        if n_ids:
            findings.add("shared_ids", other, None, label, n=n_ids)
            pairs = np.isin(_keys(raw[other].pairs, numbers), _keys(raw[one].pairs, numbers))
            shared["pairs"][label] = n_pairs = int(pairs.sum())
            if n_pairs:
                place = raw[other].place(int(np.flatnonzero(pairs)[0]))
                findings.add("shared_pairs", *place, label, n=n_pairs)
    return shared


def _facts(raw: dict[str, RawSplit], groups: np.ndarray, findings: Findings) -> dict[str, Any]:
    facts = {name: _split_facts(name, split, groups, findings) for name, split in raw.items()}
    shared = _shared(raw, groups, findings)

    def of(kind: str) -> dict[str, int]:
        return {name: counts[kind] for name, counts in facts.items()}

    return {
        "functions": len(groups),
        "distinct_texts": int(groups.max()) + 1,
        "share_of_clones": {name: split.pairs.prior for name, split in raw.items()},
        "repeated_rows": of("duplicate_rows"),
        "mirrored_rows": of("mirrored_rows"),
        "identical_texts_with_label_0": of("identical_not_clones"),
        "text_pairs_with_both_labels": of("text_conflicts"),
        "ids_in_both": shared["ids"],
        "functions_of_the_second_whose_text_is_in_the_first": shared["texts"],
        "pairs_in_both": shared["pairs"],
    }


def assemble(
    table: FunctionTable,
    raw: dict[str, RawSplit],
    findings: Findings,
    *,
    source: str,
    revision: str | None,
    licence: str,
    note: str = "",
) -> CloneData:
    """Check the rows against each other, apply the policy, and build the data set.

    Raises:
        DataError: With the whole report, where the policy is `stop` and a row is bad, or a split
            is left empty.
    """
    usable = {name: _usable(split, table, findings) for name, split in raw.items()}
    findings.stop_if_needed()
    for name, rows in usable.items():
        if not len(rows):
            findings.add("no_rows_left", name, None, "every row was dropped")
    findings.stop_if_needed()
    # Withdrawn functions are left out, and the pairs numbered anew.
    keep = [at for at, text in enumerate(table.texts) if text is not None]
    number = np.full(len(table.texts), -1, dtype=np.int32)
    number[keep] = np.arange(len(keep), dtype=np.int32)
    for name, rows in usable.items():
        pairs, place = raw[name].take(rows)
        left, right = number[pairs.left], number[pairs.right]
        raw[name] = RawSplit(ClonePairs(left=left, right=right, label=pairs.label), place)
    functions = [table.texts[at] or "" for at in keep]
    splits = {name: split.pairs for name, split in raw.items()}
    groups = text_groups(functions)
    findings.facts = _facts(raw, groups, findings)
    return CloneData(
        ids=[table.ids[at] for at in keep],
        functions=functions,
        text_group=groups,
        splits=splits,
        source=source,
        revision=revision,
        fingerprint=fingerprint(functions, splits),
        licence=licence,
        note=note,
        problems=findings,
    )
