"""The end of a run: final scores, predictions, floors and `result.json`; and the trackers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.floors import score_floors
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.measure import MemoryMeter
from nbhelpers.jobs.schedule import micro_batches
from nbhelpers.ledger import CONTEXT, BatchExtent, ledger
from nbhelpers.memory import MemoryBudget, compare
from nbhelpers.metrics import best_threshold, is_positive, score_pairs
from nbhelpers.predictions import PredictionWriter
from nbhelpers.schema import Settings
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    import numpy as np

    from nbhelpers.jobs.clones import Inputs, PairTask
    from nbhelpers.jobs.loop import TrainState
    from nbhelpers.jobs.session import Session


def checkpoint_file(session: Session) -> Path:
    """Return the weights file that an evaluation run was given: a file, a checkpoint, or a run."""
    given = Path(session.facts["checkpoint"])
    if (given / "checkpoints").is_dir():
        given = ck.find_best(given / "checkpoints")
    return given / "model.safetensors" if given.is_dir() else given


def settings_for_checkpoint(session: Session) -> Settings:
    """Return the settings that build a checkpoint's architecture.

    A checkpoint of ours has its configuration and tokenizer beside it; other weights are of the
    architecture that `model` names.

    Raises:
        DataError: There is no such checkpoint.
        ConfigError: The architecture cannot be known.
    """
    path, settings = checkpoint_file(session), session.settings
    if not path.is_file():
        raise DataError(f"There is no checkpoint {path}.", fix="check the path")
    changes: dict[str, Any] = {"random_weights": True, "pretrain_steps": 0}
    is_ours = (path.parent / ck.MANIFEST).is_file()
    if is_ours or (settings.model == "smoke" and (path.parent / "config.json").is_file()):
        changes["model"] = str(path.parent)
    elif settings.model == "smoke":
        raise ConfigError(
            f"{path} has no config.json beside it, so its architecture is not known.",
            fix="give --model with the architecture it was trained from",
        )
    return settings.model_copy(update=changes)


def finish(
    session: Session,
    inputs: Inputs,
    task: PairTask,
    state: TrainState,
    meter: MemoryMeter,
    gpu: list[dict[str, Any]],
    *,
    resumed: dict[str, Any] | None = None,
) -> None:
    """Score valid and test, write predictions and the result; every rank encodes, rank 0 writes."""
    session.clock.phase("evaluate")
    splits = inputs.data.splits
    names = [name for name in splits if name != "train"]
    predicted = {
        name: task.predict(splits[name], session.progress(f"evaluate {name}")) for name in names
    }
    ranks = gather_object([meter.facts(session.writer.rank)])
    session.accelerator.wait_for_everyone()
    if not session.is_main:
        return
    threshold = _threshold(session, splits, predicted)
    scores = _scores(session, inputs, predicted, threshold["value"])
    _write_predictions(session, inputs, predicted, threshold["value"])
    if session.settings.floors:
        _add_floors(session, inputs, predicted, threshold["value"], scores)
    session.clock.phase("finish")
    result = _result(session, inputs, task, state, scores, threshold)
    result |= {"memory": _memory(session, ranks), "gpu": gpu}
    result["training"]["resumed_from"] = resumed["train"]["step"] if resumed else None
    result["timing"] = session.clock.result()
    ck.write_json(session.run.result_path, result)
    session.accelerator.end_training()
    session.writer.write("end")


def _threshold(session: Session, splits: Any, predicted: Any) -> dict[str, Any]:
    """Choose the threshold on valid; test never takes part."""
    if "valid" in predicted:
        value = best_threshold(splits["valid"].label, predicted["valid"][0])
        return {"value": float(value), "chosen_on": "valid", "criterion": "f1"}
    session.warn("There are no valid pairs: the threshold is 0.5, not a chosen one.")
    return {"value": 0.5, "chosen_on": "nothing", "criterion": "fixed"}


def _scores(session: Session, inputs: Inputs, predicted: Any, threshold: float) -> dict[str, Any]:
    s, data = session.settings, inputs.data
    scores = {}
    for name, (given, swapped) in predicted.items():
        pairs = data.splits[name]
        scores[name] = score_pairs(
            pairs.left,
            pairs.right,
            pairs.label,
            given,
            swapped,
            threshold,
            seen=data.seen_members(name) if "train" in data.splits else None,
            priors=dict(s.priors),
            bootstrap_samples=s.bootstrap_samples,
            seed=s.seed,
        )
    for name in sorted(scores, key=lambda name: name == "test"):  # last: what progress shows
        session.emit_main("eval", step=-1, split=name, scores=scores[name]["orders"]["given"])
    return scores


def _write_predictions(session: Session, inputs: Inputs, predicted: Any, threshold: float) -> None:
    """Write one line per pair of each test split, in file order."""
    ids = inputs.data.ids
    with PredictionWriter(session.run.predictions_path) as writer:
        for name in (n for n in predicted if n.startswith("test")):
            pairs, (given, swapped) = inputs.data.splits[name], predicted[name]
            decided = is_positive(given, threshold)
            for row in range(len(pairs)):
                writer.write(
                    split=name,
                    row=row,
                    id1=ids[pairs.left[row]],
                    id2=ids[pairs.right[row]],
                    label=int(pairs.label[row]),
                    p=float(given[row]),
                    p_reversed=float(swapped[row]),
                    prediction=int(decided[row]),
                )


def _add_floors(
    session: Session, inputs: Inputs, predicted: Any, threshold: float, scores: dict[str, Any]
) -> None:
    if "train" not in inputs.data.splits or "valid" not in inputs.data.splits:
        session.warn("The floors need train and valid pairs and were left out.")
        return
    session.clock.phase("floors")
    floors = score_floors(
        inputs.data.functions,
        inputs.data.splits,
        seed=session.settings.seed,
        bootstrap_samples=session.settings.bootstrap_samples,
        model={name: (given, threshold) for name, (given, _) in predicted.items()},
    )
    for name, found in floors.items():
        scores[name]["floors"] = found


def _memory(session: Session, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the prediction beside the worst rank's peak."""
    measured = max(line["peak_allocated_bytes"] for line in ranks) or None
    budget, cuda = session.data_budget, session.accelerator.device.type == "cuda"
    facts = {
        "device": session.accelerator.device.type,
        "what": "allocator peak" if cuda else "live tensor bytes",
        "per_rank": ranks,
    }
    if budget is None:
        return facts | {"predicted_bytes": None, "measured_bytes": measured, "error_percent": None}
    lines = [asdict(line) for line in budget.lines if line.name != CONTEXT]
    return facts | {"predicted_lines": lines} | compare(budget, measured)


