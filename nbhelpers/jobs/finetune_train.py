"""Training of adapters: proof of the attention, resume, checkpoints, measured memory and energy."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.finetune_plan import (
    COUNTED_STEPS,
    compiles,
    data_budget,
    extent_of,
    laid_out,
    proven_kernel,
    rehearsed,
)
from nbhelpers.jobs.finetune_recipe import Recipe
from nbhelpers.jobs.finetune_trainer import AdapterTrainer, Hooks, training_arguments
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter, told_energy
from nbhelpers.jobs.measure_phases import PhasePeaks, steps_to_watch
from nbhelpers.jobs.measure_run import meter_of, peaks_of, settle_budget
from nbhelpers.jobs.probe import probed_steps
from nbhelpers.jobs.track import emitter
from nbhelpers.jobs.training import Training, watched_gpus
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.causal import DTYPES
from nbhelpers.models.causal_batches import make_batch
from nbhelpers.models.causal_forward import TrainingForward
from nbhelpers.models.causal_text import TextTable

if TYPE_CHECKING:
    from nbhelpers.jobs.finetune_inputs import Adapted, Inputs

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def train_adapter(context: RunContext, inputs: Inputs, adapted: Adapted) -> Training:
    """Train from the newest checkpoint, or from the start.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: Gradients that are not finite.
        ConfigError: Too little disk.
    """
    device = context.accelerator.device
    # What building the model took, before anything else is tried on the GPU.
    load_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    context.check_disk(adapted.facts["trainable_parameters"])
    dtype = DTYPES[context.precision]
    kernel, packed, parity = proven_kernel(context, inputs, adapted, dtype)
    forward, recipe = laid_out(context, inputs, adapted, kernel, packed)
    vocab = int(adapted.base.config.vocab_size)
    is_compiled = compiles(context, inputs, recipe, kernel, vocab)
    if context.plan.use_gpu and (is_compiled or kernel == "flex"):
        kernel, packed, is_compiled = rehearsed(
            context, adapted, forward, recipe, is_compiled=is_compiled
        )
        forward, recipe = laid_out(context, inputs, adapted, kernel, packed)
    adapted.base.facts |= {"attention": kernel, "compiled": is_compiled, "parity": parity}
    probed = None
    if context.is_probe:
        usual, lengths = recipe.windows(0), np.asarray(recipe.table.lengths)
        probed = probed_steps(context, lengths, usual, examples=len(recipe.table))
        recipe = replace(recipe, only=probed.windows)
    resumed, state = find_state(context)
    meter = meter_of(context, is_resumed=resumed is not None, load_bytes=load_bytes)
    budget = data_budget(
        context,
        inputs,
        recipe,
        kernel,
        vocab=vocab,
        is_compiled=is_compiled,
        first=state.step,
    )
    budget = settle_budget(context, budget)
    context.clock.phase("train")
    runner = _Runner(context, inputs, adapted, recipe, forward, meter, budget)
    training = runner.run(resumed, state, is_compiled=is_compiled)
    training.probed, training.model = probed, {"attention": kernel, "compiled": is_compiled}
    return training


class _Runner:
    """One training: the trainer with its hooks, from a checkpoint or from the start."""

    def __init__(
        self,
        context: RunContext,
        inputs: Inputs,
        adapted: Adapted,
        recipe: Recipe,
        forward: TrainingForward,
        meter: MemoryMeter,
        budget: MemoryBudget | None,
    ) -> None:
        self.context, self.inputs, self.adapted = context, inputs, adapted
        self.recipe, self.forward, self.meter, self.budget = recipe, forward, meter, budget
        self._last = time.monotonic()

    def run(self, resumed: Path | None, state: TrainState, *, is_compiled: bool) -> Training:
        context, recipe = self.context, self.recipe
        resumed_from = state.step if resumed else None  # its folder may be pruned by the end
        gpus = watched_gpus(context)
        with ExitStack() as stack:
            stack.enter_context(self.forward.active(compiled=is_compiled))
            trainer = self._trainer(state)
            watch = stack.enter_context(GpuWatch(list(gpus), context.emit))
            if state.step < recipe.total_steps:
                if not context.plan.use_gpu:
                    trainer.count_live_bytes(self.meter, COUNTED_STEPS)
                    stack.callback(trainer.counting.close)  # a step that fails ends its count too
                trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
            elif resumed:  # trained to the end before: only the evaluation is missing
                trainer.load_adapter(resumed)
        self.meter.begin_scoring()
        self.adapted.model.eval()
        if trainer.stopped:
            from nbhelpers.errors import Stopped

            raise Stopped(
                f"Stopped on request after optimizer step {state.step} of {recipe.total_steps}.",
                fix="run the same launch again: it goes on from the checkpoint",
            )
        return Training(
            state=state,
            meter=self.meter,
            gpu=watch.summary(gpus),
            resumed_from=resumed_from,
            budget=self.budget,
            energy=watch.energy(told_energy(context.earlier)),
        )

    def _trainer(self, state: TrainState) -> AdapterTrainer:
        context = self.context
        arguments = training_arguments(
            context.settings,
            context.plan,
            precision=context.precision,
            folder=str(context.run.path / "trainer"),
            max_steps=len(self.recipe.only) if self.recipe.only else -1,
        )
        hooks = Hooks(
            emit=emitter(context),
            save=self._save,
            validate=self._validate,
            wants_stop=context.wants_stop,
            save_is_due=self._is_due,
            peak_bytes=self.meter.peak_bytes,
            memory=self._peaks(state.step),
        )
        return AdapterTrainer(
            self.adapted.model,
            recipe=self.recipe,
            forward=self.forward,
            hooks=hooks,
            arguments=arguments,
            tokenizer=self.adapted.base.tokenizer,
            state=state,
        )

    def _peaks(self, first: int) -> PhasePeaks:
        recipe = self.recipe
        watched = list(range(first, first + COUNTED_STEPS))
        if self.context.plan.use_gpu:
            epochs = range(recipe.settings.epochs)
            windows = [window for epoch in epochs for window in recipe.windows(epoch)]
            watched = steps_to_watch(
                windows[first:], lambda window: extent_of([window], recipe).tokens, first=first
            )
        return peaks_of(self.context, self.meter, watched, self.budget)

    def _is_due(self) -> bool:
        minutes = self.context.settings.save_minutes
        return minutes is not None and time.monotonic() - self._last > 60 * minutes

    def _save(self, state: TrainState, trainer: AdapterTrainer) -> None:
        context = self.context
        self._last = time.monotonic()
        if context.is_main:
            path = ck.save_checkpoint(
                context.run.checkpoints_path,
                step=state.step,
                model_state=adapter_tensors(self.adapted.model),
                optimizer_state=trainer.optimizer.state_dict(),
                state={"train": state.to_dict()},
                extra=lambda folder: self._write_rest(folder, trainer),
                is_best=True,  # the seed's rule: the model is the one after the last step
                keep=context.settings.save_total_limit,
                weights_name=ADAPTER_WEIGHTS,
            )
            context.emit_rank("checkpoint", step=state.step, path=str(path), is_best=True)
        context.accelerator.wait_for_everyone()

    def _write_rest(self, folder: Path, trainer: AdapterTrainer) -> None:
        """Write what the trainer reads to go on, and what makes the folder a PEFT adapter."""
        torch.save(trainer.lr_scheduler.state_dict(), folder / "scheduler.pt")
        scaler = trainer.accelerator.scaler
        if scaler is not None:
            torch.save(scaler.state_dict(), folder / "scaler.pt")
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        model = self.adapted.model
        config = model.peft_config[model.active_adapter]
        before = config.base_model_name_or_path, config.inference_mode
        config.base_model_name_or_path = self.context.settings.model
        config.inference_mode = True
        config.save_pretrained(folder)
        config.base_model_name_or_path, config.inference_mode = before
        self.adapted.base.tokenizer.save_pretrained(folder)

    def _validate(self) -> float | None:
        table, accelerator = self.inputs.tables["valid"], self.context.accelerator
        if not len(table):
            return None
        return valid_loss(accelerator, self.adapted.model, self.forward, self.recipe, table)


def valid_loss(
    accelerator: Any, model: Any, forward: TrainingForward, recipe: Recipe, table: TextTable
) -> float:
    """Return the mean loss over the supervised tokens of rows; every rank does its share."""
    s = recipe.settings
    order = np.argsort(-table.lengths, kind="stable")
    order = order[recipe.rank :: recipe.plan.world_size]
    sums = torch.zeros(2, dtype=torch.float64)
    was_training = model.training
    model.eval()
    with torch.no_grad(), accelerator.autocast():
        for start in range(0, len(order), s.per_device_eval_batch_size):
            rows = order[start : start + s.per_device_eval_batch_size]
            batch = make_batch(
                table, rows, pad_id=recipe.pad_id, packed=s.packing, multiple=recipe.multiple
            ).to(accelerator.device)
            loss = model(**forward.inputs(batch)).loss
            sums += torch.tensor([float(loss), float(table.supervised[rows].sum())])
    model.train(was_training)
    loss, tokens = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
    return loss / tokens


def find_state(context: RunContext) -> tuple[Path | None, TrainState]:
    """Return the newest sound checkpoint, and where training stands."""
    folder = context.run.checkpoints_path
    path = ck.agree(context.accelerator, folder, lambda: ck.find_last(folder, context.warn))
    if path is None:
        return None, TrainState()
    values = json.loads((path / "state.json").read_text(encoding="utf-8"))
    context.emit("resumed", step=values["train"]["step"], checkpoint=path.name)
    return path, TrainState(**values["train"])


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors under PEFT's names, asking no hub."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, save_embedding_layers=False)
