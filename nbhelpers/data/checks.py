"""Checks that need every row of a split, and the assembly of a `CloneData` from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .pairs import CloneData, ClonePairs, FunctionTable, RawSplit, fingerprint, text_groups
from .problems import ProblemLog

if TYPE_CHECKING:
    import numpy as np


def _keys(pairs: ClonePairs, numbers: np.ndarray) -> np.ndarray:
    """One number per unordered pair of `numbers`, so that equal pairs have equal keys."""
    import numpy as np

    left, right = numbers[pairs.left].astype(np.int64), numbers[pairs.right].astype(np.int64)
    return np.minimum(left, right) * (int(numbers.max()) + 1) + np.maximum(left, right)


def _rows_with_both_labels(keys: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Mask of the rows whose key occurs with label 0 and with label 1."""
    import numpy as np

    ordered = np.sort(keys * 2 + label)  # a key with both labels: an even number, then the next
    both = ordered[:-1][(ordered[1:] == ordered[:-1] + 1) & (ordered[:-1] % 2 == 0)] // 2
    return np.isin(keys, both) if len(both) else np.zeros(len(keys), dtype=bool)


def _repeats(keys: np.ndarray) -> np.ndarray:
    """Mask of the rows whose key stood in an earlier row."""
    import numpy as np

    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():  # quick to see for the pairs of a full test list
        return np.zeros(len(keys), dtype=bool)
    repeated = np.ones(len(keys), dtype=bool)
    repeated[np.unique(keys, return_index=True)[1]] = False
    return repeated


def _usable(split: RawSplit, table: FunctionTable, log: ProblemLog) -> np.ndarray:
    """Mask of the rows to keep; what is wrong with the others goes to the log."""
    import numpy as np

    pairs, keep = split.pairs, np.ones(len(split.pairs), dtype=bool)
    withdrawn = np.array([text is None for text in table.texts] or [False], dtype=bool)
    numbers = np.arange(len(withdrawn))
    bad = withdrawn[pairs.left] | withdrawn[pairs.right]
    same = (pairs.left == pairs.right) & ~bad
    both = _rows_with_both_labels(_keys(pairs, numbers), pairs.label) & ~bad & ~same
    for kind, mask in (("bad_function", bad), ("self_pair", same), ("both_labels", both)):
        for row in np.flatnonzero(mask):
            left, right = table.ids[pairs.left[row]], table.ids[pairs.right[row]]
            log.add(kind, *split.place(int(row)), f"{left!r}, {right!r}, label {pairs.label[row]}")
        keep &= ~mask
    return keep


def _note_repeats(name: str, split: RawSplit, log: ProblemLog, n_functions: int) -> dict[str, int]:
    import numpy as np

    pairs = split.pairs
    ordered = pairs.left.astype(np.int64) * n_functions + pairs.right
    exact = _repeats(ordered)
    mirrored = _repeats(_keys(pairs, np.arange(n_functions))) & ~exact
    for kind, mask in (("duplicate_rows", exact), ("mirrored_rows", mirrored)):
        if mask.any():
            file, line = split.place(int(np.flatnonzero(mask)[0]))
            log.add(kind, file, line, f"first of {int(mask.sum()):,} in {name}", n=int(mask.sum()))
    return {"duplicate": int(exact.sum()), "mirrored": int(mirrored.sum())}


def _note_texts(name: str, split: RawSplit, log: ProblemLog, groups: np.ndarray) -> dict[str, int]:
    import numpy as np

    pairs = split.pairs
    identical = (groups[pairs.left] == groups[pairs.right]) & (pairs.label == 0)
    keys = _keys(pairs, groups)
    both = _rows_with_both_labels(keys, pairs.label)
    found = {
        "identical_not_clones": int(identical.sum()),
        "text_conflicts": len(np.unique(keys[both])),
    }
    for kind, mask in (("identical_not_clones", identical), ("text_conflicts", both)):
        if found[kind]:
            log.add(
                kind, *split.place(int(np.flatnonzero(mask)[0])), f"first in {name}", n=found[kind]
            )
    return found


