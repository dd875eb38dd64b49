"""The report of a study: all its runs in one table, compared pair by pair, with their cost.

It is made of the run folders, so it can be made again at any time, also while the study runs.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.machine import is_notebook
from nbhelpers.metric_registry import TITLES, written
from nbhelpers.report_facts import shown
from nbhelpers.report_page import STYLE, Report, figure, page, paragraph, section, table_of
from nbhelpers.report_study_pairs import (
    Pair,
    adapters_of,
    pairs_of,
    pairs_table,
    scores_of,
    seeds_table,
)
from nbhelpers.report_study_words import doubts, headline, pair_lines, run_lines
from nbhelpers.study_table import StudyResult

if TYPE_CHECKING:
    import pandas as pd

    from nbhelpers.plots_finetune import Series

FILE_NAME = "study.html"
LAST = ("rank", "alpha", "predicted time", "GPU after it")  # columns at the right of the table
CAPTIONS = {
    "loss": "Loss by optimizer step of all runs: on train as logged, on valid while training.",
    "scores": "Scores of all runs with their 95 % intervals over samples. "
    "Intervals that overlap do not mean that a difference is noise: the pairs below tell.",
    "cost": "Peak memory, predicted beside measured, and time of each run, evaluation included.",
}


def report_study(study_result: StudyResult, *, show: bool = True) -> Report:
    """Write `study.html` and its plots into the study's folder and return the report.

    Args:
        study_result: From `run_study` or `open_study`; runs without a result are named.
        show: Write the text to the terminal. In a notebook the report shows itself as the value of
            its cell, and nothing is written twice.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    from nbhelpers.plots import save_figures

    study, target = study_result, study_result.path / FILE_NAME
    pairs = pairs_of(study)
    tables = {"runs": study.table, "pairs": pairs_table(pairs), "seeds": seeds_table(study)}
    tables = {name: table for name, table in tables.items() if len(table)}
    try:
        plots = save_figures(study.path, _figures(study))
        fragment = _body(study, pairs, tables, plots)
        draft = target.with_name(f".{target.name}.partial")
        text = page(f"Report of {study.path.name}", fragment)
        draft.write_text(text, encoding="utf-8", errors="replace")
        draft.replace(target)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {study.path}: {error.strerror or error}.",
            fix="make the study's folder writable, or copy it to a place of your own",
        ) from error
    made = Report(
        run_id=study.path.name,
        status=f"{len(study.finished)} of {len(study.rows)} runs finished",
        path=target,
        text=_text(study, pairs, target),
        tables=tables,
        plots=plots,
        html=fragment,
    )
    if show and not is_notebook():
        sys.stdout.write(made.text)
    return made


def _figures(study: StudyResult) -> dict[str, object]:
    from nbhelpers import plots_finetune as draw

    runs = [_series(row.name, row.result.data, row.time_s) for row in study.finished]
    return {
        "loss": draw.study_loss_figure(runs),
        "scores": draw.study_scores_figure(runs, scores_of(study)),
        "cost": draw.study_cost_figure(runs),
    }


def _series(name: str, data: Mapping[str, object], seconds: float | None) -> Series:
    from nbhelpers.plots_finetune import Series
    from nbhelpers.report_facts import dig

    return Series(
        name=name,
        training=data.get("training"),
        scores=data.get("scores") or {},
        predicted_bytes=dig(data, "memory", "predicted_bytes"),
        measured_bytes=dig(data, "memory", "measured_bytes"),
        seconds=seconds,
    )


def _text(study: StudyResult, pairs: Sequence[Pair], target: Path) -> str:
    from nbhelpers.report_words import wrapped

    after = [*pair_lines(pairs), *(f"Without a result: {line}" for line in study.failure_lines())]
    after += [f"Note: {said}" for said in doubts(study)]
    lines = [*wrapped([headline(study, pairs)]), "", *run_lines(study), "", *wrapped(after)]
    return shown("\n".join([*lines, f"Report: {target}"]) + "\n")


