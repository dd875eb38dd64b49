"""One style for the tables that objects show in a notebook."""

from __future__ import annotations

import re

_CELL = re.compile("<(t[dh])>")


def left(markup: str) -> str:
    """Return HTML whose plain table cells are aligned to the left.

    JupyterLab aligns cells to the right, which suits numbers, not sentences. The style stands in
    each cell, because a style sheet is taken out of a notebook that is not trusted.

    >>> left("<tr><th>why</th><td>it fits</td></tr>")
    '<tr><th style="text-align:left">why</th><td style="text-align:left">it fits</td></tr>'
    """
    return _CELL.sub(r'<\1 style="text-align:left">', markup)
