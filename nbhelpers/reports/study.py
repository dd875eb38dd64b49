"""The report of a study: all its runs in one table, compared pair by pair, with their cost."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.speeds import SpeedRow, row_of, shipped_rows
from nbhelpers.budget.time import predict_time
from nbhelpers.common.formatting import GIB, clock, count, duration, size
from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES, written
from nbhelpers.plan import plan_batch
from nbhelpers.presets.preset import Preset
from nbhelpers.reports.facts import shown
from nbhelpers.reports.finetune_tables import signed
from nbhelpers.reports.page import STYLE, Report, figure, page, paragraph, section, table_of
from nbhelpers.runs.study_results import SHOWN, StudyResult, StudyRow

if TYPE_CHECKING:
    import pandas as pd

    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.reports.figures_jobs import Series


# ------------------------------------------------------------------------------------------------
# What a measured run would take on other GPUs, predicted from its own speed.


OTHERS = ("t4", "l4", "a100-40gb", "a100-80gb", "rtx6000ada", "h100")


def other_gpus(study: StudyResult) -> list[dict[str, str]]:
    """Return what each trained run would take on other GPUs: predicted from its own speed.

    The same settings everywhere, and one GPU there for each one here; empty where none trained on
    a GPU.
    """
    rows = []
    for name in adapters_of(study):
        row = next(r for r in study.finished if r.planned.adapter == name)
        own = row_of(row.run.record or {}, row.result.data)
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
# The comparisons of a study's report: every pair of adapters, and the spread over seeds.


SETTLED = ("better", "worse")
WITHIN_NOISE = "within noise"


class Pair(NamedTuple):
    """One score of two adapters: `first` minus `second` on the same samples."""

    first: str
    second: str
    split: str
    metric: str
    difference: float | None
    low: float | None
    high: float | None
    p_holm: float | None
    verdict: str
    reason: str
    p_is_bound: bool = False  # no draw reached the difference: more draws might give a smaller p

    @property
    def title(self) -> str:
        """The score's name, with its set of problems."""
        name = TITLES.get(self.metric, self.metric)
        return name if self.split == "test" else f"{name} on {TITLES.get(self.split, self.split)}"

    def measured(self) -> str:
        """Return the difference with its interval, in brackets."""
        if self.difference is None:
            return f"({self.reason})" if self.reason else ""
        text = signed(self.metric, self.difference)
        if self.low is not None and self.high is not None:
            text += f", {signed(self.metric, self.low)} to {signed(self.metric, self.high)}"
        return f"({text})"

    def p_words(self) -> str:
        """Return p, or nothing where none was computed.

        >>> line = ("r32", "r16", "test", "bleu", 2.0, 1.0, 3.0)
        >>> Pair(*line, 1 / 201, "better", "", True).p_words()
        'p <= 0.005'
        """
        p = self.p_holm
        if p is None:
            return ""
        if self.p_is_bound:
            return f"p <= {p:.3f}" if p >= 0.001 else f"p <= {p:.1g}"
        return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def pairs_of(study: StudyResult) -> list[Pair]:
    """Return every pair of adapters that has generations, score by score, later minus earlier.

    The verdicts account for all comparisons of a score with the same adapter (Holm), so they are
    those of `StudyResult.verdicts`.
    """
    return [pair for key in scores_of(study) for pair in _pairs(study, *key)]


def scores_of(study: StudyResult) -> list[tuple[str, str]]:
    """Return the scores, as (split, metric), that at least one run of a study has."""
    rows = study.finished
    return [
        (split, metric)
        for split, metric in SHOWN
        if any(row.number("scores", split, "metrics", metric) is not None for row in rows)
    ]


def adapters_of(study: StudyResult) -> list[str]:
    """Return the adapters with a result, in the order of the study; seeds do not count."""
    return list(dict.fromkeys(row.planned.adapter for row in study.finished))


def _pairs(study: StudyResult, split: str, metric: str) -> Iterator[Pair]:
    names = [
        name
        for name in adapters_of(study)
        if any(
            row.planned.adapter == name
            and row.number("scores", split, "metrics", metric) is not None
            for row in study.finished
        )
    ]
    for at, second in enumerate(names[:-1]):
        try:
            against = study.compare(f"{split}.{metric}", baseline=second)["against"]
        except NbhelpersError as error:
            for first in names[at + 1 :]:
                values = (None, None, None, None, "not comparable", error.message)
                yield Pair(first, second, split, metric, *values)
            continue
        for first in (name for name in names[at + 1 :] if name in against):
            each = against[first]
            yield _pair(first, second, split, metric, each, _least_p(study, each))


def _least_p(study: StudyResult, each: Mapping[str, Any]) -> float:
    """The smallest p that the draws can give; 0 over seeds, where p comes from a distribution."""
    draws = study.rows[0].settings.bootstrap_samples
    return 0.0 if "degrees_of_freedom" in each else 1 / (draws + 1)


