"""Any run folders side by side: what differed, the scores, whether chance explains them, the cost.

The folders may come from other machines, of one job or several. What cannot be read, or has no
result yet, is named in a line, and the rest goes on. A study's report is made of the same parts.
"""

from __future__ import annotations

import glob
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from nbhelpers.common.display import Cell, cut
from nbhelpers.common.files import expanded, is_file, is_folder
from nbhelpers.common.formatting import duration, listed
from nbhelpers.common.result_files import Similarity
from nbhelpers.errors import ConfigError, DataError, NbhelpersError
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.metrics.registry import TEXT
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.reports import figures, sections
from nbhelpers.reports.blocks import Block, Figure, KeyFigure, Section, Summary, Table, texts
from nbhelpers.reports.differences import SPACE, Pair, Side, draws, pair_table, paired
from nbhelpers.reports.facts import RunFacts, read_facts
from nbhelpers.reports.rendering import Report, write_report
from nbhelpers.runs.run import folders_with
from nbhelpers.runs.studies import FILE_NAME as STUDY_FILE
from nbhelpers.runs.studies import open_study

PAGE = "comparison.html"
SETTLED = ("better", "worse")
WITHIN_NOISE = "within noise"
FEW = 4  # runs of a job; of more, the first scores alone are compared pair by pair
RUN_FILES = ("run.json", "result.json", "events-rank0.jsonl", "events-launcher.jsonl")
SCORES = (
    "Scores of all runs with their 95 % intervals over samples. Intervals that overlap do not mean "
    "that a difference is noise: the pairs below tell."
)
COST = "Peak memory, predicted beside measured, and time of each run, evaluation included."
LOSS = "Loss by optimizer step of all runs: on train as logged, on valid while training."
COMPARED = (
    "The first minus the second, with the 95 % interval. Better or worse: the interval leaves out "
    "0, and chance alone rarely reaches the difference (p, for all pairs of a score together, "
    "after Holm; a study's report takes those with one adapter together, so p may be less there). "
    "Row by row where both runs' predictions of the same test rows are there; else by their two "
    "intervals, which shows less, and says so."
)
COST_HEADS = {
    **{"time_s": "time", "predicted_time": "predicted time", "peak_bytes": "peak memory"},
    **{"predicted_peak_bytes": "predicted memory", "error_percent": "error"},
    **{"useful_tokens_per_s": "useful tokens/s", "cost": "cost"},
}


def compare(
    runs: str | Path | Iterable[str | Path],
    *,
    run_dir: str | Path = "runs",
    price_per_hour: float | None = None,
    folder: str | Path | None = None,
    show: bool = True,
) -> Report:
    """Compare runs and return the report, which is also written as `comparison.html`.

    Args:
        runs: Run folders, ids, studies, folders of runs, or patterns such as `runs/clones-*`.
        run_dir: Where an id is looked for.
        price_per_hour: Of the machine; None: what each run was launched with.
        folder: Where the page is written; None: a folder of its own in `run_dir`.
        show: Write the text to the terminal. In a notebook the report shows itself.

    Raises:
        ConfigError: No run is found or can be read, a price is no number above zero, or the page
            cannot be written.
    """
    if price_per_hour is not None and not 0 < price_per_hour < float("inf"):
        text = f"price_per_hour={price_per_hour!r} is no number above zero."
        raise ConfigError(text, fix="give the price of the machine, such as 1.5, or none")
    root = expanded(run_dir, "run_dir").absolute()
    paths = run_folders([runs] if isinstance(runs, str | Path) else list(runs), root)
    members, problems = read_members(paths)
    if not members:
        text = f"No run can be read: {'; '.join(problems)}."
        raise ConfigError(text, fix="name folders of runs that are whole")
    digest = hashlib.sha256("\n".join(map(str, paths)).encode()).hexdigest()[:10]
    page = root / f"comparison-{digest}" if folder is None else expanded(folder, "folder")
    try:
        page.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"The folder {page} cannot be made: {error.strerror or error}."
        raise ConfigError(text, fix="name another folder for the page") from error
    pairs = list(pairs_of(members))
    made = write_report(
        page,
        page / PAGE,
        summary(members, problems, pairs, price_per_hour),
        blocks(members, pairs, price_per_hour),
        run_id=page.name,
        status=f"{len(members)} of {len(paths)} runs",
    )
    if show and not is_notebook():
        sys.stdout.write(made.text)
    return made


# ------------------------------------------------------------------------------------------------
# Which folders are meant, and what can be read of them.


