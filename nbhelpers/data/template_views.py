"""What a template makes, shown: supervised text in colour, lengths against the limit."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

HISTOGRAM_BINS = 24
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


def length_histogram(
    lengths: Sequence[int], seq_len: int, *, bins: int = HISTOGRAM_BINS
) -> dict[str, Any]:
    """Count lengths in equal bins, and the share that does not fit `seq_len`.

    Where it lies among the lengths, `seq_len` is an edge, so that the bars to its right are what
    would be cut. Beyond 4 x `seq_len` all lengths fall into the last bin.

    Args:
        lengths: Tokens of each example, special tokens included.
        seq_len: Tokens that fit.
        bins: About so many.

    Returns:
        `edges` (one more than `counts`; tokens, bin i holds edges[i] < length <= edges[i + 1]),
        `counts`, `seq_len`, `cut_share` (0 to 1), `longest`.

    >>> length_histogram([10, 20, 30, 90], 40, bins=8)["cut_share"]
    0.25
    """
    longest = max(lengths, default=0)
    shown = max(1, min(longest, 4 * seq_len))
    width = -(-shown // bins)
    edges = [0, *range(seq_len % width or width, shown + width, width)]
    counts = [0] * (len(edges) - 1)
    for length in lengths:
        at = 0 if length <= edges[1] else -(-(length - edges[1]) // width)
        counts[min(at, len(counts) - 1)] += 1
    cut = sum(length > seq_len for length in lengths)
    return {
        "edges": edges,
        "counts": counts,
        "seq_len": seq_len,
        "cut_share": cut / len(lengths) if len(lengths) else 0.0,
        "longest": longest,
    }
