"""The report of a fine-tuning: what it opens with, and its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count, interval, share, written
from nbhelpers.common.result_files import Split
from nbhelpers.metrics.registry import FINETUNE_SCORES, TASKS, TITLES
from nbhelpers.reports import figures, sections
from nbhelpers.reports.against_base import (
    HEADLINE,
    SPLITS,
    by_verdict,
    difference_rows,
    differences,
    evaluated,
    missing_base,
)
from nbhelpers.reports.blocks import (
    VERBATIM,
    Block,
    Figure,
    KeyFigure,
    Section,
    Summary,
    Table,
    Text,
    listing,
    texts,
)
from nbhelpers.reports.differences import GENERATIONS, rows_by_split

if TYPE_CHECKING:
    from nbhelpers.reports.facts import RunFacts

FEW_SAMPLES = 100
WELL_STOPPED = 0.8
FEW_STEPS = 20  # optimizer steps
NOT_EVALUATED = "not evaluated"
RATES = {
    "useful_tokens_per_s": ("useful tokens", "per s"),
    "padded_tokens_per_s": ("raw tokens, padding included", "per s"),
    "useful_share": ("useful tokens per raw token", "this run"),
    "samples_per_s": ("samples", "per s"),
    "samples_per_update": ("samples", "per optimizer step"),
    "tokens_per_update": ("tokens", "per optimizer step"),
    "mfu_4n": ("MFU", "of the GPU's peak, at 4N FLOPs per token, recomputation not counted"),
}
LOSS = "Training loss per logged step, and loss on valid while training; both per supervised token."
INTERVALS = "Scores with their 95 % intervals over samples. BLEU and chrF are divided by 100."
LENGTHS = "Tokens per train sample; what lies beyond the dashed line is cut."


def summary(facts: RunFacts) -> Summary:
    """Return what the report opens with."""
    scores = Figure("scores", INTERVALS, lambda: figures.finetune_scores(facts.result))
    has_scores = bool(list(evaluated(facts.result)))
    return Summary(
        title=sections.title(facts),
        verdict=_verdict(facts) if has_scores else _unscored(facts),
        alarms=sections.problems(facts),
        caveat=_caveat(facts),
        figures=sections.present(
            _main_score(facts),
            sections.memory_figure(facts),
            sections.time_figure(facts),
            sections.data_figure(facts, "samples"),
        ),
        picture=scores if has_scores else _loss(facts),
        where=sections.where(facts),
    )


def _loss(facts: RunFacts) -> Figure:
    titles = {"loss": "loss (nats per supervised token)"}
    return Figure("loss", LOSS, lambda: figures.loss_figure(facts.result.training, titles, {}))


def blocks(facts: RunFacts) -> list[Block]:
    """Return the sections of the report."""
    lengths = Figure("lengths", LENGTHS, lambda: figures.lengths_figure(facts.result.data.lengths))
    return [
        sections.targets(facts),
        _scores(facts),
        _against_base(facts),
        *_failures(facts),
        samples(facts.run.path / GENERATIONS),
        sections.doubts(_doubts(facts)),
        *_trained(facts),
        *sections.cost(facts, RATES, _loss(facts)),
        _energy(facts),
        *sections.origin(facts, [Table("data", _data_rows(facts)), lengths]),
    ]


# ------------------------------------------------------------------------------------------------
# The opening.


def _name(split: str) -> str:
    return TITLES.get(split, split)


def _score(metric: str, scores: Split) -> Cell:
    """Return a score with the decimals that it bears, and its interval."""
    value, edges = scores.metrics.get(metric), scores.intervals.get(metric)
    return sections.score_cell(FINETUNE_SCORES, metric, value, edges)


def _known(metric: str, scores: Split) -> str:
    return str(_score(metric, scores)) or ("not run" if metric == "pass@1" else "undefined")


def _verdict(facts: RunFacts) -> str:
    """Return the headline's scores on each split, and how they stand to the base model."""
    clauses, by_split = [], dict(evaluated(facts.result))
    if test := by_split.get("test"):
        named = [name for name in ("syntax_accuracy", "bleu") if name in test.metrics]
        text = ", ".join(f"{TITLES[name]} {_known(name, test)}" for name in named)
        clauses.append(f"{text} on {count(test.n_samples)} test samples")
    for task in (name for name in TASKS if "pass@1" in by_split.get(name, Split()).metrics):
        clauses.append(f"pass@1 {_known('pass@1', by_split[task])} on {_name(task)}")
    whole = "; ".join(clauses)
    compared = [each for each in differences(facts) if (each.split, each.metric) in HEADLINE]
    if compared:
        whole += f": against the base model {by_verdict(compared)}"
    elif facts.adapter == "base":
        whole += ": the base model as it is"
    return f"{whole[:1].upper()}{whole[1:]}."


