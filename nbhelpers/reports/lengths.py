"""How long the training samples of a run are, against the length at which they are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nbhelpers.common.formatting import count, share
from nbhelpers.common.result_files import Lengths as Histogram
from nbhelpers.errors import ConfigError
from nbhelpers.reports.facts import read_facts
from nbhelpers.reports.figures import lengths_figure, png
from nbhelpers.runs.progress import bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A histogram of tokens per training sample; a picture in a notebook, bars of text elsewhere.

    `counts[i]` samples have from `edges[i]` to `edges[i + 1]` tokens; `cut_share` is from 0 to 1.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    seq_len: int
    cut_share: float
    _histogram: Histogram = field(repr=False)

    def words(self) -> str:
        """Say how many samples there are, and the share that is cut."""
        return (
            f"{count(sum(self.counts))} training samples; {share(self.cut_share)} are longer than "
            f"seq_len, {count(self.seq_len)} tokens, and are cut"
        )

    def __repr__(self) -> str:
        most = max(self.counts, default=0) or 1
        first = next((at for at, n in enumerate(self.counts) if n), 0)
        bins = list(zip(pairwise(self.edges), self.counts, strict=True))[first:]
        lines = [
            f"{low:>6,.0f} to {high:>6,.0f}  {bar(n / most).rstrip('.'):<20}  {n:,}"
            for (low, high), n in bins
        ]
        return "\n".join([self.words(), *lines])

    def _repr_png_(self) -> bytes:
        return png(lengths_figure(self._histogram))


def show_lengths(run: Any) -> Lengths:
    """Return the lengths of a run's training samples, as its result tells them.

    Args:
        run: A run of the job finetune, its folder or its result.

    Raises:
        ConfigError: There is no such run, or it tells no lengths.
    """
    facts = read_facts(run)
    histogram = facts.result.data.lengths
    edges, counts = histogram.edges, histogram.counts
    if not counts or len(edges) != len(counts) + 1 or histogram.seq_len is None:
        raise ConfigError(
            f"{facts.run.id} tells no lengths of training samples.",
            fix="take a finished run of the job finetune",
        )
    return Lengths(
        edges=tuple(edges),
        counts=tuple(counts),
        seq_len=int(histogram.seq_len),
        cut_share=histogram.cut_share or 0.0,
        _histogram=histogram,
    )
