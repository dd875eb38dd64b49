"""What using a trained model returns shows and saves itself in one way.

A result says once what is to be seen, as `blocks`: sentences, tables and titled lists. Its text,
its HTML and its files follow from them.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.common.display import Table
from nbhelpers.errors import ConfigError
from nbhelpers.use.code_files import Skipped

SHOWN = 50  # rows of a table on the screen; the files hold all
NAMED = 10  # files that were left out, by name
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class Items:
    """Sentences under a title."""

    title: str
    lines: Sequence[str]


Block = str | Table | Items


class Shown:
    """A result; it has `blocks`, and `to_dict` with all that it knows as JSON values.

    `ENDINGS`: the kinds of file that `save` writes.
    """

    __slots__ = ()
    ENDINGS: tuple[str, ...] = (".json", ".txt")

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return what is to be seen, in order; of long tables so many rows."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        raise NotImplementedError

    def csv(self) -> str:
        """Return the table as CSV, where there is one."""
        raise NotImplementedError

    def text(self, top: int = SHOWN) -> str:
        """Return it as text."""
        return "\n\n".join(_text(block) for block in self.blocks(top) if _text(block))

    def _repr_html_(self) -> str:
        return "".join(map(_html, self.blocks()))

    def html(self) -> str:
        """Return it as a page of its own."""
        return f'<!DOCTYPE html><html lang="en"><body>{self._repr_html_()}</body></html>\n'

    def save(self, place: str | Path) -> Path:
        """Write it, in the form that the ending says.

        Raises:
            ConfigError: Another ending, or the place cannot be written.
        """
        path = checked_output(place, self.ENDINGS)
        writers = {".csv": self.csv, ".html": self.html, ".txt": self.text, ".json": self._json}
        text = writers[path.suffix.lower()]()
        try:
            path.write_bytes(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror or error}."
            raise ConfigError(message, fix="name another file") from error
        return path

    def _json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"


def _text(block: Block) -> str:
    if isinstance(block, Items):
        return "\n".join([block.title, *(f"- {line}" for line in block.lines)])
    return block.text() if isinstance(block, Table) else block


def _html(block: Block) -> str:
    if isinstance(block, Items):
        items = "".join(f"<li>{html.escape(line)}</li>" for line in block.lines)
        return f"<h3>{html.escape(block.title)}</h3><ul>{items}</ul>"
    return block.html() if isinstance(block, Table) else f"<p>{html.escape(block)}</p>"


def facts_table(rows: Mapping[str, Any]) -> Table:
    """Return names and values as a table without heads."""
    return Table(("", ""), [(name, str(value)) for name, value in rows.items()])


def left_out(skipped: Sequence[Skipped]) -> list[Block]:
    """Return how many files were left out by reason, and the first of them."""
    if not skipped:
        return []
    kinds = Counter(file.reason for file in skipped).most_common()
    title = f"Left out: {', '.join(f'{count} {kind}' for kind, count in kinds)}."
    return [Items(title, [f"{f.name}: {f.reason} ({f.detail})" for f in skipped[:NAMED]])]


def checked_output(place: str | Path, endings: Sequence[str] = (".csv", ".json")) -> Path:
    """Return a file to write, checked before the work is done.

    Raises:
        ConfigError: Its ending is none of these, or its folder is not there.
    """
    path = Path(place).expanduser()
    if path.suffix.lower() not in endings:
        text = f"It is written as {' or '.join(endings)}, not as {path.name!r}."
        raise ConfigError(text, fix="name another ending")
    if not path.parent.is_dir() or path.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise ConfigError(f"{path} {what}.", fix="name a file in a folder that exists")
    return path


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], note: str = "") -> str:
    """Return rows as CSV under the names of their columns, safe to open in a spreadsheet.

    Args:
        note: Stands in every row under `note`, after what the row has there.

    >>> csv_text([{"file": "=cmd()", "score": -1.5}], ("file", "score"))
    "file,score\\r\\n'=cmd(),-1.5\\r\\n"
    """
    table = io.StringIO()
    writer = csv.writer(table)
    if note:
        columns = list(dict.fromkeys((*columns, "note")))
        rows = [{**row, "note": "; ".join(filter(None, (row.get("note"), note)))} for row in rows]
    writer.writerow(columns)
    writer.writerows([_csv_cell(row.get(name)) for name in columns] for row in rows)
    return table.getvalue()


def _csv_cell(value: Any) -> Any:
    """A text that begins like a formula gets an apostrophe before it; numbers stay numbers."""
    if isinstance(value, str) and value.lstrip(" ").startswith(FORMULA_SIGNS):
        return f"'{value}"
    return value
