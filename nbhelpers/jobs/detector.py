"""Detection of AI-written code and similarity: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_budget import largest_batch_budget
from nbhelpers.jobs.detector_compile import CompiledTask
from nbhelpers.jobs.detector_inputs import Inputs, read_inputs
from nbhelpers.jobs.detector_pretrain import pretrained
from nbhelpers.jobs.detector_scores import score_run
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.training import Training, train_task
from nbhelpers.models.detector import DetectorModel
from nbhelpers.models.detector_build import FACTS_FILE, build_detector, facts_of
from nbhelpers.models.weights import raise_unlike, read_state_dict
from nbhelpers.schema import DetectorSettings

HEAD = 1  # a stream of random numbers of its own


def check(settings: DetectorSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    return []


def build_data(context: RunContext) -> Inputs:
    """Read, audit, edit and tokenise the programs."""
    return read_inputs(context)


def build_model(context: RunContext, inputs: Inputs) -> DetectorModel:
    """Return the model in fp32 on the CPU; the caller seeds before."""

    def pretrain(config: Any) -> Any:
        encoder = pretrained(context, inputs, config)
        # The heads must start the same whether the encoder was trained just now or cached.
        seed_everything(context.settings.seed, HEAD)
        return encoder

    model = build_detector(context.settings, inputs.found, pretrain=pretrain)
    if context.checkpoint:
        state = read_state_dict(context.checkpoint)
        raise_unlike(model, state, str(context.checkpoint))
        model.load_state_dict(state)
    return model


def train(context: RunContext, inputs: Inputs, model: DetectorModel) -> Training:
    """Train; the model ends as the checkpoint with the best score on valid."""
    from nbhelpers.jobs.checkpoint import write_json

    def save_files(folder: Path) -> None:
        inputs.found.config.save_pretrained(folder)
        inputs.found.tokenizer.save_pretrained(folder)
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
        predict=lambda windows: largest_batch_budget(context, task, windows),
        save_files=save_files,
        groups=lambda bare: parameter_groups(bare, context.settings, task),
    )
    if isinstance(task, CompiledTask):
        training.compiled = task.facts()
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
    found = np.zeros(inputs.found.config.vocab_size)
    for row in rows:
        found[np.unique(table.ids[table.offsets[row] : table.offsets[row + 1]])] += 1
    for end in (table.bos_id, table.eos_id):
        if end is not None:
            found[end] = len(rows)
    return torch.from_numpy(np.log((1 + len(rows)) / (1 + found)).astype(np.float32))


def parameter_groups(
    model: DetectorModel, settings: DetectorSettings, task: DetectorTask
) -> list[dict[str, Any]]:
    """Return the optimizer's groups: encoder and heads, each with and without weight decay.

    The heads come first: theirs is the rate that is shown. The encoder's schedule begins with its
    first step, warm-up included. Biases and norms do not decay.
    """
    steps = -(-task.examples // settings.global_batch_size)
    first = min(settings.freeze_epochs, settings.epochs) * steps
    found = []
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
            found.append(group)
    return [group for group in found if group["params"]]


def _task(context: RunContext, inputs: Inputs, model: DetectorModel) -> DetectorTask:
    s = context.settings
    if context.checkpoint is None and wants_compiling(context, inputs, model):
        task = CompiledTask(s, inputs, context.accelerator, model)
        task.tell = lambda proof: _tell_proof(context, proof)
        return task
    return DetectorTask(s, inputs, context.accelerator, model)


def _tell_proof(context: RunContext, proof: dict[str, Any]) -> None:
    context.emit("compile", **proof)
    if not proof["is_on"]:
        gap = proof.get("largest_difference", 0.0)
        why = proof.get("reason") or f"their gradients are {gap:.3f} from the plain ones"
        context.warn(f"The blocks are not compiled: {why}.")


LONG_RUN_TOKENS = 20_000_000  # compiling and proving it take about half a minute


def wants_compiling(context: RunContext, inputs: Inputs, model: DetectorModel) -> bool:
    """Whether the blocks are compiled: as the settings say, or where the run is long enough."""
    s = context.settings
    if s.compile_layers == "off" or not model.can_compile:
        return False
    if s.compile_layers == "on":
        return True
    train = inputs.data.splits.get("train", np.zeros(0, dtype=np.int64))
    epochs = max(0, s.epochs - s.freeze_epochs)
    tokens = int(inputs.table.lengths[inputs.rows[train]].sum()) * epochs
    return context.plan.use_gpu and context.precision != "fp32" and tokens > LONG_RUN_TOKENS


def evaluate(
    context: RunContext, inputs: Inputs, model: DetectorModel, training: Training | None
) -> None:
    """Score every split, write predictions and the result; all ranks score, rank 0 writes."""
    task = DetectorTask(context.settings, inputs, context.accelerator, model)
    score_run(context, inputs, task, training)