def predict_for_data(
    session: Session, task: PairTask, windows: list[np.ndarray]
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch, now that the lengths are known.

    The budget before the run takes every function as long as `seq_len`; this one is what the
    measured peak is compared with.
    """
    shape, s, plan = find_shape(session.settings), session.settings, session.plan
    if shape is None:
        return None
    largest = BatchExtent(tokens=0, squares=0, last_tokens=0)
    for window in windows:
        for rows in micro_batches(
            window,
            task.costs,
            rank=session.writer.rank,
            world_size=plan.world_size,
            per_device=plan.per_device_train_batch_size,
        ):
            if len(rows):
                largest = max(largest, task.extent(rows), key=lambda x: (x.tokens, x.squares))
    lines = ledger(s, plan, shape, precision=session.precision, extent=largest)
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())


def _result(
    session: Session,
    inputs: Inputs,
    task: PairTask,
    state: TrainState,
    scores: dict[str, Any],
    threshold: dict[str, Any],
) -> dict[str, Any]:
    from nbhelpers.jobs.session import library_versions

    facts, s = session.facts, session.settings
    return {
        "schema": 1,
        "run_id": facts["run_id"],
        "job": facts["job"],
        "mode": facts["mode"],
        "preset": session.preset.name,
        "settings": s.model_dump(),
        "precision": session.precision,
        "plan": session.plan.to_dict(),
        "budget": facts["budget"],
        "checkpoint": facts.get("checkpoint"),
        "command": facts.get("command"),
        "git_commit": facts.get("git_commit"),
        "seed": s.seed,
        "finished_at": time.time(),
        "versions": library_versions(),
        "data": inputs.data.to_dict() | {"truncated_functions": inputs.table.truncated},
        "model": _model_facts(session, inputs, task),
        "threshold": threshold,
        "scores": scores,
        "training": _training_facts(state),
        "throughput": _throughput(state, task),
        "warnings": session.warnings,
    }


def _model_facts(session: Session, inputs: Inputs, task: PairTask) -> dict[str, Any]:
    weights = inputs.found.weights
    return {
        "name": session.settings.model,
        "revision": weights.revision if weights else None,
        "architecture": type(task.raw.encoder).__name__,
        "parameters": sum(p.numel() for p in task.raw.parameters()),
        "random_weights": session.settings.random_weights,
        "tokenizer": inputs.found.note,
        "seq_len": session.settings.seq_len,
    }


def _training_facts(state: TrainState) -> dict[str, Any]:
    losses = [line["loss"] for line in state.history]
    return {
        "optimizer_steps": state.step,
        "epochs": state.epoch,
        "examples": state.examples,
        "skipped_steps": state.skipped_steps,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "history": state.history,
        "evals": state.evals,
        "best_step": state.best_step if state.best_step >= 0 else None,
    }


def _throughput(state: TrainState, task: PairTask) -> dict[str, float]:
    if not state.train_s or not state.examples:
        return {}
    # With every function of every pair padded to seq_len, as the legacy script does.
    fixed = float(task.costs.mean()) / (2 * task.table.seq_len)
    return {
        "pairs_per_s": state.examples / state.train_s,
        "useful_tokens_per_s": state.useful_tokens / state.train_s,
        "padded_tokens_per_s": state.padded_tokens / state.train_s,
        "useful_share": state.useful_tokens / max(1, state.padded_tokens),
        "fixed_padding_useful_share": fixed,
    }


def check_tracker(name: str) -> list[str]:
    """Return what is missing for the chosen tracker; Accelerate itself would only warn."""
    if name == "none" or find_spec(name):
        return []
    return [f"track={name} needs the package {name}: pip install {name}, or track=none"]


def start_tracker(session: Session) -> None:
    """Start the chosen tracker without ever asking for a login."""
    os.environ.setdefault("WANDB_SILENT", "true")
    if session.settings.track == "wandb" and not os.environ.get("WANDB_API_KEY"):
        os.environ.setdefault("WANDB_MODE", "offline")
    plain = (int, float, str, bool)
    config = {k: v for k, v in session.settings.model_dump().items() if isinstance(v, plain)}
    session.accelerator.init_trackers("nbhelpers", config=config)


def emitter(session: Session) -> Callable[..., None]:
    """Return what the loop calls for each event: the event file, and a tracker if chosen."""

    def emit(kind: str, **fields: Any) -> None:
        session.emit_main(kind, **fields)
        if kind == "step" and session.settings.track != "none":
            numbers = {k: fields[k] for k in ("loss", "learning_rate", "grad_norm")}
            session.accelerator.log(numbers, step=fields["step"])

    return emit
