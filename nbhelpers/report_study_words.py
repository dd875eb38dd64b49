"""What the report of a study concludes, in sentences and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from nbhelpers.formatting import GIB, clock, count, duration, size
from nbhelpers.metric_registry import FINETUNE_SCORES, written
from nbhelpers.report_study_pairs import SETTLED, WITHIN_NOISE, Pair, adapters_of, scores_of
from nbhelpers.study_table import StudyResult, StudyRow

FEW_SEEDS = 3
WIDTH = 100
TIME_NOISE = 0.2  # of a run's time, on a machine that others may use too
PEAKS = ("measured", "predicted")
SPEED = ("throughput", "useful_tokens_per_s")
SHORT = {"humaneval": "HE ", "mbpp": "MBPP ", "sample": "sample "}


def headline(study: StudyResult, pairs: Sequence[Pair]) -> str:
    """Return how far the study is, what the adapters differ in, and which one costs least."""
    said = [standing(study), *among_adapters(study, pairs), against_base(study, pairs)]
    said.append(cheapest(study, pairs))
    return " ".join(sentence for sentence in said if sentence)


def standing(study: StudyResult) -> str:
    """Return how many runs have a result, and which have none."""
    missing = [row for row in study.rows if row.result is None]
    said = f"{len(study.finished)} of {len(study.rows)} runs finished"
    if missing:
        named = ", ".join(f"{row.name} ({row.status})" for row in missing)
        said += f"; without a result: {named}"
    return f"{said}."


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
    said = [f"{w} is better than {_joined(ls)} in {_joined(t)}" for (w, t), ls in grouped.items()]
    rest = len({(p.first, p.second) for p in among}) > len(wins)
    return ["; ".join(said) + ("; the other pairs are within noise." if rest else ".")]


def _joined(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def pair_lines(pairs: Sequence[Pair]) -> list[str]:
    """Return one sentence per pair of adapters: what is settled with its size, or the verdict.

    >>> line = ("r32", "r16", "test", "bleu", 0.2, -1.0, 1.4, 0.6, "within noise", "")
    >>> pair_lines([Pair(*line)])
    ['r32 against r16: within noise.']
    """
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        found.setdefault((pair.first, pair.second), []).append(pair)
    return [_pair_said(each) for each in found.values()]


def _pair_said(pairs: Sequence[Pair]) -> str:
    first, second = pairs[0].first, pairs[0].second
    settled = [pair for pair in pairs if pair.verdict in SETTLED]
    other = [pair for pair in pairs if pair.verdict not in (*SETTLED, WITHIN_NOISE)]
    if settled:
        kinds = {kind: [p for p in settled if p.verdict == kind] for kind in SETTLED}
        said = "; ".join(
            f"{kind} in " + ", ".join(f"{p.title} {p.measured()}" for p in found)
            for kind, found in kinds.items()
            if found
        )
    elif other and len(other) == len(pairs):
        said = f"{other[0].verdict} {other[0].measured()}".strip()
    else:
        said = WITHIN_NOISE
    return f"{first} against {second}: {said}."


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
    said = [
        f"{'all are' if set(names) == everyone and len(names) > 1 else _are(names)} {verdict} in "
        f"{', '.join(titles)}"
        for (verdict, names), titles in grouped.items()
    ]
    return f"Against the base model {'; '.join(said)}." if said else ""


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
        said = f"{small} took {time} and {memory}"
    else:
        each = [f"{quick[0]} took {time}"] if time else []
        each += [f"{small} took {memory}"] if memory else []
        said = " and ".join(each)
    said = f"Of the adapters that no other beats, {said}." if said else ""
    return f"{said} {_alike(timed, quick)}".strip()


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
    said = study.notes()
    for row in study.finished:
        note = (row.result.data.get("data") or {}).get("note")
        if note and str(note) not in said:
            said.append(str(note))
    seeds = {row.settings.seed for row in study.rows}
    if len(seeds) < FEW_SEEDS:
        few = {1: "One seed", 2: "Two seeds"}[len(seeds)]
        said.append(
            f"{few}: the intervals are over samples only, and another seed would train another "
            "adapter. Three seeds or more tell how much that matters."
        )
    said += _unlike_bases(study)
    for row in study.rows:
        if row.baseline is not None and not row.baseline.is_back:
            said.append(f"After {row.name} the GPU was {row.baseline.words()}.")
    return said


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
