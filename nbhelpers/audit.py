"""`audit(data)`: the audit of detection data as a notebook shows it, with tables and a figure."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.data.audit_tables import TITLES
from nbhelpers.data.detection_audit import Audit as Measured
from nbhelpers.data.detection_audit import audit as measure
from nbhelpers.plots_audit import CAPTION, audit_figure
from nbhelpers.report_facts import shown
from nbhelpers.report_page import STYLE, page, paragraph, section, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_TABLES = ("classes", "tags", "templates", "features", "duplicates", "source")


class Audit(Measured):
    """An audit that shows itself: verdict, reasons, warnings, a figure and every table."""

    __slots__ = ()

    def figure(self) -> Figure | None:
        """Draw single features, sources and lengths; None without rows of both classes."""
        return audit_figure(self.facts)

    def save_page(self, path: str | Path) -> Path:
        """Write the audit as one HTML page and return where."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(f"Audit of {self.facts['source']}", self._repr_html_()), "utf-8")
        return path

    def _repr_html_(self) -> str:
        tables = self.tables
        parts = [f"<h1>{html.escape(repr(self))}</h1>", self._findings(), self._image()]
        parts += [_table(name, tables) for name in FIRST_TABLES]
        rest = "".join(_table(name, tables) for name in tables if name not in FIRST_TABLES)
        parts.append(f"<details><summary>All other tables</summary>{rest}</details>")
        return shown(f'<div class="nbh"><style>{STYLE}</style>{"".join(parts)}</div>')

    def _findings(self) -> str:
        if self.is_hopeless:
            said = "A detector trained on these data would measure something else, because:"
        else:
            said = "Nothing that was looked for makes these data useless."
        reasons = "".join(paragraph(reason, "bad") for reason in self.reasons)
        listed = "".join(f"<li>{html.escape(text)}</li>" for text in self.warnings)
        warned = section("Warnings", f"<ul>{listed}</ul>" if listed else "")
        return paragraph(said, "lead") + reasons + warned

    def _image(self) -> str:
        figure = self.figure()
        if figure is None:
            return ""
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=90, metadata={"Software": None})
        data = base64.b64encode(drawn.getvalue()).decode()
        image = f'<img alt="{CAPTION}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{CAPTION}</figcaption></figure>"


def audit(
    data: Any,
    *,
    revision: str | None = None,
    canonical: str = "text",
    known_humans: Any = None,
) -> Audit:
    """Look at detection data without training anything, and say whether they can train a detector.

    The arguments and errors are those of `nbhelpers.data.detection_audit.audit`.

    Returns:
        The audit; `require_usable()` stops where the data are hopeless.
    """
    found = measure(data, revision=revision, canonical=canonical, known_humans=known_humans)
    return Audit.from_dict(found.to_dict())


def _table(name: str, tables: Any) -> str:
    return section(TITLES[name], table_of(tables[name])) if name in tables else ""
