"""What a template makes, shown: supervised text in colour, or marked."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

OPEN, CLOSE = "⟦", "⟧"  # around supervised text where there is no colour
CHARACTERS_SHOWN = 4000


class _Example(Protocol):
    @property
    def prompt(self) -> str: ...

    @property
    def completion(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredText:
    """Text in parts; the supervised ones (the loss counts them) stand out.

    `parts` holds (text, is_supervised). In a notebook these are coloured, elsewhere marked ⟦so⟧.
    """

    parts: tuple[tuple[str, bool], ...]
    caption: str = ""

    def __repr__(self) -> str:
        text = "".join(f"{OPEN}{part}{CLOSE}" if on else part for part, on in self.parts)
        return f"{self.caption}\n{text}" if self.caption else text

    def _repr_html_(self) -> str:
        style = "background:#cfe8cf;color:#123312;border-radius:2px"
        spans = [
            f'<span style="{style}">{html.escape(part)}</span>' if on else html.escape(part)
            for part, on in self.parts
        ]
        head = f"<div><b>{html.escape(self.caption)}</b></div>" if self.caption else ""
        return (
            f'<div>{head}<pre style="white-space:pre-wrap;text-align:left">{"".join(spans)}</pre>'
            f'<div><span style="{style}">coloured</span>: what the loss counts</div></div>'
        )


def coloured(parts: Sequence[tuple[str, bool]], *, caption: str = "") -> ColouredText:
    """Show text with its supervised parts marked; neighbours of one kind are joined.

    >>> coloured([("ask ", False), ("an", True), ("swer", True)])
    ask ⟦answer⟧
    """
    joined: list[tuple[str, bool]] = []
    for text, on in parts:
        if joined and joined[-1][1] == bool(on):
            joined[-1] = joined[-1][0] + str(text), bool(on)
        elif text:
            joined.append((str(text), bool(on)))
    return ColouredText(parts=tuple(joined), caption=caption)


def show_template(sample: _Example, *, caption: str = "") -> ColouredText:
    """Show a sample as the model meets it: its prompt, then the completion that is learned."""
    parts = [(_shown(sample.prompt), False), (_shown(sample.completion), True)]
    return coloured(parts, caption=caption)


def _shown(text: str) -> str:
    """A text short enough to show, its middle left out."""
    if len(text) <= CHARACTERS_SHOWN:
        return text
    half = CHARACTERS_SHOWN // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half:,} characters left out) …\n{text[-half:]}"
