"""What the reports of all jobs share: the opening's parts, and the sections on cost and origin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.time import TimeBudget, compare_time
from nbhelpers.budget.time_model import of_device
from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count, duration, signed, size, written
from nbhelpers.common.result_files import DataFlow, Problems, Result, Split, SplitData
from nbhelpers.metrics.registry import Scores
from nbhelpers.presets.jobs import CLONES, JOBS, JobSpec
from nbhelpers.presets.preset import QUICK
from nbhelpers.presets.targets import target_rows
from nbhelpers.reports import figures
from nbhelpers.reports.blocks import (
    NOTE,
    VERBATIM,
    Block,
    Figure,
    KeyFigure,
    Section,
    Table,
    Text,
    listing,
    texts,
)
from nbhelpers.reports.facts import SAMPLE, RunFacts
from nbhelpers.runs.progress import PHASE_TITLES

if TYPE_CHECKING:
    from pydantic import BaseModel

AHEAD, LEVEL, BEHIND, ABOVE, NOT_ABOVE = "ahead", "level", "behind", "above", "not above"
SIMULATION, ESTIMATE = "simulation", "estimate"
WEIGHTS = ("model.", "pytorch_model.", "adapter_model.")  # how a file of weights begins
HELD = {
    "other_processes_bytes": ("held by other processes", "before the run began"),
    "earlier_bytes": ("left over from earlier cells", "by the notebook's process"),
    "context_bytes": ("CUDA context", "outside the allocator, measured after the first steps"),
}
# Where a tracker's numbers are, and how they are opened.
TRACKED = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": "trackio show --project nbhelpers",
    "wandb": "project nbhelpers on wandb.ai, or, made without a key, {folder}/wandb (wandb sync)",
}
LIKE = {"equal": "equal", "same_question": "of the same question", "near": "nearly equal"}
# The phases of a prediction, as the parts that a run measures are summed for them.
PREDICTED = {"data": "before training", "evaluation": "after training"}
PARTS = "Before training: start, check, data and model; after it: all parts that follow."


def spec_of(facts: RunFacts) -> JobSpec:
    """Return the job of a run; clone detection for one that this version does not know."""
    return JOBS.get(facts.job, CLONES)


# ------------------------------------------------------------------------------------------------
# Parts of the opening.


def title(facts: RunFacts) -> str:
    """Return the job with its model, and of a fine-tuning its adapter."""
    model = _short_name(facts.result.model.name or "")
    job = facts.job or "run"
    return ", ".join(filter(None, [f"{job}: {model}" if model else job, facts.adapter]))


def _short_name(model: str) -> str:
    """Return a hub name as it is, and of a path only its last part.

    >>> _short_name("microsoft/CodeGPT"), _short_name("/a/run/checkpoints/step-00000060")
    ('microsoft/CodeGPT', 'step-00000060')
    """
    is_path = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return PurePath(model).name if is_path else model


def where(facts: RunFacts) -> str:
    """Return which run this is and how it stands."""
    text = f"Run {facts.run.id}, preset {facts.result.preset}, {facts.status}."
    settings, places = facts.result.raw.get("settings") or {}, facts.saved.preset.provenance
    if opened := TRACKED.get(str(settings.get("track"))):
        text += f" Tracked: {opened.format(folder=facts.run.path)}."
    quick = [f"{name} {settings.get(name)}" for name, place in places.items() if place == QUICK]
    if not quick:
        return text
    return f"{text} A quick run, smaller than the preset: {', '.join(quick)}."


def standing(facts: RunFacts) -> str:
    """Return how far a run without scores has come."""
    training, phases = facts.result.training, facts.of_type("phase")
    text = f"No scores yet: the run is {facts.status}"
    text += f", last seen in phase {phases[-1].get('name')}" if phases else ""
    if training.optimizer_steps:
        text += f" at optimizer step {training.optimizer_steps}"
        text += f" of {training.total_steps}" if training.total_steps else ""
        text += f", loss {written(training.last_loss, '.3f') or 'unknown'}"
    return f"{text}."


def unscored(facts: RunFacts, nothing: str = "no split has scores") -> str:
    """Return the finding of a run without scores: how far it is, or what it did instead."""
    if facts.status != "finished":
        return standing(facts)
    training, text = facts.result.training, f"Not evaluated: {nothing}"
    if training.optimizer_steps:
        loss = written(training.last_loss, ".3f") or "unknown"
        text += f"; trained for {count(training.optimizer_steps)} optimizer steps, loss {loss}"
    return f"{text}."


def problems(facts: RunFacts) -> list[str]:
    """Return why a run has no result: its last error with the fix, or that it was stopped."""
    if facts.is_complete or facts.status == "finished":
        return []
    lines = []
    for event in facts.of_type("error")[-1:]:
        lines.append(f"{event.get('kind', 'Error')}: {event.get('message', '')}")
        lines += [f"Fix: {event['fix']}"] if event.get("fix") else []
    for event in facts.of_type("stopped")[-1:]:
        step = event.get("step")
        lines.append(f"Stopped at step {step}; launching it again continues from there.")
    return lines


def sample_caveat(result: Result) -> str:
    """Return what the note of a bundled sample says last; nothing for other data."""
    last = str(result.data.note or "").rstrip(".").rpartition(". ")[2]
    if SAMPLE not in (result.data.source, result.settings.data) or not last:
        return ""
    return f"The data is a sample: {last[:1].lower()}{last[1:]}."


def random_start(result: Result) -> str:
    """Return that scores are of a model that began with random weights and was not pre-trained."""
    is_embedded = result.settings.model in JOBS.get(str(result.job), CLONES).models.embedded
    is_random = is_embedded or result.model.random_weights
    has_scores = bool(result.scores or result.similarity.retrieval)
    trained = result.settings.pretrain_steps or result.mode == "evaluate"
    if not is_random or trained or not has_scores:
        return ""
    return "The model started from random weights, not from pretrained ones."


def caveat(result: Result) -> str:
    """Return what weighs most against the scores: made-up data, random weights; or nothing."""
    return " ".join(filter(None, [sample_caveat(result), random_start(result)]))


def memory_figure(facts: RunFacts) -> KeyFigure | None:
    """Return the measured peak of memory beside the predicted one."""
    memory = facts.result.memory
    if memory.predicted_bytes is None and memory.measured_bytes is None:
        return None
    note = "no prediction" if memory.predicted_bytes is None else _predicted(facts)
    return KeyFigure("peak memory", size(memory.measured_bytes), note)


def _predicted(facts: RunFacts) -> str:
    error, memory = memory_error(facts), facts.result.memory
    text = f"{_basis(facts)} {size(memory.predicted_bytes)} for the data's largest batch"
    return text if error is None else f"{text}, error {signed(error)}"


def memory_error(facts: RunFacts) -> float | None:
    """Return by how many per cent of the measurement the prediction was off."""
    memory = facts.result.memory
    if memory.error_percent is None and memory.predicted_bytes and memory.measured_bytes:
        return 100 * (memory.predicted_bytes - memory.measured_bytes) / memory.measured_bytes
    return memory.error_percent


def time_figure(facts: RunFacts) -> KeyFigure | None:
    """Return the measured time of the run beside the predicted one."""
    total_s = facts.result.timing.get("total_s")
    if total_s is None:
        return None
    rows = _compared_time(facts)
    total = rows[-1] if rows else {}
    note = ""
    if total.get("error_percent") is not None:
        note = f"predicted {duration(total['predicted_s'])}, error {total['error_percent']:+.0f} %"
        if facts.result.timing.get("pretrain_s"):
            note = f"without pre-training {duration(total['measured_s'])}, {note}"
    return KeyFigure("time", duration(total_s), note)


def data_figure(facts: RunFacts, unit: str, *, split: str = "train") -> KeyFigure | None:
    """Return how much data was trained on; `unit` is also the name of the count in the result."""
    value = getattr(facts.result.data.splits.get(split), unit, None)
    return None if value is None else KeyFigure(f"{split} {unit}", count(value), _source(facts))


def _source(facts: RunFacts) -> str:
    return _short_name(str(facts.result.data.source or ""))


def present(*figures_of_opening: KeyFigure | None) -> list[KeyFigure]:
    """Return the figures that a run has."""
    return [each for each in figures_of_opening if each is not None]


# ------------------------------------------------------------------------------------------------
# What the run took: memory, time, speed, GPUs, training.


def cost(facts: RunFacts, rates: Mapping[str, tuple[str, str]], *loss: Figure) -> list[Block]:
    """Return the sections on memory, time, speed, GPUs and training.

    Args:
        rates: Title and unit of each speed of the job, by its name in the result.
        loss: The curve of the training.
    """
    training = Section("Training", [_training(facts), *loss], "training")
    speed = Section("Speed", [Table("throughput", rate_rows(facts, rates))], "speed")
    return [memory(facts), time(facts), speed, gpus(facts), training]


def memory(facts: RunFacts) -> Section:
    """Return the prediction beside the measurement: allocated, reserved, and by phase."""
    lines = facts.result.memory.predicted_lines or facts.budget.lines
    parts = [
        {"name": line.name, "size_bytes": Cell(line.size_bytes, "size"), "note": line.note}
        for line in lines
    ]
    caption = figures.memory_caption(facts)
    return Section(
        "Memory",
        [
            Table("memory", list(memory_rows(facts)), {"what": ""}),
            *texts(memory_notes(facts)),
            Figure("memory", caption, lambda: figures.memory_figure(facts)),
            Section(
                "The prediction by part, and what else was held",
                [
                    Table("memory_lines", parts),
                    Table("memory_left_over", left_over_rows(facts)),
                ],
                in_text=False,
            ),
            Section(
                "What was alive at the peak, and the code that made it",
                [Table("memory_alive", alive_rows(facts), {"total_bytes": "together"})],
                in_text=False,
            ),
        ],
        "memory",
    )


def memory_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield predicted and measured bytes of the whole run and of each phase, with the error in %.

    An evaluation that measured nothing has no row: a training's budget is not its memory.
    """
    memory, ranks = facts.result.memory, facts.result.memory.per_rank
    if memory.predicted_bytes is None and memory.measured_bytes is None:
        return
    yield _memory_row(memory.what or "peak", memory, memory_error(facts))
    reserved = memory.reserved
    most = max((rank.peak_reserved_bytes or 0 for rank in ranks), default=0)
    measured = reserved.get("measured_bytes") or most or None
    if measured or reserved.get("predicted_bytes"):
        yield {
            "what": "reserved by the allocator",
            "predicted_bytes": Cell(reserved.get("predicted_bytes"), "size"),
            "measured_bytes": Cell(measured, "size"),
            "error_percent": Cell(reserved.get("error_percent"), "error"),
        }
    for phase in memory.phases:
        if phase.phase and (phase.measured_bytes or phase.predicted_bytes):
            yield _memory_row(f"phase {phase.phase}", phase, phase.error_percent)
    process = max((rank.rss_bytes or 0 for rank in ranks), default=0)
    if process:
        yield {"what": "process (RSS)", "measured_bytes": Cell(process, "size")}
    budget = facts.budget
    if budget.total_bytes:
        title = "budget before the run, longest possible batch"
        yield {"what": title, "predicted_bytes": Cell(budget.total_bytes, "size")}
    if budget.capacity_bytes:
        capacity = Cell(budget.capacity_bytes, "size")
        yield {"what": "capacity of the card", "measured_bytes": capacity}


