"""The fast way through a pair file: whole blocks of lines as arrays, where every line is plain.

A block is taken only when each of its lines is `id<TAB>id<TAB>0|1` with ids that are known and
written as plain decimal numbers, as in BigCloneBench. Anything else is for the reader that goes
line by line and can say what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

BLOCK_BYTES = 4 * 2**20
MAX_DIGITS = 18  # below 2**63
_TAB, _LINE_END, _ZERO = 9, 10, 48


class Columns(NamedTuple):
    """Pairs as arrays of one length: function numbers, label, and line in the file from 1."""

    left: np.ndarray  # (n,) int32
    right: np.ndarray  # (n,) int32
    label: np.ndarray  # (n,) int8
    line: np.ndarray  # (n,) int32


class PlainIds:
    """Finds functions by ids that are plain decimal numbers, a column at a time."""

    def __init__(self, index: Mapping[str, int]) -> None:
        """Sort the ids once.

        Args:
            index: Function number by id; ids of another form are left to the slow reader.
        """
        import numpy as np

        plain = sorted((int(id_), number) for id_, number in index.items() if _is_plain(id_))
        self._values = np.array([value for value, _ in plain], dtype=np.int64)
        self._numbers = np.array([number for _, number in plain], dtype=np.int32)

    def parse(self, block: bytes, first_line: int) -> Columns | None:
        """Return the columns of a block of whole lines, or None where any line is not plain."""
        import numpy as np

        data = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8)
        ends, tabs = np.flatnonzero(data == _LINE_END), np.flatnonzero(data == _TAB)
        if len(tabs) != 2 * len(ends) or not len(self._values):
            return None
        starts, one, two = np.append(0, ends[:-1] + 1), tabs[::2], tabs[1::2]
        # In order and as many as there should be: so each line has its own two tabs.
        if not ((starts < one) & (one + 1 < two) & (two + 2 == ends)).all():
            return None
        label = data[two + 1] - _ZERO  # of unsigned bytes: what is below "0" becomes large
        left, right = self._find(data, starts, one), self._find(data, one + 1, two)
        if left is None or right is None or label.max() > 1:
            return None
        line = np.arange(first_line, first_line + len(ends), dtype=np.int32)
        return Columns(left, right, label.astype(np.int8), line)

    def _find(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
        """Return the function of each id `data[start:end]`, or None where one is not plain."""
        import numpy as np

        length = ends - starts
        longest = int(length.max())
        if longest > MAX_DIGITS or ((data[starts] == _ZERO) & (length > 1)).any():
            return None
        value = np.zeros(len(ends), dtype=np.int64)
        for place in range(longest):  # units, tens, hundreds
            rows = slice(None) if place < length.min() else np.flatnonzero(length > place)
            digit = data[ends[rows] - 1 - place] - _ZERO
            if digit.max() > 9:
                return None
            value[rows] += digit.astype(np.int64) * 10**place
        at = np.searchsorted(self._values, value)
        at[at == len(self._values)] = 0
        return self._numbers[at] if (self._values[at] == value).all() else None


def _is_plain(id_: str) -> bool:
    """Whether an id is the one way to write its number.

    >>> [_is_plain(id_) for id_ in ("7", "0", "07", "x7", "\\u0667", "")]
    [True, True, False, False, False, False]
    """
    is_number = id_.isascii() and id_.isdigit() and len(id_) <= MAX_DIGITS
    return is_number and (id_[0] != "0" or id_ == "0")
