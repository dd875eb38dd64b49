"""Leave one source, generator or language out: its rows are tested apart and never trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, DataError
from .detection_groups import split_place
from .detection_rows import CodeRow
from .detection_splits import Pool, shared_rows, tell_shared
from .detection_words import AI, HUMAN, language_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Splits = dict[str, NDArray[np.int64]]

FIELDS = ("source", "generator", "language")
# Where leaving out the tasks of the held rows would take more of train than this, the held rows
# are cut to the tasks of test instead.
MOST_LOST = 0.5


def hold_out_values(rows: Iterable[CodeRow]) -> list[str]:
    """Every `hold_out` that leaves rows to train on: `source=...`, `generator=...`, `language=...`.

    Generators are those of AI rows.
    """
    found: dict[str, set[str]] = {field: set() for field in FIELDS}
    for row in rows:
        for field in FIELDS:
            value = getattr(row, field)
            if value and (field != "generator" or row.label == AI):
                found[field].add(value)
    return [
        f"{field}={value}"
        for field in FIELDS
        if len(found[field]) > 1
        for value in sorted(found[field])
    ]


def wanted_rows(rows: Sequence[CodeRow], hold_out: str) -> set[int]:
    """Numbers of the rows that `hold_out` names.

    Raises:
        ConfigError: It is not of that form, or no row has that value.
    """
    field, is_there, value = str(hold_out).partition("=")
    field, value = field.strip().lower(), value.strip()
    choices = hold_out_values(rows)
    if field not in FIELDS or not is_there or not value:
        raise ConfigError(
            f"hold_out={hold_out!r} is none of source=NAME, generator=NAME, language=NAME.",
            fix=f"write one of {', '.join(choices[:12]) or 'these with a name of the data'}.",
        )
    asked = language_of(value) if field == "language" else value.casefold()
    found = {
        at
        for at, row in enumerate(rows)
        if getattr(row, field).casefold() == asked and (field != "generator" or row.label == AI)
    }
    if not found:
        raise ConfigError(
            f"hold_out={hold_out!r}: no row has this {field}.",
            fix=f"write one of {', '.join(choices[:12])}."
            if choices
            else "leave it out: the data has one source, one generator and one language at most.",
        )
    return found


def hold_out_rows(pool: Pool, splits: Splits, hold_out: str) -> tuple[Splits, dict[str, Any]]:
    """Move the rows that `hold_out` names into a split "held_out".

    Rows of train and valid that share a task, an author or like code with them are left out. Where
    that would take more than half of train (the same tasks in every language, say), the held rows
    are those of test alone. For a generator the human rows of test that are like its own in source
    and language go into held_out too (they stay in test), so that both classes are there.

    Raises:
        ConfigError: No row is so named.
        DataError: Nothing would be left to train on or to hold out.
    """
    import numpy as np

    wanted = wanted_rows(pool.rows, hold_out)
    parts = {
        name: [_pick(found, wanted, is_in=False), _pick(found, wanted, is_in=True)]
        for name, found in splits.items()
    }
    rest: Splits = {name: left for name, (left, _) in parts.items()}
    every = np.sort(np.concatenate([moved for _, moved in parts.values()]))
    made, told = _without(pool, rest, every)
    told["rows_of"] = "all splits"
    if not _is_enough(pool, rest, made):
        held = parts["test"][1]
        made, told = _without(pool, rest, held)
        told |= {"rows_of": "test", "dropped": len(every) - len(held)}
    held = made["held_out"]
    if not len(held) or not _is_enough(pool, rest, made):
        raise DataError(
            f"hold_out={hold_out} cannot be held out: its tasks are those of the rows to train on, "
            f"and test has {len(parts['test'][1]):,} of its {len(every):,} rows.",
            fix="hold out another value, or give data with tasks of its own for each.",
        )
    if hold_out.strip().lower().startswith("generator"):
        humans = _humans_like(pool, made["test"], held)
        made["held_out"] = np.sort(np.concatenate([held, humans]))
        told["humans_of_test"] = len(humans)
    _tell(pool, made, told, hold_out)
    return made, told | {"hold_out": hold_out, "held_out": len(made["held_out"])}


def _pick(found: NDArray[np.int64], wanted: set[int], *, is_in: bool) -> NDArray[np.int64]:
    import numpy as np

    return np.array([at for at in found.tolist() if (at in wanted) == is_in], dtype=np.int64)


def _without(pool: Pool, rest: Splits, held: NDArray[np.int64]) -> tuple[Splits, dict[str, Any]]:
    made, told = dict(rest), {}
    for name in ("train", "valid"):
        bad = shared_rows(pool, rest[name], held)
        made[name] = _pick(rest[name], set(bad), is_in=False)
        if bad:
            told[name] = tell_shared(pool, bad, name, quiet=True)
    return made | {"held_out": held}, {"left_out": told}


def _is_enough(pool: Pool, before: Splits, after: Splits) -> bool:
    for name in ("train", "valid"):
        if len(after[name]) < (1 - MOST_LOST) * len(before[name]) or not len(after[name]):
            return False
        if pool.labelled and len(pool.labels(after[name])) < len(pool.labels(before[name])):
            return False
    return True


def _humans_like(pool: Pool, test: NDArray[np.int64], held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Human rows of test in the sources and languages of the held rows, else all human rows."""
    import numpy as np

    humans = [at for at in test.tolist() if pool.rows[at].label == HUMAN]
    kinds = {(pool.rows[at].source, pool.rows[at].language) for at in held.tolist()}
    like = [at for at in humans if (pool.rows[at].source, pool.rows[at].language) in kinds]
    return np.array(like or humans, dtype=np.int64)


def _tell(pool: Pool, made: Splits, told: dict[str, Any], hold_out: str) -> None:
    held = made["held_out"]
    left_out = {name: found["rows"] for name, found in told["left_out"].items()}
    detail = f"{hold_out}, rows of {told['rows_of']}"
    if left_out:
        said = ", ".join(f"{n:,} of {name}" for name, n in left_out.items())
        detail += f"; left out as they share tasks, authors or code: {said}"
    pool.log.add("hold_out", *split_place(pool.rows[int(held[0])].place), detail, n=len(held))
