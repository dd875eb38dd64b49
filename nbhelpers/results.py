"""`RunResult`: what a finished run found."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbhelpers.errors import DataError, JobFailed
from nbhelpers.formatting import duration
from nbhelpers.paths import expanded
from nbhelpers.tables import left
from nbhelpers.targets import available, scores_of

RESULT_NAME = "result.json"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run found: `data` is what `result.json` holds, checked."""

    run_id: str
    path: Path
    data: dict[str, Any] = field(repr=False)

    @classmethod
    def from_path(cls, path: str | Path) -> RunResult:
        """Read the result in a run folder.

        Raises:
            JobFailed: the folder holds no result.
            DataError: Its result is damaged; names the field.
        """
        from nbhelpers.result_files import Result

        folder = expanded(path, "the run").absolute()
        found = Result.read(folder / RESULT_NAME)
        if found is None:
            fix = "Look at the run's status; launch the same configuration again to continue it."
            raise JobFailed(f"{folder} holds no result.", fix=fix)
        return cls(found.run_id or folder.name, folder, found.raw)

    @property
    def scores(self) -> dict[str, Any]:
        """Scores by split."""
        return self.data.get("scores") or {}

    @property
    def memory(self) -> dict[str, Any]:
        """Predicted and measured memory."""
        return self.data.get("memory") or {}

    @property
    def timing(self) -> dict[str, Any]:
        """Seconds by phase."""
        return self.data.get("timing") or {}

    @property
    def training(self) -> dict[str, Any]:
        """Steps, losses and evaluations."""
        return self.data.get("training") or {}

    @property
    def throughput(self) -> dict[str, Any]:
        """Pairs and tokens per second."""
        return self.data.get("throughput") or {}

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved settings of the run."""
        return self.data.get("settings") or {}

    @property
    def f1(self) -> float | None:
        """F1 of the class `clone` on the test split, pairs in the given order."""
        given = ((self.scores.get("test") or {}).get("orders") or {}).get("given") or {}
        return given.get("f1")

    @property
    def job(self) -> str:
        """The job of the run."""
        return str(self.data.get("job") or "")

    @property
    def headline_scores(self) -> dict[str, str]:
        """The scores that a result is known by, written out; none where nothing was evaluated.

        Of `clones`: F1 on test. Of `finetune`: syntax accuracy and BLEU on test, and pass@1. Of
        `detector`: ROC-AUC, TPR and FPR on test, and MRR of the similarity space.
        """
        scores, found = scores_of(self.data), available(self.data)
        values = {(split, name): found.get(f"{split}.{name}") for split, name in scores.headline}
        return {
            scores.title_of(split, name): scores.written(name, value)
            for (split, name), value in values.items()
            if value is not None
        }

    def __repr__(self) -> str:
        scores = (f", {name} {value}" for name, value in self.headline_scores.items())
        return f"RunResult({self.run_id}{''.join(scores)})"

    def _repr_html_(self) -> str:
        total_s = self.timing.get("total_s")
        rows = [("run", self.run_id), ("folder", str(self.path))]
        rows += self.headline_scores.items()
        rows += [] if total_s is None else [("total time", duration(total_s))]
        cells = "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in rows)
        return left(f"<table>{cells}</table>")


def sound_results(folders: Iterable[Path]) -> Iterator[RunResult]:
    """Yield the results of runs; a run without one, or with a damaged one, is left out."""
    for folder in folders:
        try:
            found = RunResult.from_path(folder)
        except (JobFailed, DataError):
            continue
        yield found