def _pair(
    first: str, second: str, split: str, metric: str, each: Mapping[str, Any], least: float
) -> Pair:
    low, high = each.get("interval") or (None, None)
    values = (each["difference"], low, high, each.get("p_holm"), each["verdict_holm"])
    p = each.get("p_value")
    is_bound = p is not None and p <= least * (1 + 1e-9)
    return Pair(first, second, split, metric, *values, each.get("reason") or "", is_bound)


def pairs_table(pairs: Iterable[Pair]) -> pd.DataFrame:
    """Return the pairs as a table of numbers."""
    import pandas as pd

    return pd.DataFrame([pair._asdict() for pair in pairs])


def seeds_table(study: StudyResult) -> pd.DataFrame:
    """Return mean, spread and range of each adapter's scores over seeds; empty for one seed."""
    import statistics

    import pandas as pd

    rows = []
    for name in adapters_of(study):
        runs = [row for row in study.finished if row.planned.adapter == name]
        if len({row.settings.seed for row in runs}) < 2:
            continue
        for split, metric in scores_of(study):
            scores = [row.number("scores", split, "metrics", metric) for row in runs]
            values = [value for value in scores if value is not None]
            if len(values) > 1:
                row = {"adapter": name, "split": split, "metric": metric, "seeds": len(values)}
                row |= {"mean": statistics.mean(values), "std": statistics.stdev(values)}
                rows.append(row | {"lowest": min(values), "highest": max(values)})
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------
# What the report of a study concludes, in sentences and as lines for a terminal.


FEW_SEEDS = 3
WIDTH = 100
TIME_NOISE = 0.2  # of a run's time, on a machine that others may use too
PEAKS = ("measured", "predicted")
SPEED = ("throughput", "useful_tokens_per_s")
SHORT = {"humaneval": "HE ", "mbpp": "MBPP ", "sample": "sample "}


def headline(study: StudyResult, pairs: Sequence[Pair]) -> str:
    """Return how far the study is, what the adapters differ in, and which one costs least."""
    sentences = [standing(study), *among_adapters(study, pairs), against_base(study, pairs)]
    sentences.append(cheapest(study, pairs))
    return " ".join(sentence for sentence in sentences if sentence)


def standing(study: StudyResult) -> str:
    """Return how many runs have a result, and which have none."""
    missing = [row for row in study.rows if row.result is None]
    text = f"{len(study.finished)} of {len(study.rows)} runs finished"
    if missing:
        named = ", ".join(f"{row.name} ({row.status})" for row in missing)
        text += f"; without a result: {named}"
    return f"{text}."


def _bases(study: StudyResult) -> set[str]:
    return {row.planned.adapter for row in study.rows if row.settings.method == "base"}


def among_adapters(study: StudyResult, pairs: Sequence[Pair]) -> list[str]:
    """Return the verdict on each pair of trained adapters, or one for all where all are alike."""
    bases = _bases(study)
    trained = [name for name in adapters_of(study) if name not in bases]
    among = [p for p in pairs if p.first in trained and p.second in trained]
    if not among:
        return []
    if len(trained) == 2:
        return [_pair_said(among)]
    wins: dict[tuple[str, str], list[str]] = {}
    for pair in (p for p in among if p.verdict in SETTLED):
        sides = (pair.first, pair.second) if pair.verdict == "better" else (pair.second, pair.first)
        wins.setdefault(sides, []).append(pair.title)
    if not wins:
        alike = all(pair.verdict == WITHIN_NOISE for pair in among)
        titles = ", ".join(dict.fromkeys(pair.title for pair in among))
        return [f"{_joined(trained)} are within noise of each other ({titles})."] if alike else []
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (winner, loser), titles in wins.items():
        grouped.setdefault((winner, tuple(titles)), []).append(loser)
    clauses = [
        f"{w} is better than {_joined(ls)} in {_joined(t)}" for (w, t), ls in grouped.items()
    ]
    rest = len({(p.first, p.second) for p in among}) > len(wins)
    return ["; ".join(clauses) + ("; the other pairs are within noise." if rest else ".")]


