"""The last arrow of the flow: result → report, as tables, plots, one HTML page and a terminal text.

A report is made of the run folder alone, so it can be made again at any time and by anyone who has
the folder. A run that failed, was stopped or still runs gets a report of what is known so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_file
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.presets.jobs import resolve
from nbhelpers.reports.blocks import Block, Figure, Summary, Table, walk
from nbhelpers.reports.facts import RunFacts, read_facts
from nbhelpers.reports.figures import save_figures
from nbhelpers.reports.page import Report
from nbhelpers.reports.rendering import as_html, as_text
from nbhelpers.reports.sections import spec_of

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
    facts = read_facts(run_or_result)
    if not hasattr(resolve(spec_of(facts).report), "blocks"):
        run_report = _old_report(facts)
    else:
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


def frames(blocks: Sequence[Block]) -> dict[str, pd.DataFrame]:
    """Return the tables of a report by their codes, to compute with."""
    tables = [block for block in walk(blocks) if isinstance(block, Table) and block.rows]
    return {table.code: table.frame() for table in tables}


def write_report(
    folder: Path,
    path: Path,
    summary: Summary,
    blocks: Sequence[Block],
    *,
    run_id: str,
    status: str,
) -> Report:
    """Write the page and its figures into a folder and return the report.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    pictures = [b for b in [summary.picture, *walk(blocks)] if isinstance(b, Figure)]
    drawn = {picture.name: picture.draw() for picture in pictures}
    try:
        plots = save_figures(folder, drawn)
        images = {name: plot.read_bytes() for name, plot in plots.items()}
        document = as_html(summary, blocks, images, page_title=f"Report of {run_id}")
        draft = path.with_name(f".{path.name}.partial")
        draft.write_text(document, encoding="utf-8", errors="replace")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {folder}: {error.strerror or error}.",
            fix="make the folder writable, or copy it to a place of your own",
        ) from error
    return Report(
        run_id=run_id,
        status=status,
        path=path,
        text=as_text(summary, blocks, str(path)),
        tables=frames(blocks),
        plots=plots,
        html=as_html(summary, blocks, images),
    )


def _old_report(facts: RunFacts) -> Report:
    from nbhelpers.reports.figures import save_plots
    from nbhelpers.reports.html import body
    from nbhelpers.reports.page import page
    from nbhelpers.reports.text import as_text

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
    return Report(
        run_id=str(facts.get("run_id") or facts.run.id),
        status=facts.status,
        path=target,
        text=as_text(facts, tables, str(target)),
        tables=tables,
        plots=plots,
        html=fragment,
    )


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
    """Return all tables by name."""
    from nbhelpers.reports.tables import all_tables

    return all_tables(facts)