def _memory_row(what: str, values: Any, error: float | None) -> dict[str, Any]:
    return {
        "what": what,
        "predicted_bytes": Cell(values.predicted_bytes, "size"),
        "measured_bytes": Cell(values.measured_bytes, "size"),
        "error_percent": Cell(error, "error"),
    }


def memory_notes(facts: RunFacts) -> list[str]:
    """Return the sentences beside the table: what predicted, the worst phase, what others held."""
    memory, sentences = facts.result.memory, []
    if memory.predicted_bytes is not None:
        sentences.append(f"Predicted by the worker, with the data read: {BASES[_basis(facts)]}.")
        if facts.budget.total_bytes:
            source = BUDGETS.get(facts.budget.source or "", BUDGETS[ESTIMATE])
            sentences.append(f"Budget before the run: {source}.")
    errors = [phase for phase in memory.phases if phase.error_percent is not None]
    if not errors and any(phase.measured_bytes for phase in memory.phases):
        sentences.append(
            "Phases are measured only: their prediction needs a simulated step on a GPU."
        )
    if errors:
        worst = max(errors, key=lambda phase: abs(phase.error_percent or 0))
        basis = f", predicted for {memory.basis}" if memory.basis else ""
        error = signed(worst.error_percent or 0)
        sentences.append(f"By phase{basis}: the largest error is {error} ({worst.phase}).")
    others = sum(
        memory.left_over.get(f"{who}_bytes") or 0 for who in ("other_processes", "earlier")
    )
    if others:
        sentences.append(f"Held by others or left over from earlier cells: {size(others)}.")
    snapshot = memory.snapshot
    if snapshot.file and snapshot.error_percent is not None:
        step = (snapshot.model_extra or {}).get("step")
        sentences.append(
            f"Step {step} was off by {signed(snapshot.error_percent)}: what was alive at its peak "
            f"is in {snapshot.file}."
        )
    return sentences


