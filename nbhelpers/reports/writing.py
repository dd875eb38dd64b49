"""The last arrow of the flow: result → report, as tables, plots, one HTML page and a terminal text.

A report is made of the run folder alone, so it can be made again at any time and by anyone who has
the folder. A run that failed, was stopped or still runs gets a report of what is known so far.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_file
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.reports.facts import RunFacts, read_facts
from nbhelpers.reports.page import Report, page

if TYPE_CHECKING:
    import pandas as pd

    from nbhelpers.runs.study_results import StudyResult

STUDY_FILE = "study.json"


def report(run_or_result: Any, *, show: bool = True) -> Report:
    """Write `report.html` and its plots into the run folder and return the report.

    Args:
        run_or_result: A run folder (path), a run or its result; or a study, see `report_study`.
        show: Write the text to the terminal. In a notebook the report shows itself as the value of
            its cell, and nothing is written twice.

    Raises:
        ConfigError: There is no such run folder, or it cannot be written to.
    """
    if (study := _study_of(run_or_result)) is not None:
        from nbhelpers.reports.study import report_study

        return report_study(study, show=show)
    from nbhelpers.reports.figures import save_plots
    from nbhelpers.reports.html import body
    from nbhelpers.reports.text import as_text

    facts = read_facts(run_or_result)
    target, title = facts.run.report_path, f"Report of {facts.run.id}"
    try:
        tables, plots = make_tables(facts), save_plots(facts)
        fragment = body(facts, tables, plots)
        draft = target.with_name(f".{target.name}.partial")
        draft.write_text(page(title, fragment), encoding="utf-8", errors="replace")
        draft.replace(target)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {facts.run.path}: {error.strerror or error}.",
            fix="make the run's folder writable, or copy it to a place of your own",
        ) from error
    run_report = Report(
        run_id=str(facts.get("run_id") or facts.run.id),
        status=facts.status,
        path=target,
        text=as_text(facts, tables, str(target)),
        tables=tables,
        plots=plots,
        html=fragment,
    )
    if show and not is_notebook():
        sys.stdout.write(run_report.text)
    return run_report


def _study_of(run_or_study: Any) -> StudyResult | None:
    """Return the study that is meant, also by its folder; None for a run."""
    from nbhelpers.runs.studies import open_study
    from nbhelpers.runs.study_results import StudyResult

    if isinstance(run_or_study, StudyResult):
        return run_or_study
    if not isinstance(run_or_study, str | Path):
        return None
    folder = expanded(run_or_study, "the run")
    return open_study(folder) if is_file(folder / STUDY_FILE) else None


def make_tables(facts: RunFacts) -> dict[str, pd.DataFrame]:
    """Return all tables by name: what the run holds, and the comparison with the legacy script."""
    from nbhelpers.reports.legacy import legacy_table
    from nbhelpers.reports.tables import all_tables

    tables = all_tables(facts)
    legacy = legacy_table(facts)
    return tables | ({"legacy": legacy} if len(legacy) else {})
