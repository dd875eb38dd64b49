"""Guards: what a report says of a full test list: its prior, and how its curves are drawn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_page import changed, seen
from run_on_disk import write_run

from nbhelpers.reports.page import Report
from nbhelpers.reports.writing import report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run; no test changes its result."""
    return write_run(tmp_path_factory.mktemp("runs") / "clones-codegpt-0123456789")


@pytest.fixture(scope="module")
def made(finished: Path) -> Report:
    """Return the report of the finished run."""
    return report(finished, show=False)


def test_a_split_with_the_natural_prior_is_not_weighted_to_it_again(
    finished: Path, tmp_path: Path
) -> None:
    own = json.loads((finished / "result.json").read_text())["scores"]["test"]["prior"]
    at = {"natural": {"prior": own + 0.003, "f1": 0.4321}, "rare": {"prior": 0.01, "f1": 0.1234}}
    page = seen(changed(finished, tmp_path, scores__test__at_prior=at))
    assert f"That is about the prior natural ({100 * own + 0.3:.1f} %): scores stand" in page
    assert "F1 would be 0.432" not in page
    assert "At a prior of 1.0 % clones (rare) F1 would be 0.123" in page
    assert "this sample" in page and "natural" in page  # both are in the table


def test_a_curve_drawn_through_fewer_points_than_pairs_says_so(
    finished: Path, made: Report, tmp_path: Path
) -> None:
    assert "points at most" not in seen(made)
    other = report(shutil.copytree(finished, tmp_path / "all"), show=False)
    assert "curves" in other.plots
    result = json.loads((finished / "result.json").read_text())
    result["scores"]["test"]["n_pairs"] = 415_416
    (tmp_path / "all" / "result.json").write_text(json.dumps(result))
    page = seen(report(tmp_path / "all", show=False))
    assert "drawn through 2,000 points at most; areas are of all 415,416 pairs." in page
