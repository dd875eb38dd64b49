"""Graphs that were made before, by the content of their function.

A function's key names one of 16 files, each a table with the keys of its rows. A file that cannot
be read counts as absent and is written anew. Two writers at once may lose each other's functions,
which are then read again: nothing is ever wrong, only slower.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

from ..cache import cache_dir, save_in_cache
from .dataflow_table import FlowTable, join, load_table, make_table

KEY_BYTES = 16
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile, zlib.error)
_UNREADABLE += (MemoryError, RecursionError)  # sizes and depths that no table of ours has


class FlowCache:
    """The graphs made by one version of everything, which `stamp` describes."""

    def __init__(self, stamp: str) -> None:
        name = hashlib.sha256(stamp.encode()).hexdigest()[:16]
        self.folder = cache_dir() / "dataflow" / name

    def load(self, keys: Sequence[bytes]) -> tuple[list[int], FlowTable]:
        """Return for each key its row in the table, or -1, and the table of those found."""
        wanted: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            wanted.setdefault(key[0] >> 4, []).append(i)
        rows, tables, start = [-1] * len(keys), [make_table([])], 0
        for bucket, members in sorted(wanted.items()):
            known, table = self._read(bucket)
            found = [i for i in members if keys[i] in known]
            for row, i in enumerate(found, start=start):
                rows[i] = row
            start += len(found)
            tables.append(table.take([known[keys[i]] for i in found]))
        return rows, join(tables)

    def add(self, keys: Sequence[bytes], table: FlowTable) -> None:
        """Keep the rows of a table under their keys."""
        new: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            new.setdefault(key[0] >> 4, []).append(i)
        for bucket, members in new.items():
            known, old = self._read(bucket)
            fresh = [i for i in members if keys[i] not in known]
            if fresh:
                self._write(
                    bucket, [*known, *(keys[i] for i in fresh)], join([old, table.take(fresh)])
                )

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{bucket:x}.npz"

    def _read(self, bucket: int) -> tuple[dict[bytes, int], FlowTable]:
        """The rows of a file by their keys; nothing where it cannot be read."""
        try:
            table, more = load_table(self._path(bucket))
            flat = more["keys"].tobytes()
            keys = [flat[i : i + KEY_BYTES] for i in range(0, len(flat), KEY_BYTES)]
        except _UNREADABLE:
            return {}, make_table([])
        known = {key: row for row, key in enumerate(keys)}
        return (known, table) if len(known) == len(table) else ({}, make_table([]))

    def _write(self, bucket: int, keys: Sequence[bytes], table: FlowTable) -> None:
        import numpy as np

        flat = np.frombuffer(b"".join(keys), dtype=np.uint8)

        def write(path: Path) -> None:
            with path.open("wb") as file:
                table.save(file, keys=flat)

        save_in_cache(self._path(bucket), write)