def run_folders(names: Sequence[str | Path], root: Path) -> list[Path]:
    """Return the run folders that names mean, each once, in their order.

    Raises:
        ConfigError: They mean none, or one is empty.
    """
    if not all(str(name).strip() for name in names):
        raise ConfigError("The name of a run is empty.", fix="write one, or . for this folder")
    paths = [folder for name in names for folder in _meant(str(name), root)]
    if not paths:
        text = f"There is no run to compare in {', '.join(map(str, names)) or 'an empty list'}."
        fix = "name run folders, a folder of runs, or a pattern such as runs/*; train one first"
        raise ConfigError(text, fix=fix)
    return list(dict.fromkeys(paths))


def _meant(name: str, root: Path) -> Iterator[Path]:
    path = expanded(name, "the run")
    if glob.has_magic(name):
        places = (each.absolute() for each in (path, root / name))
        matches = (sorted(Path(p.anchor).glob(str(p.relative_to(p.anchor)))) for p in places)
        yield from next(filter(None, ([r for m in ms for r in _inside(m)] for ms in matches)), [])
        return
    folder = next((each for each in (path, root / path) if is_folder(each)), path).absolute()
    yield from list(_inside(folder)) or [folder]  # a folder without a run is named as such


def _inside(folder: Path) -> Iterator[Path]:
    """Yield a run's folder, those of a study, or the runs that a folder holds, the oldest first."""
    if is_file(folder / STUDY_FILE):
        yield from (row.run.path for row in open_study(folder).rows)
    elif any(is_file(folder / name) for name in RUN_FILES):
        yield folder
    elif is_folder(folder):
        held = dict.fromkeys(each for name in RUN_FILES for each in folders_with(name, folder))
        yield from (each for each in reversed(held) if "~" not in each.name)


def read_members(paths: Sequence[Path]) -> tuple[list[Side], list[str]]:
    """Return the runs that can be read, and a line for each that cannot or has no result."""
    known: dict[Path, RunFacts | NbhelpersError] = {}
    for path in paths:
        try:
            known[path] = read_facts(path)
        except NbhelpersError as error:
            known[path] = error
    names = {path: _short_name(path, facts) for path, facts in known.items()}
    often = Counter(names.values())
    members, problems = [], []
    for path, facts in known.items():
        name = names[path] if often[names[path]] == 1 else f"{path.parent.name}/{path.name}"
        if isinstance(facts, NbhelpersError):
            problems.append(f"{path.name}: {first_line(facts.message)}")
            continue
        members.append(Side(name, facts.result, path, facts))
        if not facts.is_complete:
            why = " ".join(sections.problems(facts)[:1]) or sections.unscored(facts)
            problems.append(f"{path.name} ({facts.status}): {first_line(why)}")
    return members, problems


def first_line(text: str) -> str:
    """Return the first line of a text, whole: a reason is not cut."""
    return text.partition("\n")[0]


def _short_name(path: Path, facts: RunFacts | NbhelpersError) -> str:
    """Return the adapter or job of a run with the beginning of its hash; else its folder's name."""
    digest = re.fullmatch(r".+-([0-9a-f]{4})[0-9a-f]{6}", path.name)
    if isinstance(facts, NbhelpersError) or digest is None:
        return path.name
    return f"{facts.adapter or facts.job or 'run'} {digest[1]}"


# ------------------------------------------------------------------------------------------------
# The pairs: on the same rows where both runs have them, else by their intervals.


def by_job(members: Iterable[Side]) -> dict[str, list[Side]]:
    """Return the runs that have scores by job, in their order."""
    jobs: dict[str, list[Side]] = {}
    for member in members:
        if member.result.scores or member.result.similarity != Similarity():
            jobs.setdefault(str(member.result.job), []).append(member)
    return jobs


def pairs_of(members: Iterable[Side]) -> Iterator[Pair]:
    """Yield every pair of runs of one job, score by score, later minus earlier."""
    from nbhelpers.metrics.compare import with_verdicts

    for runs in by_job(members).values():
        scores, keys = runs[0].scores, score_keys(runs[0], is_short=len(runs) > FEW)
        for split in dict.fromkeys(split for split, _ in keys):
            metrics = [metric for of, metric in keys if of == split]
            compared = {
                (first, second): _compared(second, first, split, metrics)
                for second, first in combinations(runs, 2)
            }
            for metric in metrics:
                by_pair = {key: of[metric] for key, of in compared.items() if metric in of}
                with_verdicts(by_pair, "the other", scores.metric(metric))
                for (first, second), each in by_pair.items():
                    names = (first.name, second.name, split, metric)
                    # A fine-tuning's p is drawn, and has a least; others are of a distribution.
                    is_drawn = first.result.job == FINETUNE.name and "n_differing" in each
                    least = 1 / (draws(second.result)["resamples"] + 1) if is_drawn else 0.0
                    yield Pair.of(names, each, "_holm", least=least, scores=scores)