def _joined(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def pair_lines(pairs: Sequence[Pair]) -> list[str]:
    """Return one sentence per pair of adapters: what is settled with its size, or the verdict.

    >>> line = ("r32", "r16", "test", "bleu", 0.2, -1.0, 1.4, 0.6, "within noise", "")
    >>> pair_lines([Pair(*line)])
    ['r32 against r16: within noise.']
    """
    pairs_by_adapters: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        pairs_by_adapters.setdefault((pair.first, pair.second), []).append(pair)
    return [_pair_said(each) for each in pairs_by_adapters.values()]


def _pair_said(pairs: Sequence[Pair]) -> str:
    first, second = pairs[0].first, pairs[0].second
    settled = [pair for pair in pairs if pair.verdict in SETTLED]
    other = [pair for pair in pairs if pair.verdict not in (*SETTLED, WITHIN_NOISE)]
    if settled:
        kinds = {kind: [p for p in settled if p.verdict == kind] for kind in SETTLED}
        comparison = "; ".join(
            f"{kind} in " + ", ".join(f"{p.title} {p.measured()}" for p in pairs_of_kind)
            for kind, pairs_of_kind in kinds.items()
            if pairs_of_kind
        )
    elif other and len(other) == len(pairs):
        comparison = f"{other[0].verdict} {other[0].measured()}".strip()
    else:
        comparison = WITHIN_NOISE
    return f"{first} against {second}: {comparison}."


def against_base(study: StudyResult, pairs: Sequence[Pair]) -> str:
    """Return which adapters are better than the base model, and in what."""
    bases = _bases(study)
    ours = [p for p in pairs if p.second in bases and p.first not in bases]
    by_score: dict[tuple[str, str], list[str]] = {}
    for pair in ours:
        by_score.setdefault((pair.verdict, pair.title), []).append(pair.first)
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (verdict, title), names in by_score.items():
        grouped.setdefault((verdict, tuple(names)), []).append(title)
    everyone = {pair.first for pair in ours}
    clauses = [
        f"{'all are' if set(names) == everyone and len(names) > 1 else _are(names)} {verdict} in "
        f"{', '.join(titles)}"
        for (verdict, names), titles in grouped.items()
    ]
    return f"Against the base model {'; '.join(clauses)}." if clauses else ""


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def cheapest(study: StudyResult, pairs: Sequence[Pair]) -> str:
    """Return which adapter took least, among those that no other is better than."""
    bases = _bases(study)
    beaten = {p.second if p.verdict == "better" else p.first for p in pairs if p.verdict in SETTLED}
    rows = [r for r in study.finished if r.planned.adapter not in bases | beaten]
    timed = sorted((row.time_s, row.name) for row in rows if row.time_s is not None)
    peaks = [(row.number("memory", "measured_bytes"), row.name) for row in rows]
    sized = sorted(each for each in peaks if each[0] is not None)
    if not pairs or max(len(timed), len(sized)) < 2:
        return ""
    quick = [name for seconds, name in timed if seconds <= timed[0][0] * (1 + TIME_NOISE)]
    is_settled = len(timed) > 1 and len(quick) == 1
    time = f"the least time ({duration(timed[0][0])})" if is_settled else ""
    small, memory = "", ""
    if len(sized) > 1:
        small, memory = sized[0][1], f"the least memory ({size(sized[0][0])})"
    if time and small == quick[0]:
        text = f"{small} took {time} and {memory}"
    else:
        each = [f"{quick[0]} took {time}"] if time else []
        each += [f"{small} took {memory}"] if memory else []
        text = " and ".join(each)
    text = f"Of the adapters that no other beats, {text}." if text else ""
    return f"{text} {_alike(timed, quick)}".strip()


def _alike(timed: Sequence[tuple[float, str]], quick: Sequence[str]) -> str:
    """Say that several took about the same time, which tells nothing on a shared machine."""
    if len(quick) < 2:
        return ""
    low, high = duration(timed[0][0]), duration(timed[len(quick) - 1][0])
    took = f"each took {low}" if low == high else f"took {low} to {high}"
    return (
        f"{_joined(quick)} {took}: differences below {100 * TIME_NOISE:.0f} % are taken as noise."
    )


def doubts(study: StudyResult) -> list[str]:
    """Return what to hold against the comparison: the sample's note, few seeds, a GPU not free."""
    sentences = study.notes()
    for row in study.finished:
        note = (row.result.data.get("data") or {}).get("note")
        if note and str(note) not in sentences:
            sentences.append(str(note))
    seeds = {row.settings.seed for row in study.rows}
    if len(seeds) < FEW_SEEDS:
        few = {1: "One seed", 2: "Two seeds"}[len(seeds)]
        sentences.append(
            f"{few}: the intervals are over samples only, and another seed would train another "
            "adapter. Three seeds or more tell how much that matters."
        )
    sentences += _unlike_bases(study)
    for row in study.rows:
        if row.baseline is not None and not row.baseline.is_back:
            sentences.append(f"After {row.name} the GPU was {row.baseline.words()}.")
    return sentences


def _unlike_bases(study: StudyResult) -> list[str]:
    """Say which runs answer with a base in 4 bits where others answer with one in 16 or 32."""
    bits: dict[bool, list[str]] = {True: [], False: []}
    for row in study.finished:
        for scores in row.result.scores.values():
            if (quantised := (scores.get("decoding") or {}).get("quantised")) is not None:
                bits[bool(quantised)].append(row.name)
                break
    if not bits[True] or not bits[False]:
        return []
    return [
        f"{_joined(bits[True])}: trained and evaluated on the base in 4 bits, the others on the "
        "base as it is, `base` too. A difference is that of adapter and quantisation together."
    ]


def run_lines(study: StudyResult) -> list[str]:
    """Return the runs as a table of at most 100 columns; intervals are on the page."""
    shown = scores_of(study)
    peaks = [row.number("memory", f"{n}_bytes") or 0 for row in study.rows for n in PEAKS]
    unit, name = (GIB, "GiB") if max(peaks, default=0) >= GIB else (2**20, "MiB")
    heads = ["run", "trainable", *(_head(*key) for key in shown), "time", f"{name} (pred.)"]
    lines = [[*heads, "tokens/s"], *(_cells(row, shown, unit) for row in study.rows)]
    full = [at for at in range(len(lines[0])) if any(line[at] for line in lines[1:])]
    lines = [[line[at] for at in full] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [_aligned(line, widths)[:WIDTH].rstrip() for line in lines]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        text.rjust(width) if at else text.ljust(width)
        for at, (text, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others])


def _head(split: str, metric: str) -> str:
    return SHORT.get(split, "") + FINETUNE_SCORES.short(metric)


def _cells(row: StudyRow, shown: Sequence[tuple[str, str]], unit: int) -> list[str]:
    seconds, speed = row.time_s, row.number(*SPEED)
    trained = row.number("adapter", "trainable_parameters")
    peak, predicted = (row.number("memory", f"{name}_bytes") for name in PEAKS)
    cells = [row.name[:20], "" if trained is None else count(trained)]
    for split, metric in shown:
        value = row.number("scores", split, "metrics", metric)
        cells.append("" if value is None else written(metric, value))
    cells += ["" if seconds is None else clock(seconds)]
    memory = "" if peak is None else f"{peak / unit:.2f}"
    memory += "" if predicted is None else f" ({predicted / unit:.2f})"
    return [*cells, memory.strip(), "" if speed is None else count(speed)]


# ------------------------------------------------------------------------------------------------
# The report of a study: all its runs in one table, compared pair by pair, with their cost.
#
# It is made of the run folders, so it can be made again at any time, also while the study runs.


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
    from nbhelpers.reports.figures import save_figures

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
    study_report = Report(
        run_id=study.path.name,
        status=f"{len(study.finished)} of {len(study.rows)} runs finished",
        path=target,
        text=_text(study, pairs, target),
        tables=tables,
        plots=plots,
        html=fragment,
    )
    if show and not is_notebook():
        sys.stdout.write(study_report.text)
    return study_report


def _figures(study: StudyResult) -> dict[str, object]:
    from nbhelpers.reports import figures_jobs as draw

    runs = [_series(row.name, row.result.data, row.time_s) for row in study.finished]
    return {
        "loss": draw.study_loss_figure(runs),
        "scores": draw.study_scores_figure(runs, scores_of(study)),
        "cost": draw.study_cost_figure(runs),
    }


def _series(name: str, data: Mapping[str, object], seconds: float | None) -> Series:
    from nbhelpers.reports.facts import dig
    from nbhelpers.reports.figures_jobs import Series

    return Series(
        name=name,
        training=data.get("training"),
        scores=data.get("scores") or {},
        predicted_bytes=dig(data, "memory", "predicted_bytes"),
        measured_bytes=dig(data, "memory", "measured_bytes"),
        seconds=seconds,
    )


def _text(study: StudyResult, pairs: Sequence[Pair], target: Path) -> str:
    from nbhelpers.reports.text import wrapped

    after = [*pair_lines(pairs), *(f"Without a result: {line}" for line in study.failure_lines())]
    after += [f"Note: {doubt}" for doubt in doubts(study)]
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
        section("What to hold against this", "".join(paragraph(doubt) for doubt in doubts(study))),
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
        cell = f"{pair.verdict}\n{pair.measured().strip('()')}"
        cell += f"\n{pair.p_words()}".rstrip()
        rows.setdefault(named, {"adapters": named})[pair.title] = cell
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
    import pandas as pd

    rows = other_gpus(study)
    return section("On other GPUs (predicted)", table_of(pd.DataFrame(rows)) if rows else "")


def _repeat(study: StudyResult) -> str:
    """Return the one command of a study, else those of its runs, and their folders."""
    import pandas as pd

    command = study.study.command()
    rows = []
    for row in study.rows:
        own_command = (
            {} if command else {"command": str((row.run.record or {}).get("command") or "")}
        )
        rows.append({"run": row.name, "folder": row.run.id} | own_command)
    one = f'<pre class="code">{_escaped(command)}</pre>' if command else ""
    return one + table_of(pd.DataFrame(rows), classes="long")
