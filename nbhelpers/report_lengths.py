"""How long the training samples of a run are, against the length at which they are cut."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nbhelpers.errors import ConfigError
from nbhelpers.formatting import count, share
from nbhelpers.plots_finetune import lengths_figure
from nbhelpers.progress import bar
from nbhelpers.report_facts import RunFacts, read_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A histogram of tokens per training sample; a picture in a notebook, bars of text elsewhere.

    `counts[i]` samples have from `edges[i]` to `edges[i + 1]` tokens; `cut_share` is from 0 to 1.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    seq_len: int
    cut_share: float
    _facts: RunFacts = field(repr=False)

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
        target = io.BytesIO()
        lengths_figure(self._facts).savefig(target, format="png", dpi=100)
        return target.getvalue()


def show_lengths(run: Any) -> Lengths:
    """Return the lengths of a run's training samples, as its result tells them.

    Args:
        run: A run of the job finetune, its folder or its result.

    Raises:
        ConfigError: There is no such run, or it tells no lengths.
    """
    facts = read_facts(run)
    edges, counts = (_numbers(facts.get("data", "lengths", name)) for name in ("edges", "counts"))
    limit = facts.get("data", "lengths", "seq_len")
    if not counts or len(edges) != len(counts) + 1 or limit is None:
        raise ConfigError(
            f"{facts.run.id} tells no lengths of training samples.",
            fix="take a finished run of the job finetune",
        )
    return Lengths(
        edges=edges,
        counts=counts,
        seq_len=limit,
        cut_share=facts.get("data", "lengths", "cut_share") or 0.0,
        _facts=facts,
    )


def _numbers(values: Sequence[Any] | None) -> tuple[Any, ...]:
    return tuple(values or ())