def _shared(
    raw: dict[str, RawSplit], groups: np.ndarray, log: ProblemLog
) -> dict[str, dict[str, int]]:
    """What every two splits share: ids, texts (functions of the second), pairs."""
    import numpy as np

    shared: dict[str, dict[str, int]] = {"ids": {}, "texts": {}, "pairs": {}}
    names = list(raw)
    members = {name: raw[name].pairs.functions() for name in names}
    numbers = np.arange(len(groups))
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            label = f"{one}/{other}"
            n_ids = len(np.intersect1d(members[one], members[other]))
            shared["ids"][label] = n_ids
            in_one = np.isin(groups[members[other]], groups[members[one]])
            shared["texts"][label] = int(in_one.sum())
            if n_ids:
                log.add("shared_ids", other, None, label, n=n_ids)
                pairs = np.isin(_keys(raw[other].pairs, numbers), _keys(raw[one].pairs, numbers))
                shared["pairs"][label] = int(pairs.sum())
                if pairs.any():
                    row = int(np.flatnonzero(pairs)[0])
                    log.add("shared_pairs", *raw[other].place(row), label, n=int(pairs.sum()))
    return shared


def _facts(raw: dict[str, RawSplit], groups: np.ndarray, log: ProblemLog) -> dict[str, Any]:
    repeats = {name: _note_repeats(name, split, log, len(groups)) for name, split in raw.items()}
    texts = {name: _note_texts(name, split, log, groups) for name, split in raw.items()}
    for name, split in raw.items():
        if split.pairs.prior in (0.0, 1.0):
            log.add("one_label", name, None, f"every label is {int(split.pairs.prior)}")
    shared = _shared(raw, groups, log)
    return {
        "functions": len(groups),
        "distinct_texts": int(groups.max()) + 1,
        "share_of_clones": {name: split.pairs.prior for name, split in raw.items()},
        "repeated_rows": {name: found["duplicate"] for name, found in repeats.items()},
        "mirrored_rows": {name: found["mirrored"] for name, found in repeats.items()},
        "identical_texts_with_label_0": {n: f["identical_not_clones"] for n, f in texts.items()},
        "text_pairs_with_both_labels": {n: f["text_conflicts"] for n, f in texts.items()},
        "ids_in_both": shared["ids"],
        "functions_of_the_second_whose_text_is_in_the_first": shared["texts"],
        "pairs_in_both": shared["pairs"],
    }


def _compact(
    table: FunctionTable, raw: dict[str, RawSplit]
) -> tuple[list[str], list[str], dict[str, ClonePairs]]:
    """Leave withdrawn functions out and renumber the pairs."""
    import numpy as np

    keep = [i for i, text in enumerate(table.texts) if text is not None]
    number = np.full(len(table.texts), -1, dtype=np.int32)
    number[keep] = np.arange(len(keep), dtype=np.int32)
    splits = {
        name: ClonePairs(
            left=number[s.pairs.left], right=number[s.pairs.right], label=s.pairs.label
        )
        for name, s in raw.items()
    }
    return [table.ids[i] for i in keep], [table.texts[i] or "" for i in keep], splits


def _kept(split: RawSplit, rows: np.ndarray) -> RawSplit:
    return RawSplit(pairs=split.pairs.take(rows), place=lambda i: split.place(int(rows[i])))


def assemble(
    table: FunctionTable,
    raw: dict[str, RawSplit],
    log: ProblemLog,
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
    import numpy as np

    kept = {name: np.flatnonzero(_usable(split, table, log)) for name, split in raw.items()}
    log.stop_if_needed()
    for name, rows in kept.items():
        if not len(rows):
            log.add("no_rows_left", name, None, "every row was dropped")
    log.stop_if_needed()
    raw = {name: _kept(split, kept[name]) for name, split in raw.items()}
    ids, functions, splits = _compact(table, raw)
    raw = {name: RawSplit(pairs=splits[name], place=split.place) for name, split in raw.items()}
    groups = text_groups(functions)
    log.facts = _facts(raw, groups, log)
    return CloneData(
        ids=ids,
        functions=functions,
        text_group=groups,
        splits=splits,
        source=source,
        revision=revision,
        fingerprint=fingerprint(functions, splits),
        licence=licence,
        note=note,
        problems=log.freeze(),
    )