def _unscored(facts: RunFacts) -> str:
    wanted = facts.result.settings.evaluate
    because = f" (evaluate={wanted})" if wanted else ""
    return sections.unscored(facts, f"no answers were generated{because}")


def _main_score(facts: RunFacts) -> KeyFigure | None:
    """Return pass@1 where problems were solved, else BLEU or what there is of test."""
    by_split = dict(evaluated(facts.result))
    order = [*((task, "pass@1") for task in TASKS), ("test", "bleu"), ("test", "syntax_accuracy")]
    for split, metric in order:
        scores = by_split.get(split)
        if scores is None or scores.metrics.get(metric) is None:
            continue
        cell = _score(metric, scores)
        title = f"{TITLES.get(metric, metric)} on {_name(split)}"
        return KeyFigure(title, written(cell.value, cell.form), interval(cell.interval, cell.form))
    return None


def _caveat(facts: RunFacts) -> str:
    return sections.caveat(facts.result) or next(_few_samples(facts), "")


# ------------------------------------------------------------------------------------------------
# Scores, the base model, and what became of the answers.


def _scores(facts: RunFacts) -> Section:
    is_over = facts.is_complete or facts.status == "finished"
    missing = _not_evaluated(facts) if is_over else {}
    note = (
        "In brackets 95 % intervals over samples: Wilson's for shares, resampling for the others. "
        "BLEU and chrF go from 0 to 100, the others from 0 to 1, but for the mean number of new "
        "tokens. Syntax accuracy: the share of generated answers that Python parses. BLEU: corpus "
        "BLEU of whole generations, comparable only with an equal signature. Pass@1: the share of "
        "problems whose one generated program passes its tests."
    )
    rows = sections.metric_rows(facts, FINETUNE_SCORES)
    gaps = texts([f"{_name(split)}: {why}." for split, why in missing.items()])
    return Section(
        "Scores",
        [
            Table("scores", rows, spread=("split", "value")),
            *gaps,
            *texts([_decoded(facts)]),
        ],
        "scores",
        note if rows else "",
        is_open=True,
    )


def _not_evaluated(facts: RunFacts) -> dict[str, str]:
    """Return, for each split without scores, why: by the run's settings, or what kept it."""
    settings, reasons = facts.result.settings, {}
    tasks = (facts.result.raw.get("settings") or {}).get("tasks")
    for split in SPLITS:
        if split in dict(evaluated(facts.result)):
            continue
        if split == "sample" and "sample" not in settings.tasks:
            continue  # of the bundled sample alone: nobody misses it
        is_text, why = split == "test", ""
        if settings.evaluate == "none" or (settings.evaluate == "text" and not is_text):
            why = f"evaluate={settings.evaluate}"
        elif not is_text and tasks is not None and split not in tasks:
            why = f"tasks={','.join(tasks) or 'none'}"
        elif not is_text:
            why = (facts.result.sandbox.refusal or "").rstrip(".")
        reasons[split] = NOT_EVALUATED + (f" ({why})" if why else "")
    return reasons


def _decoded(facts: RunFacts) -> str:
    for split, scores in evaluated(facts.result):
        ways = {name: scores.decoding.get(name) for name in ("mode", "max_new_tokens")}
        settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in ways.items() if v is not None)
        stopped = scores.metrics.get("stopped")
        parts = [f"decoding {settings}" if settings else ""]
        parts += [f"{share(stopped)} of the answers ended by themselves"] if stopped else []
        text = "; ".join(filter(None, parts))
        return f"On {_name(split)}: {text}." if text else ""
    return ""


