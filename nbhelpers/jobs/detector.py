"""Detection of AI-written code and similarity: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbhelpers.common.files import write_json
from nbhelpers.common.model_config import DETECTOR_TYPE
from nbhelpers.jobs.compiling import Compiling, tell_proof, wants_compiling
from nbhelpers.jobs.context import Forecast, RunContext
from nbhelpers.jobs.detector_inputs import ABSENT, SCORED, Inputs, read_inputs
from nbhelpers.jobs.detector_scores import begin_similarity, frozen_stack, score_run
from nbhelpers.jobs.detector_stack import Fold, begin_floors, folds
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.forecast import Simulate, encoder_estimate, encoder_forecast
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState, seed_everything
from nbhelpers.jobs.models.detector import (
    FACTS_FILE,
    DetectorModel,
    build_detector,
    facts_of,
)
from nbhelpers.jobs.models.weights import raise_unlike, read_state_dict
from nbhelpers.jobs.pretraining import masked_encoder
from nbhelpers.jobs.training import Training, adamw, rewrapper, train_task
from nbhelpers.presets.schema import DetectorSettings

# ------------------------------------------------------------------------------------------------
# The shapes that decide the memory of a detector run.


def forecast(context: RunContext, inputs: Inputs, simulate: Simulate) -> Forecast:
    """Return the simulated memory of the largest batch of programs."""
    task = DetectorTask(context.settings, inputs, context.accelerator, None)
    return encoder_forecast(context, task, simulate, batch_shapes)


def batch_shapes(
    task: DetectorTask, parts: list[np.ndarray], *, is_scored: bool = True
) -> dict[str, Any]:
    """Return what decides the memory of micro-batches and of scoring.

    Args:
        parts: Rows of each micro-batch, as global batches name them.
        is_scored: Whether programs are scored in this run.

    Returns:
        {vocab, lengths, parts, states, scored, scored_rows, has_raw_encoder}: tokens of each
        program of the micro-batches; how many programs each has; tokens of the programs from which
        the heads' scale is taken, of those scored at once, and how many are scored together;
        whether the encoder as it was before training is scored too.
    """
    s, inputs, lengths = task.settings, task.inputs, task.batches.lengths
    has_raw_encoder = s.objective != "detect" and not s.random_weights
    scored = _largest_scored(task) if is_scored else np.zeros(0, dtype=np.int64)
    return {
        "vocab": inputs.found.config.vocab_size,
        "lengths": lengths[task.forms.reshape(-1)[np.concatenate(parts)]].tolist(),
        "parts": [len(part) for part in parts],
        "states": max((lengths[rows] for rows in task.state_rows()), key=np.sum).tolist(),
        "scored": lengths[scored[: s.per_device_eval_batch_size]].tolist(),
        "scored_rows": len(scored),
        "has_raw_encoder": has_raw_encoder and inputs.found.weights is not None,
    }


def _largest_scored(task: DetectorTask) -> np.ndarray:
    """Return the table rows whose scoring needs most of all that are scored, longest first."""
    inputs, lengths = task.inputs, task.batches.lengths
    groups = [inputs.rows[rows] for name, rows in inputs.data.splits.items() if name in SCORED]
    groups += [rows for _, rows in inputs.others.values()]
    groups += [rows[rows != ABSENT] for rows in inputs.edits.values()]
    ordered = [rows[task.batches.longest_first(rows)] for rows in groups if len(rows)]
    size = task.settings.per_device_eval_batch_size
    return max(ordered, key=lambda rows: (int(lengths[rows[:size]].sum()), len(rows)))


# ------------------------------------------------------------------------------------------------
# Detection of AI-written code and similarity: check, build_data, build_model, train, evaluate.


HEAD = 1  # a stream of random numbers of its own


def check(settings: DetectorSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    return []


def build_data(context: RunContext) -> Inputs:
    """Read, audit, edit and tokenise the programs; of an evaluation, first what its run froze."""
    frozen_stack(context.checkpoint)
    inputs = read_inputs(context)
    inputs.floors = begin_floors(context, inputs)
    inputs.similarity = begin_similarity(context, inputs)
    if context.checkpoint is None and context.settings.evaluate_sources == "full":
        n = len(folds(inputs))
        text = f"evaluate_sources=full: after the training, {n} more, each without one source."
        context.warn(text if n else "evaluate_sources=full: no two sources have both classes.")
    return inputs


def build_model(context: RunContext, inputs: Inputs) -> DetectorModel:
    """Return the model in fp32 on the CPU; the caller seeds before."""

    def pretrain(config: Any) -> Any:
        encoder = _pretrained(context, inputs, config)
        # The heads must start the same whether the encoder was trained just now or cached.
        seed_everything(context.settings.seed, HEAD)
        return encoder

    model = build_detector(context.settings, inputs.found, pretrain=pretrain)
    if context.checkpoint:
        state = read_state_dict(context.checkpoint)
        raise_unlike(model, state, str(context.checkpoint))
        model.load_state_dict(state)
    return model


def _pretrained(context: RunContext, inputs: Inputs, config: Any) -> Any:
    """Return an encoder that has read the train programs, in every form that training may read."""
    train = inputs.rows[inputs.data.splits["train"]]
    table_rows = np.concatenate([train, *inputs.forms.values()])
    return masked_encoder(
        config,
        inputs.table,
        np.unique(table_rows[table_rows >= 0]),
        steps=context.settings.pretrain_steps,
        seed=context.settings.seed,
        accelerator=context.accelerator,
        report=context.pretraining(),
        tell=lambda step, loss: context.emit("pretrain", step=step, loss=loss),
    )


def train(context: RunContext, inputs: Inputs, model: DetectorModel) -> Training:
    """Train; the model ends as the checkpoint with the best score on valid."""

    def save_files(folder: Path) -> None:
        inputs.found.save(folder, DETECTOR_TYPE)
        write_json(folder / FACTS_FILE, facts_of(context.settings, inputs.form))

    task = _task(context, inputs, model)
    if model.rarity is not None:
        model.rarity.copy_(token_rarity(inputs))
    model.to(context.accelerator.device)
    model.standardise(task.some_states())
    training = train_task(
        context,
        task,
        model,
        predict=lambda steps: encoder_estimate(context, task, steps),
        save_files=save_files,
        groups=lambda bare: parameter_groups(bare, context.settings, task),
    )
    if task.compiling is not None:
        training.compiled = task.compiling.facts()
        training.model = {"compiled": training.compiled["is_on"]}
    model.freeze(False)
    model.compile_blocks(False)
    return training


def token_rarity(inputs: Inputs) -> torch.Tensor:
    """Return (vocabulary,) fp32: ln((1 + programs) / (1 + programs with the token)) of train.

    Source: Sparck Jones 1972, inverse document frequency, smoothed. The ends of a program are in
    every one, so they weigh nothing.
    """
    table, rows = inputs.table, inputs.rows[inputs.data.splits["train"]]
    counts = np.zeros(inputs.found.config.vocab_size)
    for row in rows:
        counts[np.unique(table.ids[table.offsets[row] : table.offsets[row + 1]])] += 1
    for end in (table.bos_id, table.eos_id):
        if end is not None:
            counts[end] = len(rows)
    return torch.from_numpy(np.log((1 + len(rows)) / (1 + counts)).astype(np.float32))


def parameter_groups(
    model: DetectorModel, settings: DetectorSettings, task: DetectorTask
) -> list[dict[str, Any]]:
    """Return the optimizer's groups: encoder and heads, each with and without weight decay.

    The heads come first: theirs is the rate that is shown. The encoder's schedule begins with its
    first step, warm-up included. Biases and norms do not decay.
    """
    steps = -(-task.examples // settings.global_batch_size)
    first = min(settings.freeze_epochs, settings.epochs) * steps
    groups = []
    for is_encoder in (False, True):
        for decays in (True, False):
            picked = [
                p
                for name, p in model.named_parameters()
                if name.startswith("encoder.") == is_encoder and (p.dim() > 1) == decays
            ]
            group: dict[str, Any] = {"params": picked}
            group["weight_decay"] = settings.weight_decay if decays else 0.0
            group["peak"] = settings.encoder_learning_rate if is_encoder else settings.learning_rate
            group["first_step"] = first if is_encoder else 0
            groups.append(group)
    return [group for group in groups if group["params"]]


def _task(context: RunContext, inputs: Inputs, model: DetectorModel) -> DetectorTask:
    task = DetectorTask(context.settings, inputs, context.accelerator, model)
    is_wanted = wants_compiling(context, _learnt_tokens(context, inputs))
    if context.checkpoint is None and model.can_compile and is_wanted:
        tell = partial(tell_proof, context)
        task.compiling = Compiling(model, model.compile_blocks, context.accelerator, tell)
    return task


def _learnt_tokens(context: RunContext, inputs: Inputs) -> int:
    """Return the tokens of all epochs in which the encoder learns."""
    s, train = context.settings, inputs.data.splits.get("train", np.zeros(0, dtype=np.int64))
    epochs = max(0, s.epochs - s.freeze_epochs)
    return int(inputs.table.lengths[inputs.rows[train]].sum()) * epochs


def evaluate(
    context: RunContext, inputs: Inputs, model: DetectorModel, training: Training | None
) -> None:
    """Score every split, write predictions and the result; all ranks score, rank 0 writes."""
    task = DetectorTask(context.settings, inputs, context.accelerator, model)
    score_run(context, inputs, task, training, lambda fold: without_source(context, inputs, fold))


def without_source(
    context: RunContext, inputs: Inputs, fold: Fold
) -> tuple[np.ndarray, np.ndarray]:
    """Train an encoder without a source, as the run was; return logits of valid and of the source.

    Nothing of it is saved: the best state on valid stays in memory.
    """
    s, accelerator = context.settings, context.accelerator
    train = inputs.data.splits["train"]
    is_other = np.isin(train, fold.train)
    splits = {"train": train[is_other], "valid": fold.valid}
    part = replace(
        inputs,
        data=replace(inputs.data, splits=splits),
        forms={name: rows[is_other] for name, rows in inputs.forms.items()},
    )
    accelerator.free_memory()
    seed_everything(s.seed)
    model = build_model(context, part)
    task = DetectorTask(s, part, accelerator, model)
    if model.rarity is not None:
        model.rarity.copy_(token_rarity(part))
    model.to(accelerator.device)
    model.standardise(task.some_states())
    optimizer = adamw(context, parameter_groups(model, s, task))
    task.start_epoch(0)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    best: dict[str, torch.Tensor] = {}

    def save(state: TrainState, *, is_best: bool) -> None:
        if is_best:
            best.update({name: each.cpu().clone() for name, each in model.state_dict().items()})

    hooks = Hooks(save=save, wants_stop=context.wants_stop, rewrap=rewrapper(accelerator, wrapped))
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=s,
        plan=context.plan,
        hooks=hooks,
    )
    trainer.fit(TrainState())
    model.load_state_dict(best)
    logits = [task.batches.predict(model, inputs.rows[rows])[0] for rows in (fold.valid, fold.rows)]
    accelerator.free_memory()
    return logits[0], logits[1]
