"""The report of a study: all its runs in one table, compared pair by pair, with their cost.

It is made of the run folders, so it can be made again at any time, also while the study runs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.speeds import SpeedRow, row_of, shipped_rows
from nbhelpers.budget.time import predict_time
from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import duration, listed, size
from nbhelpers.common.result_files import Result
from nbhelpers.errors import NbhelpersError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES
from nbhelpers.plan import plan_batch
from nbhelpers.reports.blocks import (
    VERBATIM,
    Block,
    Figure,
    KeyFigure,
    Section,
    Summary,
    Table,
    Text,
    texts,
)
from nbhelpers.reports.comparison import (
    SCORES,
    SETTLED,
    among,
    cost_block,
    loss_block,
    scores_figure,
    unlike_bases,
)
from nbhelpers.reports.differences import NOT_COMPARABLE, Pair, Side, pair_table
from nbhelpers.reports.rendering import Report, write_report
from nbhelpers.reports.sections import caveat
from nbhelpers.runs.study_results import HEADS, SHOWN, StudyResult, StudyRow

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset

FILE_NAME = "study.html"
FEW_SEEDS = 3
TIME_NOISE = 0.2  # of a run's time, on a machine that others may use too


def report_study(study_result: StudyResult, *, show: bool = True) -> Report:
    """Write `study.html` and its plots into the study's folder and return the report.

    Args:
        study_result: From `run_study` or `open_study`; runs without a result are named.
        show: Write the text to the terminal. In a notebook the report shows itself as the value of
            its cell, and nothing is written twice.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    study, pairs = study_result, pairs_of(study_result)
    study_report = write_report(
        study.path,
        study.path / FILE_NAME,
        summary(study, pairs),
        blocks(study, pairs),
        run_id=study.path.name,
        status=_finished(study),
    )
    if show and not is_notebook():
        sys.stdout.write(study_report.text)
    return study_report


def summary(study: StudyResult, pairs: Sequence[Pair]) -> Summary:
    """Return what the report opens with."""
    names = ", ".join(dict.fromkeys(row.planned.adapter for row in study.rows))
    among, against = among_adapters(study, pairs), against_base(study, pairs)
    verdict = "; ".join([*among, *against]) or f"Nothing to compare: {_finished(study)}"
    waiting = [f"{row.name} ({row.status})" for row in study.rows if row.result is None]
    finished = KeyFigure("runs finished", f"{len(study.finished)} of {len(study.rows)}")
    if waiting:
        finished = KeyFigure(finished.title, finished.value, f"without: {', '.join(waiting)}")
    return Summary(
        title=f"study: {study.rows[0].settings.model if study.rows else ''}, {names}",
        verdict=f"{verdict if among else verdict[:1].upper() + verdict[1:]}.",
        alarms=[f"Without a result: {line}" for line in study.failure_lines()],
        caveat=next(
            filter(None, [*(caveat(side.result) for side in sides_of(study)), *doubts(study)]), ""
        ),
        figures=[finished, *_time_of_all(study), *cheapest(study, pairs)],
        picture=Figure("scores", SCORES, lambda: scores_figure(sides_of(study))),
        where=f"Study {study.path.name}.",
    )


def blocks(study: StudyResult, pairs: Sequence[Pair]) -> list[Block]:
    """Return the sections of the report."""
    note = "In brackets 95 % intervals over samples. An empty cell was not measured."
    compared = (
        "On the same samples, the first minus the second, with the 95 % interval. Better or worse: "
        "the interval leaves out 0, and chance alone rarely reaches the difference (p, for all "
        "comparisons of a score with the second adapter together, after Holm; nbhelpers compare "
        "takes all pairs of a score together, so p may be more there)."
    )
    sides = sides_of(study)
    seeds = Table("seeds", list(seed_rows(study)))
    return [
        Section("All runs", [Table("runs", study.cells(), HEADS)], "runs", note, is_open=True),
        Section("Pair by pair", [pair_table(pairs, "adapter")], "pairs", compared),
        Section("Spread over seeds", [seeds], "seeds"),
        Section("What to hold against this", texts(doubts(study)), "doubts"),
        Section("Loss", [loss_block(sides)], "loss"),
        Section("Memory and time", [cost_block(sides)], "cost"),
        Section(
            "On other GPUs (predicted)",
            [Table("other_gpus", other_gpus(study))],
            "other_gpus",
            in_text=False,
        ),
        _repeat(study),
    ]


def _finished(study: StudyResult) -> str:
    return f"{len(study.finished)} of {len(study.rows)} runs finished"