def _against_base(facts: RunFacts) -> Section:
    rows = list(difference_rows(facts))
    note = (
        "Both models on the same samples. Within noise: the 95 % interval of the difference (in "
        "brackets) holds 0, or chance alone often reaches it."
    )
    why = missing_base(facts)
    table = Table("base", rows)
    return Section("Against the base model", [table, *texts([why])], "base", note if rows else "")


def _failures(facts: RunFacts) -> list[Section]:
    """Return how programs ended in the sandbox, and why answers do not parse."""
    outcomes, errors = [], []
    for split, scores in evaluated(facts.result):
        name = Cell(split, label=_name(split))
        for outcome, number in scores.outcomes.items():
            row = {"split": name, "outcome": outcome, "programs": number}
            outcomes += [row | {"share": _share(number, scores)}] if number else []
        kinds = sorted(scores.syntax_errors.items(), key=lambda item: (-(item[1] or 0), item[0]))
        for kind, number in kinds:
            row = {"split": name, "syntax error": kind, "answers": number}
            errors += [row | {"share": _share(number, scores)}] if number else []
    return [
        Section("Programs in the sandbox", [Table("outcomes", outcomes)], "outcomes"),
        Section("Why Python does not parse an answer", [Table("syntax", errors)], "syntax"),
    ]


def _share(number: float | None, scores: Split) -> Cell:
    return Cell(number / scores.n_samples if scores.n_samples and number else None, "share")


# ------------------------------------------------------------------------------------------------
# A few generations with what became of them. The file holds what a model wrote: any text at all.


MOST_PER_SPLIT = 3
MOST_JUDGED = 300  # generations of a split among which the shown ones are chosen
SHOWN_PROMPT, SHOWN_TEXT = 700, 1500  # characters of a prompt's end, and of an answer's start

Row = Mapping[str, Any]


def samples(path: Path) -> Section:
    """Return up to three generations of each split, of unlike kinds where there are several.

    Within a kind the first of the file is taken, so that a report is the same each time.

    Raises:
        DataError: A line of the file is damaged; names it.
    """
    from nbhelpers.metrics.generation import codes
    from nbhelpers.metrics.python_code import syntax_errors_of

    shown, rows = [], rows_by_split(path)
    for split in (name for name in SPLITS if name in rows):
        judged = rows[split][:MOST_JUDGED]
        kinds: dict[str, list[tuple[Row, str]]] = {}
        errors = syntax_errors_of(codes([row["answer"] for row in judged]))
        for row, error in zip(judged, errors, strict=True):
            kinds.setdefault(_kind(row, error), []).append((row, _outcome(row, error)))
        shown += [_sample(row, outcome) for row, outcome in _mixed(kinds)]
    note = (
        f"The first of each kind in {GENERATIONS}, not the best. A prompt is shown from its end, "
        "a long text up to a limit."
    )
    return Section("Sample generations", shown, "samples", note, in_text=False)


def _kind(row: Row, error: str | None) -> str:
    """Return what became of it: of each kind one is shown. `error`: of its syntax, or None."""
    from nbhelpers.metrics.generation import Generated

    if row.get("outcome"):
        return row["outcome"]
    if Generated([row]).counts("exact_match").value == 1:
        return "exact match"
    return "not the reference, but it parses" if error is None else "does not parse"


def _outcome(row: Row, error: str | None) -> str:
    """Return what became of it, in words."""
    outcome, why = _kind(row, error), row.get("detail") if row.get("outcome") else error
    outcome += f" ({why[:200]})" if why else ""
    ends = {True: "ended by itself", False: "cut at the limit of new tokens"}
    stopped = row.get("stopped")
    return f"{outcome}; {ends[stopped]}" if stopped in ends else outcome


def _mixed(kinds: Mapping[str, list[Any]]) -> list[Any]:
    """Take one of each kind in turn until there are enough.

    >>> _mixed({"passed": [1, 2, 3, 4], "failed": [5]})
    [1, 5, 2]
    """
    rounds = [rows[at] for at in range(MOST_PER_SPLIT) for rows in kinds.values() if at < len(rows)]
    return rounds[:MOST_PER_SPLIT]


