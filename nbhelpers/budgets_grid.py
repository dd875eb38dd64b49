"""What fits on a card: the verdict for each batch and length of a preset, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbhelpers.budgets_search import Predict, Search, State, even_sizes
from nbhelpers.ledger import GIB
from nbhelpers.memory import DOES_NOT_FIT, FITS, TIGHT, MemoryBudget
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset

LENGTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
SHORT = {FITS: "fits", TIGHT: "tight", DOES_NOT_FIT: "no"}
MARKS = {"interpolated": "~", "simulation": ""}
LEGEND = "GiB and verdict; ~ between simulated steps, ? by the ledger; - is not possible"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitGrid:
    """Budgets by micro-batch and length, with what they are for."""

    title: str
    unit: str
    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    cells: Mapping[tuple[int, int], MemoryBudget]

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(v)} {v}" for v in (FITS, TIGHT, DOES_NOT_FIT))
        return f"FitGrid({self.title}: {counts})"

    def count(self, verdict: str) -> int:
        """Return in how many cells this is the verdict."""
        return sum(budget.verdict == verdict for budget in self.cells.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One batch and length; `budget` is None where the model or the global batch forbids it."""

    batch: int
    seq_len: int
    budget: MemoryBudget | None
    is_preset: bool

    @property
    def text(self) -> str:
        """The need with its mark, and the verdict; a star marks the preset itself."""
        if self.budget is None:
            return "-"
        mark = MARKS.get(self.budget.source, "?")
        need = f"{mark}{self.budget.total_bytes / GIB:.1f}"
        verdict = SHORT.get(self.budget.verdict, self.budget.verdict)
        return f"{need} {verdict}{' *' * self.is_preset}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        known = self.budget
        return {
            "batch": self.batch,
            "seq_len": self.seq_len,
            "total_bytes": known.total_bytes if known else None,
            "verdict": known.verdict if known else None,
            "source": known.source if known else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGrid:
    """Cells of equal length are a row, of equal batch a column; the global batch is the same."""

    cells: tuple[GridCell, ...]
    global_batch_size: int

    @property
    def batches(self) -> list[int]:
        """The per-device batches, ascending."""
        return sorted({cell.batch for cell in self.cells})

    def rows(self) -> list[dict[str, str]]:
        """Return the table: a row for each length."""
        by_length: dict[int, dict[str, str]] = {}
        for cell in sorted(self.cells, key=lambda cell: (cell.seq_len, cell.batch)):
            row = by_length.setdefault(cell.seq_len, {"tokens": f"{cell.seq_len:,}"})
            row[f"batch {cell.batch}"] = cell.text
        return list(by_length.values())


def budget_grid(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    predict: Predict,
    lengths: Sequence[int] = LENGTHS,
) -> BudgetGrid:
    """Return the budgets of every even per-device batch and of usual lengths.

    Args:
        preset: What to do; its own batch and length are in the grid too.
        plan: How its global batch is split.
        hardware: The card.
        predict: Gives a budget, such as `budgets.predict_memory`.
        lengths: Tokens; longer ones than the model has positions are left out.
    """
    s, own = preset.settings, plan.per_device_train_batch_size
    shape = find_shape(s)
    most = shape.code_positions if shape is not None else max(lengths)
    used = sorted({*(n for n in lengths if n <= most), s.seq_len})
    start = State(preset, plan, predict(preset, plan, hardware))
    search, cells = Search(hardware, predict), []
    for seq_len in used:
        for batch in sorted({*even_sizes(plan), own}):
            is_preset = (batch, seq_len) == (own, s.seq_len)
            change = {"per_device_train_batch_size": batch, "seq_len": seq_len}
            state = start if is_preset else search.changed(start, change)
            budget = None if state is None else state.budget
            cells.append(GridCell(batch=batch, seq_len=seq_len, budget=budget, is_preset=is_preset))
    return BudgetGrid(cells=tuple(cells), global_batch_size=plan.global_batch_size)