# ------------------------------------------------------------------------------------------------
# Every pair of adapters, and the spread over seeds.


def pairs_of(study: StudyResult) -> list[Pair]:
    """Return every pair of adapters that has generations, score by score, later minus earlier.

    The verdicts account for all comparisons of a score with the same adapter (Holm), so they are
    those of `StudyResult.verdicts`.
    """
    return [pair for split, metric in _scores(study) for pair in _pairs(study, split, metric)]


def _scores(study: StudyResult) -> list[tuple[str, str]]:
    """Return the scores, as (split, metric), that at least one run of a study has."""
    return [key for key in SHOWN if any(_value(row, *key) is not None for row in study.finished)]


def _value(row: StudyRow, split: str, metric: str) -> float | None:
    return row.number("scores", split, "metrics", metric)


def _adapters(study: StudyResult) -> dict[str, list[StudyRow]]:
    """Return the finished runs by adapter, in the order of the study; seeds do not count."""
    runs: dict[str, list[StudyRow]] = {}
    for row in study.finished:
        runs.setdefault(row.planned.adapter, []).append(row)
    return runs


def _pairs(study: StudyResult, split: str, metric: str) -> Iterator[Pair]:
    names = [
        name
        for name, rows in _adapters(study).items()
        if any(_value(row, split, metric) is not None for row in rows)
    ]
    least = 1 / (study.rows[0].settings.bootstrap_samples + 1)
    for at, second in enumerate(names[:-1]):
        try:
            against = study.compare(f"{split}.{metric}", baseline=second)["against"]
        except NbhelpersError as error:
            for first in names[at + 1 :]:
                values = (None, None, None, None, NOT_COMPARABLE, error.message)
                yield Pair(first, second, split, metric, *values)
            continue
        for first in (name for name in names[at + 1 :] if name in against):
            yield Pair.of((first, second, split, metric), against[first], "_holm", least=least)


def seed_rows(study: StudyResult) -> Iterator[dict[str, Any]]:
    """Yield mean, spread and range of each adapter's scores over seeds; nothing of one seed."""
    for name, runs in _adapters(study).items():
        if len({row.settings.seed for row in runs}) < 2:
            continue
        for split, metric in _scores(study):
            values = [v for row in runs if (v := _value(row, split, metric)) is not None]
            if len(values) < 2:
                continue
            form = f".{FINETUNE_SCORES.metric(metric).decimals}f"
            spread = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
            spread |= {"lowest": min(values), "highest": max(values)}
            yield {
                "adapter": name,
                "split": Cell(split, label=TITLES.get(split, split)),
                "metric": Cell(metric, label=TITLES.get(metric, metric)),
                "seeds": len(values),
                **{what: Cell(value, form) for what, value in spread.items()},
            }


# ------------------------------------------------------------------------------------------------
# What the adapters differ in, and which of them costs least.


def _bases(study: StudyResult) -> set[str]:
    return {row.planned.adapter for row in study.rows if row.settings.method == "base"}


def among_adapters(study: StudyResult, pairs: Sequence[Pair]) -> list[str]:
    """Return which trained adapter is better than which, or that all are alike."""
    return among([name for name in _adapters(study) if name not in _bases(study)], pairs)


def against_base(study: StudyResult, pairs: Sequence[Pair]) -> list[str]:
    """Return which adapters are better than the base model, and in what."""
    bases = _bases(study)
    ours = [p for p in pairs if p.second in bases and p.first not in bases]
    by_score: dict[tuple[str, str], list[str]] = {}
    for pair in ours:
        by_score.setdefault((pair.verdict, pair.title), []).append(pair.first)
    titles_of: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (verdict, title), names in by_score.items():
        titles_of.setdefault((verdict, tuple(names)), []).append(title)
    everyone = {pair.first for pair in ours}
    clauses = [
        f"{'all are' if set(names) == everyone and len(names) > 1 else _are(names)} {verdict} in "
        f"{', '.join(titles)}"
        for (verdict, names), titles in titles_of.items()
    ]
    return [f"against the base model {'; '.join(clauses)}"] if clauses else []


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _time_of_all(study: StudyResult) -> list[KeyFigure]:
    seconds = [row.time_s for row in study.finished if row.time_s is not None]
    has_pretraining = any(row.number("timing", "pretrain_s") for row in study.finished)
    note = "without pre-training" if has_pretraining else ""
    return [KeyFigure("time of all runs", duration(sum(seconds)), note)] if seconds else []