def _sample(row: Row, outcome: str) -> Section:
    prompt, answer = row["prompt"], _start(row["answer"]) or "(nothing)"
    prompt = prompt if len(prompt) <= SHOWN_PROMPT else f"… {prompt[-SHOWN_PROMPT:]}"
    parts = {"prompt": prompt, "reference": _start(row.get("reference") or ""), "answer": answer}
    pairs = ([sections.note(name), Text(text, VERBATIM)] for name, text in parts.items() if text)
    title = f"{_name(row['split'])} {str(row.get('id'))[:80]}: {outcome}"
    return Section(title, [block for pair in pairs for block in pair])


def _start(text: str) -> str:
    more = len(text) - SHOWN_TEXT
    return text if more <= 0 else f"{text[:SHOWN_TEXT]} … ({more:,} more characters)"


# ------------------------------------------------------------------------------------------------
# What to hold against the scores.


def _doubts(facts: RunFacts) -> list[str]:
    note = facts.result.data.note
    sentences = [str(note)] if facts.is_sample and note else []
    for doubts in (_few_samples, _few_steps, _cut_answers, _of_data, _of_run):
        sentences += doubts(facts)
    return sentences + [f"Warning: {warning}" for warning in facts.result.warnings]


def _few_samples(facts: RunFacts) -> Iterator[str]:
    for split, scores in evaluated(facts.result):
        samples = scores.n_samples
        if samples is not None and samples < FEW_SAMPLES:
            unit = "samples" if split == "test" else "problems"
            yield f"Only {count(samples)} {unit} of {_name(split)}: its intervals are rough."


def _few_steps(facts: RunFacts) -> Iterator[str]:
    steps = facts.result.training.optimizer_steps
    if not facts.is_evaluation and 0 < (steps or 0) < FEW_STEPS:
        unit = "optimizer step" if steps == 1 else "optimizer steps"
        yield (
            f"Only {count(steps)} {unit}: an adapter hardly learns in so few. More rows or more "
            "epochs make more."
        )


def _cut_answers(facts: RunFacts) -> Iterator[str]:
    for split, scores in evaluated(facts.result):
        stopped = scores.metrics.get("stopped")
        limit = scores.decoding.get("max_new_tokens") or facts.result.settings.max_new_tokens
        if stopped is not None and stopped < WELL_STOPPED:
            yield (
                f"{_name(split)}: {share(1 - stopped)} of the answers were cut at "
                f"{written(limit, 'count') or 'the limit of'} new tokens, before the model ended "
                "them."
            )


def _of_data(facts: RunFacts) -> Iterator[str]:
    data, duplicates = facts.result.data, facts.result.data.problems.duplicates
    train = data.splits.get("train")
    if train is not None and train.cut and train.samples:
        length = count(facts.result.settings.seq_len)
        yield (
            f"{share(train.cut / train.samples)} of the train samples are longer than {length} "
            "tokens and cut."
        )
    if duplicates.train_rows_like_any and not duplicates.removed:
        rows = count(duplicates.train_rows_like_any)
        yield f"{rows} train rows equal or nearly equal a row of valid or test, and are used."
    notes = (f"Of the data: {str(note).removeprefix('note: ')}." for note in data.problems.notes)
    yield from (note for note in notes if note not in facts.result.warnings)


def _of_run(facts: RunFacts) -> Iterator[str]:
    skipped, warning = facts.result.training.skipped_steps, facts.result.sandbox.warning
    if skipped:
        yield f"{count(skipped)} optimizer steps were skipped, as gradients overflowed."
    if facts.adapter != "base" and facts.result.model.quantised and differences(facts):
        yield (
            "Trained and evaluated on the base in 4 bits, and compared with the base as it is: a "
            "difference is that of adapter and quantisation together."
        )
    if warning:
        yield f"Generated programs ran in a sandbox. {warning}"


# ------------------------------------------------------------------------------------------------
# What was trained and how, what it took, and on which data.


def _trained(facts: RunFacts) -> list[Section]:
    parity = (
        "Parity: a batch under the chosen attention beside its samples one by one under eager "
        "attention, before training."
    )
    decoding = (
        "Scores are comparable only where the samples, the decoding and the signatures are equal."
    )
    example = Section(
        "What is supervised",
        [_example(facts)],
        "example",
        "Marked: what the loss counts.",
        in_text=False,
    )
    return [
        Section(
            "How answers were made and scored",
            [Table("decoding", list(_decoding_rows(facts)))],
            "decoding",
            decoding,
            in_text=False,
        ),
        Section(
            "Adapter",
            [*texts([_trained_share(facts)]), listing("adapter", _adapter(facts))],
            "adapter",
        ),
        Section("Model", [listing("model", _model(facts))], "model", parity, in_text=False),
        example,
    ]


