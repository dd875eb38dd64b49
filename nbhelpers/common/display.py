"""One style for the tables that objects show, and short texts for their cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SHOWN = 60  # characters of a cell that could be long
_CELL = re.compile("<(t[dh])>")


def left(markup: str) -> str:
    """Return HTML whose plain table cells are aligned to the left.

    JupyterLab aligns cells to the right, which suits numbers, not sentences. The style stands in
    each cell, because a style sheet is taken out of a notebook that is not trusted.

    >>> left("<tr><th>why</th><td>it fits</td></tr>")
    '<tr><th style="text-align:left">why</th><td style="text-align:left">it fits</td></tr>'
    """
    return _CELL.sub(r'<\1 style="text-align:left">', markup)


def changed(preset: Mapping[str, Any]) -> str:
    """Return in which settings a run's preset was overridden, as they are typed; paths by name.

    >>> origin = {"seed": "overrides", "epochs": "base.yaml", "data": "overrides"}
    >>> changed({"settings": {"seed": 7, "epochs": 2, "data": "/a/b.jsonl"}, "provenance": origin})
    'seed=7, data=b.jsonl'
    """
    settings, origin = (preset.get(key) or {} for key in ("settings", "provenance"))
    changes = [
        f"{name}={str(settings.get(name)).rstrip('/').rpartition('/')[2]}"
        for name, where in origin.items()
        if str(where).startswith("overrides")
    ]
    return cut(", ".join(changes))


def cut(text: str) -> str:
    """Return the first line of a text, and no more of it than a cell shows.

    >>> cut("a" * 99)[-4:], cut("one\\ntwo")
    ('aaa…', 'one')
    """
    line = text.partition("\n")[0]
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
