"""How far an exported detector is from the trained one, and the programs that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import DetectorPrediction, Record
from nbhelpers.data.hub import is_repo_id
from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.errors import NbhelpersError, RequirementMissed

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROGRAMS = 16
# Logits have no unit: p_ai moves by at most a quarter of a difference. Vectors have length 1.
RELOAD_LIMIT = 1e-5  # the same weights through the same code
ONNX_LIMIT = 1e-3  # other kernels, in fp32 as well; half precision would miss it
# What real files hold besides programs: nothing, one word, letters of other scripts.
_ODD = ("", "x\n", "# naïve 三角 Привет\nprint('—')\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far an exported form is from the trained model, at most, over all programs."""

    form: str
    programs: int
    batches: int
    logit: float
    vector: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether both differences are within the limit; what is not a number is not."""
        return self.logit <= self.limit and self.vector <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def require(self) -> Agreement:
        """Return itself.

        Raises:
            RequirementMissed: It does not hold.
        """
        if self.holds:
            return self
        raise RequirementMissed(
            f"The exported {self.form} does not agree with the trained model: over "
            f"{self.programs} programs the largest difference of a logit is {self.logit:.3g}, of a "
            f"vector {self.vector:.3g}; {self.limit:g} is allowed. Nothing was written.",
            fix="export again with other versions of torch, transformers or onnxruntime (the run's "
            "are in its report)",
        )


Scores = tuple["NDArray[np.float32]", "NDArray[np.float32]"]


def agreement(
    export_format: str, trained: Scores, exported: Scores, *, batches: int, limit: float
) -> Agreement:
    """Compare (n,) logits and (n, dimensions) vectors of the same programs.

    >>> one = (np.array([1.0]), np.array([[1.0, 0.0]]))
    >>> agreement("copy", one, one, batches=1, limit=1e-5).holds
    True
    """
    return Agreement(
        form=export_format,
        programs=len(trained[0]),
        batches=batches,
        logit=_largest(trained[0], exported[0]),
        vector=_largest(trained[1], exported[1]),
        limit=limit,
    )


def _largest(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference; infinite where only one is a number or the shapes differ.

    A model without a classifier has no logit: NaN on both sides is no difference.
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape:
        return float("inf")
    gap = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
    return float("inf") if not np.isfinite(gap).all() else float(gap.max(initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs to compare on, and where they are from, in words."""

    codes: tuple[str, ...]
    where: str


def find_programs(run: Path | None, settings: dict[str, Any]) -> Programs:
    """Return programs of the run's test where its data lies here, else of the bundled sample.

    They are spread over all lengths, from the shortest to the longest; a few odd ones are added.
    """
    rows, where = _of_run(run, settings), "programs of the run's own test"
    if not rows:
        rows, where = [row["code"] for row in load_style_rows()], "programs of the bundled sample"
    rows = sorted(set(rows), key=lambda code: (len(code), code))
    chosen = [rows[i] for i in np.linspace(0, len(rows) - 1, min(PROGRAMS, len(rows))).astype(int)]
    return Programs(codes=(*_ODD, *dict.fromkeys(chosen), "\n".join(chosen)), where=where)


def _of_run(run: Path | None, settings: dict[str, Any]) -> list[str]:
    """The code of the run's scored programs; nothing where it cannot be read here and now."""
    source = settings.get("data")
    if run is None or not isinstance(source, str) or _is_remote(source):
        return []
    from nbhelpers.data.detection import read_rows

    wanted = _scored(run)
    try:
        rows = read_rows(source, on_bad_rows="drop") if wanted else []
    except (NbhelpersError, OSError):  # the data was moved since: the sample does as well
        return []
    return [row.code for row in rows if row.id in wanted]


def _is_remote(source: str) -> bool:
    return is_repo_id(source) and not Path(source).expanduser().exists()


def _scored(run: Path) -> set[str]:
    """Ids of the test programs in predictions.jsonl."""
    rows = read_lines(DetectorPrediction, run / "predictions.jsonl")
    return {str(row.get("id")) for row in rows if row["split"] == "test"}


def batches_of(lengths: Sequence[int], longest: int) -> list[tuple[list[int], int]]:
    """Return (rows, width) of batches that cover what a graph has to bear.

    Every program alone without padding, batches of mixed lengths, pairs of like length, and all
    together with padding beyond the longest, where the model can number so many tokens.

    >>> batches_of([5, 9], longest=64)
    [([0], 5), ([1], 9), ([0, 1], 9), ([0, 1], 9), ([0, 1], 12)]
    """
    rows = list(range(len(lengths)))
    by_length = sorted(rows, key=lambda row: lengths[row])
    mixed = [rows[at :: max(1, len(rows) // 4)] for at in range(max(1, len(rows) // 4))]
    pairs = [by_length[at : at + 2] for at in range(0, len(rows), 2)]
    groups = [[row] for row in rows] + mixed + pairs
    widths = [(group, max(lengths[row] for row in group)) for group in groups]
    return [*widths, (rows, min(max(lengths) + 3, longest))]


def run_settings(run: Path | None) -> dict[str, Any]:
    """Return the settings that a run was started with; {} without a run."""
    record = Record.read(run / "run.json") if run else None
    return {} if record is None else record.preset.settings
