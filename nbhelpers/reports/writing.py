"""The last arrow of the flow: result → report, as tables, plots, one HTML page and a terminal text.

A report is made of the run folder alone, so it can be made again at any time and by anyone who has
the folder. A run that failed, was stopped or still runs gets a report of what is known so far.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_file
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.presets.jobs import resolve
from nbhelpers.reports.blocks import Block, Summary
from nbhelpers.reports.facts import RunFacts, read_facts
from nbhelpers.reports.rendering import Report, write_report
from nbhelpers.reports.sections import spec_of

if TYPE_CHECKING:
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
    facts = read_facts(run_or_result)
    run_report = write_report(
        facts.run.path,
        facts.run.report_path,
        *compose(facts),
        run_id=facts.result.run_id or facts.run.id,
        status=facts.status,
    )
    if show and not is_notebook():
        sys.stdout.write(run_report.text)
    return run_report


def compose(facts: RunFacts) -> tuple[Summary, list[Block]]:
    """Return what a run's report opens with, and its blocks, by the module that its job names."""
    job = resolve(spec_of(facts).report)
    return job.summary(facts), job.blocks(facts)


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