def score_keys(run: Side, *, is_short: bool = False) -> list[tuple[str, str]]:
    """Return what runs of a job are compared in, as (split, metric): the headline comes first."""
    scores = run.scores
    splits = [split for split in scores.splits if split != "valid"]
    rest = [(s, n) for s in splits for n in scores.names(s, TEXT) if not n.endswith("_macro")]
    return list(dict.fromkeys([*scores.compared, *([] if is_short else rest)]))


def _compared(
    first: Side, second: Side, split: str, metrics: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return second minus first by metric that both have."""
    from nbhelpers.metrics.compare import refused, why_not_comparable
    from nbhelpers.metrics.compare_predictions import compare_intervals

    by_row: dict[str, dict[str, Any]] = {}
    damage = "its rows are not saved"
    try:
        if split != SPACE:
            by_row = paired(first, second, split)
    except DataError as error:
        damage = error.message
    compared: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        values = [side.value(split, metric) for side in (first, second)]
        if None in values:
            continue
        each = by_row.get(metric) or refused(damage)
        sides = [side.split_data(split) for side in (first, second)]
        if apart := why_not_comparable(*sides, metric):
            each = refused(apart)
        elif each["difference"] is None:
            edges = [side.edges(split, metric) for side in (first, second)]
            why, has_edges = each["reason"], all(each and None not in each for each in edges)
            if has_edges:
                each = compare_intervals(*zip(values, edges, strict=True))
            each["reason"] = f"by the two intervals: {why}" if has_edges else f"{why}; no interval"
        compared[metric] = each
    return compared


def among(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return which of these runs is better than which, or that all are alike."""
    pairs = [p for p in pairs if p.first in names and p.second in names]
    wins: dict[tuple[str, str], list[str]] = {}
    for pair in (p for p in pairs if p.verdict in SETTLED):
        sides = (pair.first, pair.second) if pair.verdict == "better" else (pair.second, pair.first)
        wins.setdefault(sides, []).append(pair.title)
    if not wins:
        verdicts = dict.fromkeys(pair.verdict for pair in pairs)
        if any(verdict != WITHIN_NOISE for verdict in verdicts):
            return [f"{listed(names)}: {', '.join(verdicts)}"]
        titles_of: dict[tuple[str, ...], list[str]] = {}  # by the runs that have such a score
        for title in dict.fromkeys(pair.title for pair in pairs):
            having = {name for p in pairs if p.title == title for name in (p.first, p.second)}
            titles_of.setdefault(tuple(n for n in names if n in having), []).append(title)
        return [
            f"{listed(having)} are within noise of each other ({', '.join(titles)})"
            for having, titles in titles_of.items()
        ]
    losers: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (winner, loser), titles in wins.items():
        losers.setdefault((winner, tuple(titles)), []).append(loser)
    clauses = [
        f"{winner} is better than {listed(names)} in {listed(titles)}"
        for (winner, titles), names in losers.items()
    ]
    rest = len({(p.first, p.second) for p in pairs}) > len(wins)
    return [*clauses, *(["the other pairs are within noise"] if rest else [])]


# ------------------------------------------------------------------------------------------------
# What the report opens with, and its sections.


def summary(
    members: Sequence[Side], problems: Sequence[str], pairs: Sequence[Pair], price: float | None
) -> Summary:
    """Return what the report opens with."""
    jobs = by_job(members)
    clauses = []
    headline = [pair for pair in pairs if pair.is_headline]
    for job, runs in jobs.items():
        names = [run.name for run in runs]
        own = [pair for pair in headline if pair.first in names]
        settled = sum(pair.verdict in SETTLED for pair in own)
        many = f"{job}: {settled} of {len(own)} differences between runs are beyond chance"
        clauses += [many] if len(runs) > FEW else among(names, own)
        without = [n for n in names if not any(n in (p.first, p.second) for p in own)]
        if without and len(runs) > 1:
            clauses.append(f"{listed(without)}: no score that another run of {job} has too")
    if alone := [job for job, runs in jobs.items() if len(runs) == 1]:
        clauses.append(f"one run of {' and one of '.join(alone)}: nothing to compare it with")
    if len(jobs) > 1:
        clauses.append("scores of different jobs are not compared: below, what each run has")
    verdict = "; ".join(clauses) or "no run has scores"
    if not verdict.startswith(tuple(member.name for member in members)):
        verdict = f"{verdict[:1].upper()}{verdict[1:]}"
    rows = [row for runs in jobs.values() for row in differences(runs, asked)]
    names, rest = [member.folder.name for member in members], len(members) - FEW
    what = dict.fromkeys(row["what"] for row in [*rows, *differences(members, machine_facts)])
    shown = [
        KeyFigure("runs", f"{len(members)}"),
        KeyFigure("differ in", f"{len(what)}", cut(", ".join(what))),
        KeyFigure("time of all runs", duration(sum(m.time_s or 0.0 for m in members))),
    ]
    costs = [cost for member in members if (cost := cost_of(member, price)) is not None]
    if costs:
        note = f"at {price:g} per hour" if price else "at the prices they were launched with"
        shown.append(KeyFigure("cost of all runs", f"{sum(costs):.2f}", note))
    results = [member.result for member in members]
    caveats = [*map(sections.sample_caveat, results), *map(sections.random_start, results)]
    return Summary(
        title=f"comparison: {listed(list(jobs)) or 'runs'}",
        verdict=f"{verdict}.",
        alarms=problems,
        caveat=" ".join(dict.fromkeys(filter(None, caveats))),
        figures=shown,
        picture=Figure("scores", SCORES, lambda: scores_figure(members)),
        where=f"Runs: {', '.join(names[:FEW])}{f' and {rest} more' if rest > 0 else ''}.",
    )


def blocks(members: Sequence[Side], pairs: Sequence[Pair], price: float | None) -> list[Block]:
    """Return the sections of the report."""
    jobs = by_job(members)
    headline = [pair for pair in pairs if pair.is_headline]
    others = [pair for pair in pairs if not pair.is_headline]
    scores = [Table(f"scores_{job}", list(score_rows(runs))) for job, runs in jobs.items()]
    more = [
        Table(f"other_scores_{job}", list(score_rows(runs, is_headline=False)))
        for job, runs in jobs.items()
    ]
    costs = Table("cost", [cost_row(member, price) for member in members], COST_HEADS)
    differing = [
        Table(f"differences_{job}", list(differences(runs, asked)), {"what": job})
        for job, runs in jobs.items()
    ]
    differing.append(Table("differences", list(differences(members, machine_facts)), {"what": ""}))
    repeat = [
        {"run": member.name, "folder": str(member.folder), "command": member.result.command}
        for member in members
    ]
    note = "In brackets 95 % intervals over samples. An empty cell was not measured."
    return [
        Section("Scores", scores, "scores", note, is_open=True),
        Section("Pair by pair", [pair_table(headline)], "pairs", COMPARED, is_open=True),
        Section(
            "The other scores, and their pairs",
            [*more, pair_table(others, code="other_pairs")],
            "other_scores",
            in_text=False,
        ),
        Section("What differs", differing, "differences", is_open=True),
        Section("Memory, time and cost", [costs, cost_block(members)], "cost"),
        Section("What to hold against this", texts(unlike_bases(members)), "doubts"),
        Section("Loss", [loss_block(members)], "loss"),
        Section("To repeat these runs", [Table("folders", repeat)], "repeat", in_text=False),
    ]


def score_rows(runs: Sequence[Side], *, is_headline: bool = True) -> Iterator[dict[str, Any]]:
    """Yield a row per run of one job with the scores compared first, or with the others."""
    scores = runs[0].scores
    keys = [key for key in score_keys(runs[0]) if (key in scores.compared) == is_headline]
    for run in runs:
        cells = {
            scores.title_of(split, name): sections.score_cell(
                scores, name, run.value(split, name), run.edges(split, name)
            )
            for split, name in keys
        }
        yield {"run": run.name} | cells


def cost_of(member: Side, price: float | None) -> float | None:
    """Return what a run cost; None without a price or a time."""
    price = price or (member.facts.saved.time.price_per_hour if member.facts else None)
    return None if price is None or member.time_s is None else member.time_s / 3600 * price


def cost_row(member: Side, price: float | None) -> dict[str, Any]:
    """Return what a run took, predicted beside measured."""
    facts, memory = member.facts, member.result.memory
    prediction = sections.predicted_time(facts)
    return {
        "run": member.name,
        "status": "" if facts.status == "finished" else facts.status,
        "machine": machine(facts),
        "time_s": Cell(member.time_s, "duration"),
        "predicted_time": "" if prediction is None else prediction.words(),
        "peak_bytes": Cell(memory.measured_bytes, "size"),
        "predicted_peak_bytes": Cell(memory.predicted_bytes, "size"),
        "error_percent": Cell(sections.memory_error(facts), "error"),
        "useful_tokens_per_s": Cell(member.result.throughput.get("useful_tokens_per_s"), "count"),
        "cost": Cell(cost_of(member, price), ".2f"),
    }


def machine(facts: RunFacts) -> str:
    """Return the GPUs of a run, or that it had none."""
    names = [str(gpu.name) for gpu in facts.result.gpu if gpu.name]
    if not names and facts.result.plan.use_gpu is not False:
        names = [
            str(gpu["name"]) for gpu in (facts.saved.raw.get("hardware") or {}).get("gpus") or []
        ]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items()) or "no GPU"