BASES = {
    SIMULATION: "a simulation of the largest batch of the data",
    ESTIMATE: "an estimate by formulas for the largest batch of the data, not a simulation",
}

BUDGETS = {
    SIMULATION: "a simulation, made then or shipped as a table",
    "interpolated": "between simulations of a table",
    ESTIMATE: "an estimate by formulas",
}


def _basis(facts: RunFacts) -> str:
    """Return what predicted the memory; older results name no source and held formulas."""
    return SIMULATION if facts.result.memory.source == SIMULATION else ESTIMATE


def left_over_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """Return what the card held beside the tensors of the run."""
    held = facts.result.memory.left_over
    return [
        {"what": what, "size_bytes": Cell(held[name], "size"), "note": note}
        for name, (what, note) in HELD.items()
        if held.get(name) is not None
    ]


def alive_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """Return what was alive at the peak of the recorded step, where the prediction was off."""
    return [
        {
            "total_bytes": Cell(each.total_bytes, "size"),
            "size_bytes": Cell(each.size_bytes, "size"),
            "count": each.count,
            "made_at": each.made_at,
        }
        for each in facts.result.memory.snapshot.alive
    ]


def predicted_time(facts: RunFacts) -> TimeBudget | None:
    """Return the prediction that was saved when the run was launched; None without one."""
    return None if facts.is_evaluation else TimeBudget.from_record(facts.saved.raw)