def _trained_share(facts: RunFacts) -> str:
    adapter = facts.result.adapter
    trained, total = adapter.trainable_parameters, adapter.total_parameters
    if adapter.method == "base":
        return "Nothing was trained: this is the model as it is."
    if facts.is_evaluation:
        checkpoint = facts.result.checkpoint
        return f"Scored: {checkpoint} (adapter {facts.adapter}); nothing was trained."
    if trained is None:
        return ""
    text = f"Adapter {facts.adapter}: trains {count(trained)}"
    if not total:
        return f"{text} parameters."
    return f"{text} of {count(total)} parameters, its own included ({100 * trained / total:.2f} %)."


def _decoding_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    for split, scores in evaluated(facts.result):
        ways = {"samples": scores.n_samples}
        ways |= {name.replace("_", " "): value for name, value in scores.decoding.items()}
        ways["tokenizer of BLEU"] = scores.tokenizer
        ways |= {f"signature of {_name(name)}": text for name, text in scores.signatures.items()}
        for what, value in ways.items():
            if value is not None:
                name = Cell(split, label=_name(split))
                yield {"split": name, "what": what, "value": _plain(value)}


def _plain(value: Any) -> str:
    """Write a fact that is compared, not computed with: floats in three digits.

    >>> _plain(0.00123456), _plain(1024), _plain(True)
    ('0.00123', '1,024', 'yes')
    """
    return f"{value:.3g}" if isinstance(value, float) else written(value)


def _adapter(facts: RunFacts) -> dict[str, str]:
    adapter = facts.result.adapter
    trained, total = adapter.trainable_parameters, adapter.total_parameters
    rows = {
        "adapter": facts.adapter,
        "method": adapter.method,
        "rank": adapter.r,
        "alpha": None if adapter.alpha is None else f"{adapter.alpha:g}",
        "layers": ", ".join(adapter.target_modules),
        "trainable parameters": trained,
        "parameters, adapter included": total,
        "share trained": f"{100 * trained / total:.2f} %" if trained and total else None,
    }
    is_known = adapter.method is not None or trained is not None
    return {what: written(value) for what, value in rows.items() if value and is_known}


def _model(facts: RunFacts) -> dict[str, str]:
    model = facts.result.model
    rows: dict[str, Any] = {
        name: getattr(model, name) for name in ("attention", "loss", "compiled")
    }
    rows |= {"cuda_graphs": True} if model.cuda_graphs else {}
    rows |= dict(_flat(model.parity, "parity"))
    return {name.replace("_", " "): _plain(value) for name, value in rows.items()}


def _flat(values: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: {key}")
        else:
            yield f"{name}: {key}", value


SHOWN_PARTS, SHOWN_PART = 40, 1500  # of the coloured example: parts, and characters of each


def _example(facts: RunFacts) -> Text:
    """Return one sample as text, the supervised parts marked."""
    text, marks = "", []
    for part, is_supervised in facts.result.data.example[:SHOWN_PARTS]:
        start, text = len(text), text + part[:SHOWN_PART]
        marks += [(start, len(text))] if is_supervised else []
    return Text(text, VERBATIM, marks)


def _energy(facts: RunFacts) -> Section:
    energy = facts.result.energy
    joules = energy.get("joules")
    row = {
        "energy (Wh)": Cell(None if joules is None else joules / 3600, ".1f"),
        "mean power (W)": Cell(energy.get("watts_mean"), ".0f"),
    }
    rows = [row] if any(cell.value is not None for cell in row.values()) else []
    return Section("Energy by NVML", [Table("energy", rows)], "energy")


def _data_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """Return samples, tokens, cut and dropped samples of each split, and bad rows of each file."""
    names = ("samples", "tokens", "supervised_tokens", "cut", "dropped")
    lost = facts.result.data.problems.rows_dropped
    files = lost if isinstance(lost, Mapping) else {}
    bad = [{"split": f"bad rows of {file}", "dropped": number} for file, number in files.items()]
    return [*sections.split_rows(facts, names), *bad]