def cheapest(study: StudyResult, pairs: Sequence[Pair]) -> list[KeyFigure]:
    """Return the least time and the least memory of the adapters that no other beats.

    Times that differ by less than a fifth tell nothing on a shared machine.
    """
    beaten = {p.second if p.verdict == "better" else p.first for p in pairs if p.verdict in SETTLED}
    rows = [r for r in study.finished if r.planned.adapter not in _bases(study) | beaten]
    of_whom = ", which no other beats" if len(set(_adapters(study)) - _bases(study)) > 1 else ""
    timed = sorted((row.time_s, row.name) for row in rows if row.time_s is not None)
    peaks = [(row.number("memory", "measured_bytes"), row.name) for row in rows]
    sized = sorted(peak for peak in peaks if peak[0] is not None)
    least = []
    if pairs and timed:
        quick = [name for seconds, name in timed if seconds <= timed[0][0] * (1 + TIME_NOISE)]
        noise = f" (below {100 * TIME_NOISE:.0f} % is noise)" if len(quick) > 1 else ""
        note = f"{listed(quick)}{noise}{of_whom}"
        least.append(KeyFigure("least time", duration(timed[0][0]), note))
    if pairs and sized:
        note = f"{sized[0][1]}{of_whom}"
        least.append(KeyFigure("least memory", size(sized[0][0]), note))
    return least


def doubts(study: StudyResult) -> list[str]:
    """Return what to hold against the comparison: the sample's note, few seeds, a GPU not free."""
    notes = [side.result.data.note for side in sides_of(study)]
    sentences = [*dict.fromkeys(str(note) for note in notes if note), *study.notes()]
    seeds = {row.settings.seed for row in study.rows}
    if len(seeds) < FEW_SEEDS:
        few = {1: "One seed", 2: "Two seeds"}[len(seeds)]
        sentences.append(
            f"{few}: the intervals are over samples only, and another seed would train another "
            "adapter. Three seeds or more tell how much that matters."
        )
    sentences += unlike_bases(sides_of(study))
    for row in study.rows:
        if row.baseline is not None and not row.baseline.is_back:
            sentences.append(f"After {row.name} the GPU was {row.baseline.words()}.")
    return sentences


# ------------------------------------------------------------------------------------------------
# What a measured run would take on other GPUs, predicted from its own speed.


OTHERS = ("t4", "l4", "a100-40gb", "a100-80gb", "rtx6000ada", "h100")


def other_gpus(study: StudyResult) -> list[dict[str, str]]:
    """Return what each trained run would take on other GPUs: predicted from its own speed.

    The same settings everywhere, and one GPU there for each one here; empty where none trained on
    a GPU.
    """
    rows = []
    for runs in _adapters(study).values():
        row = runs[0]
        own = row_of(row.run.record or {}, row.result.data)  # type: ignore[union-attr]
        if own is None or own.device not in known_gpus():
            continue
        for key in dict.fromkeys((own.device, *OTHERS)):
            cells = _on(row.planned.preset, plan_hardware(key, own.world_size), own)
            rows.append({"run": row.name, "GPU": key} | cells)
    return rows


def _on(preset: Preset, hardware: Hardware, own: SpeedRow) -> dict[str, str]:
    """Return the predicted time and memory on some hardware, or why the settings cannot run."""
    try:
        plan = plan_batch(preset, hardware)
        budget = predict_memory(preset, plan, hardware, advise=False)
        time = predict_time(preset, plan, hardware, rows=(own, *shipped_rows()))
    except NbhelpersError as error:
        return {"time (predicted)": error.message, "memory (predicted)": ""}
    memory = f"{budget.need()}: {budget.verdict}"
    return {"time (predicted)": time.words(), "memory (predicted)": memory}


# ------------------------------------------------------------------------------------------------
# Figures, and how to repeat it.


def sides_of(study: StudyResult) -> list[Side]:
    """Return the finished runs as what a comparison takes."""
    return [
        Side(row.name, Result.checked(row.result.data, row.run.path), row.run.path)  # type: ignore[union-attr]
        for row in study.finished
    ]


def _repeat(study: StudyResult) -> Section:
    """Return the one command of a study, else those of its runs, and their folders."""
    command = study.study.command()
    rows = [
        {
            "run": row.name,
            "folder": row.run.id,
            "command": "" if command else str((row.run.record or {}).get("command") or ""),
        }
        for row in study.rows
    ]
    content = [Text(command or "", VERBATIM), Table("folders", rows)]
    return Section("To repeat this study", content, "repeat", in_text=False)