def _body(
    study: StudyResult,
    pairs: Sequence[Pair],
    tables: Mapping[str, pd.DataFrame],
    plots: Mapping[str, Path],
) -> str:
    names = ", ".join(dict.fromkeys(row.planned.adapter for row in study.rows))
    model = study.rows[0].settings.model if study.rows else ""
    head = [f"<h1>{_escaped(f'study: {model}, {names}')}</h1>"]
    head.append(paragraph(headline(study, pairs), "lead"))
    head += [paragraph(f"Without a result: {line}", "bad") for line in study.failure_lines()]
    head.append(paragraph(f"Study {study.path.name}.", "note"))
    note = "A score's interval is in brackets: 95 % over samples. An empty cell was not measured."
    parts = [
        section("All runs", table_of(_run_cells(study), classes="lines"), note),
        figure(plots, "scores", CAPTIONS["scores"]),
        _pairs_section(pairs),
        section("Spread over seeds", table_of(_seed_cells(tables.get("seeds")))),
        section("Loss", figure(plots, "loss", CAPTIONS["loss"])),
        section("Memory and time", figure(plots, "cost", CAPTIONS["cost"])),
        _elsewhere(study),
        section("What to hold against this", "".join(paragraph(said) for said in doubts(study))),
        section("To repeat this study", _repeat(study)),
    ]
    return shown(f'<div class="nbh wide"><style>{STYLE}</style>{"".join([*head, *parts])}</div>')


def _escaped(text: str) -> str:
    return html.escape(text)


def _run_cells(study: StudyResult) -> pd.DataFrame:
    """Return the runs with their scores first; an interval stands on a line of its own."""
    import pandas as pd

    rows = study.cells()
    scores = [name for name in rows[0] if any("[" in row[name] for row in rows)] if rows else []
    first = ["adapter", "seed", "status", "trainable", *scores]
    order = [name for name in first if rows and name in rows[0]]
    last = [name for name in LAST if rows and name in rows[0]]
    order += [name for name in (rows[0] if rows else ()) if name not in (*order, *last)] + last
    marked = [{name: row[name].replace(" [", "\n[") for name in order} for row in rows]
    return pd.DataFrame(marked)


def _pairs_section(pairs: Sequence[Pair]) -> str:
    import pandas as pd

    rows: dict[str, dict[str, str]] = {}
    for pair in pairs:
        named = f"{pair.first} against {pair.second}"
        said = f"{pair.verdict}\n{pair.measured().strip('()')}"
        said += f"\n{pair.p_words()}".rstrip()
        rows.setdefault(named, {"adapters": named})[pair.title] = said
    note = (
        "On the same samples, the first minus the second, with the 95 % interval. Better or worse: "
        "the interval leaves out 0, and chance alone rarely reaches the difference (p, for all "
        "comparisons of a score with the second adapter together, after Holm)."
    )
    table = pd.DataFrame(list(rows.values())).fillna("")
    return section("Pair by pair", table_of(table, classes="lines"), note)


def _seed_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    import pandas as pd

    if table is None:
        return None
    rows = []
    for row in table.to_dict("records"):
        metric, split = row["metric"], row["split"]
        cells = {"adapter": row["adapter"], "score": TITLES.get(metric, metric)}
        cells |= {"on": TITLES.get(split, split), "seeds": str(row["seeds"])}
        names = ("mean", "std", "lowest", "highest")
        rows.append(cells | {name: written(metric, row[name]) for name in names})
    return pd.DataFrame(rows)


def _elsewhere(study: StudyResult) -> str:
    """Return what each trained run would take on other GPUs, named as estimates."""
    import pandas as pd

    from nbhelpers.study_elsewhere import estimate_elsewhere

    rows, notes = [], []
    for name in adapters_of(study):
        row = next(r for r in study.finished if r.planned.adapter == name)
        try:
            found = estimate_elsewhere(row.result)
        except NbhelpersError:  # a CPU, an unknown GPU, or a run that trained nothing
            continue
        heads = found.HEADS
        for each in found.rows:
            cells = zip(heads, each.cells(), strict=True)
            rows.append({"run": row.name} | dict(cells))
        notes += [note for note in found.assumptions if note not in notes]
    content = table_of(pd.DataFrame(rows)) + "".join(paragraph(note, "note") for note in notes)
    return section("On other GPUs (estimates)", content if rows else "")


def _repeat(study: StudyResult) -> str:
    """Return the one command of a study, else those of its runs, and their folders."""
    import pandas as pd

    command = study.study.command()
    rows = []
    for row in study.rows:
        told = {} if command else {"command": str((row.run.record or {}).get("command") or "")}
        rows.append({"run": row.name, "folder": row.run.id} | told)
    one = f'<pre class="code">{_escaped(command)}</pre>' if command else ""
    return one + table_of(pd.DataFrame(rows), classes="long")