def _compared_time(facts: RunFacts) -> list[dict[str, Any]]:
    budget = predicted_time(facts)
    if budget is None or budget.expected_s is None or not facts.is_complete:
        return []
    return compare_time(budget, {k: v for k, v in facts.result.timing.items() if v is not None})


def time(facts: RunFacts, *, extra: Sequence[Block] = ()) -> Section:
    """Return predicted beside measured seconds, and the measured ones part by part."""
    once = facts.result.timing.get("pretrain_s")
    titles = PREDICTED | ({"total": "total, pre-training aside"} if once else {})
    compared = [
        {
            "phase": Cell(row["phase"], label=titles.get(row["phase"], row["phase"])),
            "predicted": Cell(row["predicted_s"], "duration"),
            "range": f"{duration(row['low_s'])} to {duration(row['high_s'])}",
            "measured": duration(row["measured_s"]),
            "error": Cell(row["error_percent"], "{:+.0f} %"),
        }
        for row in _compared_time(facts)
    ]
    blocks = [
        Table("time", compared),
        *texts(time_notes(facts)),
        Table("timing", part_rows(facts.result.timing), {"phase": "measured part"}),
    ]
    return Section("Time", [*blocks, *extra], "time")


def part_rows(parts: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return seconds by part, such as `train_s`, and their share of the total."""
    known = {name.removesuffix("_s"): seconds for name, seconds in parts.items() if seconds}
    total = known.get("total") or sum(known.values())
    return [
        {
            "phase": Cell(name, label=PHASE_TITLES.get(name, "")),
            "seconds": Cell(seconds, "duration"),
            "share": Cell(seconds / total, "share"),
        }
        for name, seconds in known.items()
    ]


def time_notes(facts: RunFacts) -> list[str]:
    """Return what the predicted time rests on, and what it sums; nothing without a comparison."""
    rows, budget = _compared_time(facts), predicted_time(facts)
    if not rows or budget is None or rows[-1]["error_percent"] is None:
        return []
    once = facts.result.timing.get("pretrain_s")
    apart = f", without {duration(once)} of pre-training, done once" if once else ""
    basis = of_device(budget.basis, is_gpu=facts.result.memory.device != "cpu")
    is_late = rows[-1]["measured_s"] > rows[-1]["high_s"]
    late = "It took longer than the range, as runs do beside other work on the machine."
    return [f"Predicted before the run ({basis}){apart}.", *([late] if is_late else []), PARTS]


def rate_rows(facts: RunFacts, names: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the speeds of a run; `names` holds title and unit by name in the result."""
    rates = facts.result.throughput
    return [
        {"what": what, "value": rates[name], "unit": unit}
        for name, (what, unit) in names.items()
        if rates.get(name) is not None
    ]


def gpus(facts: RunFacts) -> Section:
    """Return what each GPU did: mean utilisation and peak memory in use, by anyone."""
    rows = [
        {
            "index": gpu.index,
            "name": gpu.name,
            "mean_utilisation_percent": Cell(gpu.mean_utilisation_percent, "{:.0f} %"),
            "peak_memory_used_bytes": Cell(gpu.peak_memory_used_bytes, "size"),
        }
        for gpu in facts.result.gpu
    ]
    heads = {"peak_memory_used_bytes": "peak memory in use"}
    picture = Figure("gpu", "GPU utilisation over the run.", lambda: figures.gpu_figure(facts))
    return Section("GPUs", [Table("gpus", rows, heads), picture], "gpus", in_text=False)


def _training(facts: RunFacts) -> Table:
    """Return how far training went and what the loss did."""
    training = facts.result.training
    names = ("optimizer_steps", "total_steps", "epochs", "examples", "skipped_steps", "first_loss")
    names += ("last_loss", "best_step", "resumed_from")
    names = names if training.optimizer_steps else ()
    return listing("training", {name.replace("_", " "): getattr(training, name) for name in names})


# ------------------------------------------------------------------------------------------------
# Scores by metric, targets, and what to hold against them.


def ordered_splits(facts: RunFacts) -> list[tuple[str, Split]]:
    """Return name and scores of each scored split: the test splits first."""
    scores = facts.result.scores
    order = sorted(scores, key=lambda name: (not name.startswith("test"), name))
    return [(name, scores[name]) for name in order if scores[name] != Split()]


def metric_rows(facts: RunFacts, scores: Scores) -> list[dict[str, Any]]:
    """Return one row per split and metric of a job, as its scores list them."""
    rows = []
    for split in scores.splits:
        values = facts.result.scores.get(split, Split())
        samples = "" if values.n_samples is None else f" (n = {count(values.n_samples)})"
        head = Cell(split, label=scores.splits[split] + samples)
        for name in (name for name in scores.names(split) if name in values.metrics):
            cell = score_cell(scores, name, values.metrics[name], values.intervals.get(name))
            metric = Cell(name, label=scores.title(name))
            rows.append({"split": head, "metric": metric, "value": cell})
    return rows


def score_cell(scores: Scores, name: str, value: float | None, edges: Any = None) -> Cell:
    """Return a score with the decimals that it bears."""
    return Cell(value, f".{scores.metric(name).decimals}f", edges)


def standing_of(
    ours: float | None, other: float | None, difference: Sequence[float | None] | None
) -> str:
    """Say how a score stands to a baseline's: settled by the interval of the difference.

    >>> standing_of(0.9, 0.8, [0.1, 0.05, 0.15]), standing_of(0.9, 0.8, [0.1, -0.05, 0.2])
    ('ahead', 'level')
    >>> standing_of(0.9, 0.8, None)
    'above'
    """
    _, low, high = difference or (None, None, None)
    if low is not None and high is not None:
        return AHEAD if low > 0 else BEHIND if high < 0 else LEVEL
    if ours is None or other is None:
        return ""
    return ABOVE if ours > other else NOT_ABOVE


def targets(facts: RunFacts) -> Section:
    """Return the preset's success criteria beside what was measured."""
    bounds, passed = {"<=": "at most", ">=": "at least"}, {True: "passed", False: "missed"}
    rows = [
        {
            "metric": row["metric"],
            "bound": bounds[row["op"]],
            "target": row["target"],
            "value": Cell(row["value"], ".4f"),
            "passed": passed[row["passed"]],
            "note": row["note"] or ("undefined" if row["value"] is None else ""),
        }
        for row in (target_rows(facts.result.raw) if facts.is_complete else ())
        if row["target"] is not None
    ]
    return Section("Targets", [Table("targets", rows, {"passed": ""})], "targets")


def doubts(sentences: Iterable[str]) -> Section:
    """Return what a reader should hold against the scores."""
    return Section("What to hold against these scores", texts(list(sentences)), "doubts")


# ------------------------------------------------------------------------------------------------
# Where the run comes from: data, settings, and what is needed to cite or repeat it.


def origin(facts: RunFacts, data: Sequence[Block], note: str = "") -> list[Block]:
    """Return the sections on data, settings and citation."""
    heads = {"what": "to cite", "value": ""}
    return [
        Section("Data", [*data, data_findings(facts)], "data", note, in_text=False),
        Section(
            "Settings that differ from the base preset",
            [Table("settings", settings_rows(facts))],
            "settings",
            in_text=False,
        ),
        Section(
            "To cite or repeat this run",
            [listing("citation", citation(facts), heads)],
            "citation",
            in_text=False,
        ),
    ]


def split_rows(facts: RunFacts, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the counts of each split of the data, by their names in the result."""
    return [
        {"split": split} | {name: getattr(values, name) for name in names}
        for split, values in facts.result.data.splits.items()
        if values != SplitData()
    ]


def settings_rows(facts: RunFacts) -> list[dict[str, Any]]:
    """Return the settings in which this run differs from the base preset, and why."""
    preset, settings = facts.saved.preset, facts.result.raw.get("settings") or {}
    return [
        {
            "setting": name,
            "base": str(preset.base[name]),
            "this_run": str(value),
            "from": preset.provenance.get(name, ""),
            "why": preset.why.get(name, ""),
        }
        for name, value in settings.items()
        if name in preset.base and preset.base[name] != value
    ]


def citation(facts: RunFacts) -> dict[str, str]:
    """Return everything needed to name this result and to repeat it."""
    result, data, model = facts.result, facts.result.data, facts.result.model
    rows = {
        "run": result.run_id or facts.run.id,
        "preset": result.preset,
        "command": result.command,
        "git commit": result.git_commit,
        "seed": result.seed,
        "model": model.name,
        "model revision": model.revision,
        "architecture": model.architecture,
        "adapter": facts.adapter,
        "parameters": None if model.parameters is None else count(model.parameters),
        "weights": _weights(facts),
        "tokenizer": model.tokenizer,
        "data flow": _data_flow(facts),
        "checkpoint": result.checkpoint,
        "data": data.source,
        "data revision": data.revision,
        "data fingerprint": data.fingerprint,
        "data licence": data.licence,
        "template": data.template,
        "canonical form": data.canonical,
        "data note": data.note,
        "versions": ", ".join(
            f"{name} {version}"
            for name, version in result.versions.items()
            if name not in _of_others(facts.job)
        ),
    }
    return {name: str(value) for name, value in rows.items() if value not in (None, "")}


def _of_others(job: str) -> set[str]:
    """Return the libraries that other jobs load and this one does not."""
    used = {name: {*spec.libraries, *spec.score_libraries} for name, spec in JOBS.items()}
    return set().union(*used.values()) - used.get(job, used[CLONES.name])


def _data_flow(facts: RunFacts) -> str:
    """Say how the data flow was read, and of how many functions there is none."""
    flow = facts.result.model.data_flow
    if flow == DataFlow():
        return ""
    if not flow.data_flow_length:
        return "off; code split at the leaves of its syntax tree"
    nodes = "nodes" if flow.mean_nodes is None else f"{flow.mean_nodes:.0f} nodes per function"
    return (
        f"{nodes} on average, {flow.functions_without_nodes} functions without any; "
        f"room for {flow.data_flow_length}; {flow.grammar_compat} grammar"
    )


def _weights(facts: RunFacts) -> str:
    """Say where the weights came from before this run changed them."""
    settings, spec = facts.result.settings, spec_of(facts)
    if facts.is_evaluation:
        checkpoint = PurePath(str(facts.result.checkpoint or "unknown"))
        is_in_folder = checkpoint.name.startswith(WEIGHTS) and checkpoint.parent.name
        return f"from checkpoint {checkpoint.parent.name if is_in_folder else checkpoint.name}"
    if settings.model in spec.models.embedded:
        if not settings.pretrain_steps:
            return "random"
        name, rows = spec.pretraining
        text = f"random, pre-trained for {count(settings.pretrain_steps)} {name}"
        return f"{text} on {'the sample' if facts.is_sample else rows}" if rows else text
    words = {True: "random", False: "pretrained"}
    return words.get(facts.result.model.random_weights, "")  # type: ignore[call-overload]


def data_findings(facts: RunFacts) -> Text:
    """Return what the check of the data found, a line each."""
    return Text("\n".join(_finding_lines(facts.result.data.problems)), VERBATIM)


def _finding_lines(problems: Problems) -> Iterator[str]:
    if problems.text:  # of older runs
        yield problems.text
    if problems.left_out is None:
        yield from _named(problems.counts)
    elif problems.left_out:  # with the notes it says in words what the counts do
        yield problems.left_out
    yield from (str(note) for note in [*problems.examples, *problems.notes])
    yield from _named(problems.facts)
    if problems.duplicates != type(problems.duplicates)():
        yield from duplicate_lines(problems.duplicates)


def _named(values: Mapping[str, Any]) -> list[str]:
    """Write `name: value` lines; a mapping as value becomes `train: 0 · valid: 0`."""
    return [f"{name.replace('_', ' ')}: {_flat(value)}" for name, value in values.items()]


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return " · ".join(f"{name}: {_flat(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_flat(inner) for inner in value) or "none"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count else str(value)


def duplicate_lines(duplicates: BaseModel) -> list[str]:
    """Return in words which train rows repeat evaluation rows or each other.

    >>> from nbhelpers.common.result_files import Duplicates
    >>> duplicate_lines(Duplicates(train_rows_like_any=2, within_train={"equal": 1, "near": 0},
    ...     train_rows_like={"test": {"equal": 2, "near": 0}, "valid": {"equal": 0}}))
    ['Train rows like rows of test: 2 equal.', 'Train rows like an earlier train row: 1 equal.']
    """
    sides = {f"rows of {name}": kinds for name, kinds in duplicates.train_rows_like.items()}
    lines, has_near = [], False
    for side, kinds in {**sides, "an earlier train row": duplicates.within_train}.items():
        counts = {kind: number for kind, number in kinds.items() if number}
        has_near = has_near or "near" in counts
        said = ", ".join(f"{count(n)} {LIKE.get(kind, kind)}" for kind, n in counts.items())
        lines += [f"Train rows like {side}: {said}."] if said else []
    if not duplicates.train_rows_like_any:
        lines = ["No train row equals or nearly equals a row of test or valid.", *lines]
    if duplicates.removed:
        lines.append(f"Removed of these: {count(duplicates.removed)}.")
    if has_near and duplicates.threshold:
        lines.append(f"Nearly equal: a similarity of at least {duplicates.threshold}, up to 1.")
    return lines


def note(text: str) -> Text:
    """Return a text that explains."""
    return Text(text, NOTE)