def differences(
    members: Sequence[Side], facts_of: Callable[[Side], Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what is not the same in all runs that tell it, with a column for each run."""
    facts = [facts_of(member) for member in members]
    for what in dict.fromkeys(name for own in facts for name in own):
        values = {m.name: own[what] for m, own in zip(members, facts, strict=True) if what in own}
        if len(set(map(str, values.values()))) > 1:
            texts_of = {n: "none" if v is None else cut(str(v)) for n, v in values.items()}
            yield {"what": what} | texts_of


def asked(member: Side) -> dict[str, Any]:
    """Return the settings of a run, its data and its model."""
    result, data = member.result, member.result.data
    facts = {"data source": data.source, "data revision": data.revision}
    facts |= {"data fingerprint": data.fingerprint, "model revision": result.model.revision}
    known = {name: value for name, value in facts.items() if value is not None}
    return {"preset": result.preset, **(result.raw.get("settings") or {}), **known}


def machine_facts(member: Side) -> dict[str, Any]:
    """Return its job, where a run ran, with which versions."""
    result, saved = member.result, member.facts.saved
    facts = {"job": result.job, "machine": machine(member.facts)}
    facts |= {"processes": result.plan.world_size}
    facts |= {"precision in use": result.precision, "driver": saved.hardware.driver_version}
    facts |= {f"version of {name}": version for name, version in result.versions.items()}
    facts |= {"code (git commit)": result.git_commit}
    return {name: value for name, value in facts.items() if value is not None}


# ------------------------------------------------------------------------------------------------
# Parts that the report of a study shares.


def scores_figure(sides: Sequence[Side]) -> Any:
    """Draw each score with its interval, one axis for each, of every job that a run is of."""
    bars_of: dict[str, list[figures.Bar]] = {}
    for job, runs in by_job(sides).items():
        scores = runs[0].scores
        for split, metric in scores.compared:
            bars = [(run, run.value(split, metric)) for run in runs]
            title = f"{scores.title(metric)}, {scores.splits.get(split, split)}"
            bars_of[title if len(by_job(sides)) == 1 else f"{job}: {title}"] = [
                figures.Bar(run.name, value, run.edges(split, metric))
                for run, value in bars
                if value is not None
            ]
    return figures.interval_figure(bars_of)


def loss_block(sides: Sequence[Side]) -> Figure:
    """Return the losses of all runs, on train and valid, of each job on axes of its own."""

    def draw() -> Any:
        axes_of = []
        for job, runs in by_job(sides).items():
            head = "" if len(by_job(sides)) == 1 else f"{job}: "
            unit = " (nats per token)" if job == FINETUNE.name else ""
            train = {run.name: figures.points(run.result.training.history, "loss") for run in runs}
            valid = {run.name: figures.points(run.result.training.evals, "loss") for run in runs}
            axes_of += [
                (f"{head}loss on train{unit}", train),
                (f"{head}loss on valid{unit}", valid),
            ]
        return figures.line_figure(axes_of)

    return Figure("loss", LOSS, draw)


def cost_block(sides: Sequence[Side]) -> Figure:
    """Return peak memory, predicted beside measured, and time of each run."""
    costs = {
        side.name: (
            side.result.memory.predicted_bytes,
            side.result.memory.measured_bytes,
            side.time_s,
        )
        for side in sides
    }
    return Figure("cost", COST, lambda: figures.study_cost(costs))


def unlike_bases(sides: Sequence[Side]) -> list[str]:
    """Say which runs answer with a base in 4 bits where others answer with one in 16 or 32."""
    bits: dict[bool, list[str]] = {True: [], False: []}
    for side in sides:
        decodings = (scores.decoding for scores in side.result.scores.values())
        quantised = [d["quantised"] for d in decodings if d.get("quantised") is not None]
        if quantised:
            bits[bool(quantised[0])].append(side.name)
    if not bits[True] or not bits[False]:
        return []
    return [
        f"{listed(bits[True])}: trained and evaluated on the base in 4 bits, the others and the "
        "run base on the base as it is. A difference is that of adapter and quantisation together."
    ]
