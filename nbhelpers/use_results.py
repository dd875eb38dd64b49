"""What using a trained model returns: answers side by side, a merged model, an exported folder."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.formatting import size
from nbhelpers.tables import left


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answers of the base and of the tuned model to the same prompts."""

    prompts: tuple[str, ...]
    base: tuple[str, ...]
    tuned: tuple[str, ...]
    title: str

    @property
    def changed(self) -> int:
        """How many answers differ."""
        return sum(a != b for a, b in zip(self.base, self.tuned, strict=True))

    def __repr__(self) -> str:
        return f"Comparison({self.title}: {self.changed} of {len(self.prompts)} answers differ)"

    def text(self) -> str:
        """Return prompt, base and tuned answer one below the other."""
        rows = zip(self.prompts, self.base, self.tuned, strict=True)
        blocks = (f"prompt: {p}\n--- base\n{b}\n--- tuned\n{t}" for p, b, t in rows)
        return "\n\n".join(blocks)

    def _repr_html_(self) -> str:
        def cell(text: str) -> str:
            pre = "white-space:pre-wrap;background:none;text-align:left"
            text = f"<pre style='{pre}'>{html.escape(text)}</pre>"
            return f"<td style='text-align:left;vertical-align:top'>{text}</td>"

        rows = zip(self.prompts, self.base, self.tuned, strict=True)
        body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
        heads = (("prompt", 24), ("base", 38), ("tuned", 38))
        head = "".join(f"<th style='width:{width}%'>{name}</th>" for name, width in heads)
        table = "<table style='width:100%;table-layout:fixed'>"
        return f"<p>{html.escape(repr(self))}</p>{table}<tr>{head}</tr>{body}</table>"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """A merged model that agrees with its adapter, and how well.

    `top1` is the share of positions with the same most likely token, `kl` the mean KL divergence
    in nats of the merged model's next-token distribution from the adapter's, over `positions`
    positions of `samples` texts. `limits` are the thresholds; `kl` must also be below
    `adapter_kl`, by which the adapter differs from its base. `training_base` says the same of the
    4-bit base that a QLoRA run was trained on: to be far from that is no fault of the merge.
    """

    path: Path
    run_id: str
    adapter: str
    precision: str
    size_bytes: int
    top1: float
    kl: float
    kl_max: float
    adapter_kl: float
    positions: int
    samples: int
    held_out: bool
    limits: dict[str, float]
    training_base: dict[str, float] | None
    reused: bool

    def __repr__(self) -> str:
        again = ", merged before" if self.reused else ""
        return (
            f"MergeResult({self.run_id}, {self.precision}, {size(self.size_bytes, least_gib=0.1)}, "
            f"top-1 agreement {100 * self.top1:.2f} %, KL {self.kl:.2g} nats{again})"
        )

    def rows(self) -> dict[str, str]:
        """Name and text of each figure."""
        where = "held-out" if self.held_out else "given"
        rows = {
            "folder": str(self.path),
            "adapter": f"{self.adapter} of {self.run_id}",
            "weights": f"{self.precision}, {size(self.size_bytes, least_gib=0.1)}",
            "measured on": f"{self.positions} tokens of {self.samples} {where} texts",
            "top-1 agreement": f"{100 * self.top1:.2f} % (limit {100 * self.limits['top1']:.2f} %)",
            "mean KL": f"{self.kl:.3g} nats (limit {self.limits['kl']:g})",
            "largest KL": f"{self.kl_max:.3g} nats",
            "KL of base and adapter": f"{self.adapter_kl:.3g} nats",
        }
        if self.training_base:
            told = self.training_base
            rows["against the 4-bit base of the training"] = (
                f"top-1 agreement {100 * told['top1']:.2f} %, mean KL {told['kl']:.3g} nats"
            )
        return rows

    def _repr_html_(self) -> str:
        return html_table(self.rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """An exported folder, and where it was pushed to.

    `agreement`: of a detector, how far each form of it is from the trained model at most.
    """

    path: Path
    files: tuple[str, ...]
    url: str | None
    agreement: tuple[Mapping[str, Any], ...] = ()

    def __repr__(self) -> str:
        pushed = f", pushed to {self.url}" if self.url else ""
        return f"ExportResult({self.path}, {len(self.files)} files{pushed})"

    def _repr_html_(self) -> str:
        rows = {"folder": str(self.path), "files": ", ".join(self.files)}
        return html_table(rows | self.measured() | {"pushed to": self.url or "nowhere"})

    def measured(self) -> dict[str, str]:
        """Return what each form was measured to differ by, in words."""
        return {
            told["form"]: f"largest difference of a logit {told['logit']:.2g}, of a vector "
            f"{told['vector']:.2g} (allowed {told['limit']:g}), on {told['programs']} programs in "
            f"{told['batches']} batches"
            for told in self.agreement
        }


def html_table(rows: Mapping[str, Any]) -> str:
    """Return names and values as an HTML table of two columns."""
    cells = (f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return left(f"<table>{''.join(cells)}</table>")
