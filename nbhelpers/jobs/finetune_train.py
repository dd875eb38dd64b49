"""Training of adapters: proof of the attention, resume, checkpoints, measured memory and energy."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.jobs import checkpoint as ck
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
from nbhelpers.jobs.track import emitter
from nbhelpers.jobs.training import watched_gpus
from nbhelpers.models.causal import DTYPES
from nbhelpers.models.causal_batches import make_batch
from nbhelpers.models.causal_forward import TrainingForward

if TYPE_CHECKING:
    from nbhelpers.jobs.finetune import Adapted, Inputs
    from nbhelpers.jobs.session import Session

ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(slots=True, kw_only=True)
class Trained:
    """What training leaves behind for the result."""

    state: TrainState
    meter: MemoryMeter
    gpu: list[dict[str, Any]]
    resumed_from: int | None
    energy: dict[str, Any] | None = None


def train_adapter(session: Session, inputs: Inputs, adapted: Adapted) -> Trained:
    """Train from the newest checkpoint, or from the start.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: Gradients that are not finite.
        ConfigError: Too little disk.
    """
    session.check_disk(adapted.facts["trainable_parameters"])
    dtype = DTYPES[session.precision]
    kernel, packed, parity = proven_kernel(session, inputs, adapted, dtype)
    forward, recipe = laid_out(session, inputs, adapted, kernel, packed)
    vocab = int(adapted.base.config.vocab_size)
    is_compiled = compiles(session, inputs, recipe, kernel, vocab)
    if session.plan.use_gpu and (is_compiled or kernel == "flex"):
        kernel, packed, is_compiled = rehearsed(
            session, adapted, forward, recipe, is_compiled=is_compiled
        )
        forward, recipe = laid_out(session, inputs, adapted, kernel, packed)
    adapted.base.facts |= {"attention": kernel, "compiled": is_compiled, "parity": parity}
    if session.probe is not None:
        recipe = session.probe.recipe(recipe, {"attention": kernel, "compiled": is_compiled})
    resumed, state = find_state(session)
    meter = meter_of(session, is_resumed=resumed is not None)
    runner = _Runner(session, inputs, adapted, recipe, forward, meter)
    found = data_budget(
        session,
        inputs,
        recipe,
        kernel,
        vocab=vocab,
        is_compiled=is_compiled,
        first=state.step,
    )
    settle_budget(session, found)
    session.clock.phase("train")
    return runner.run(resumed, state, is_compiled=is_compiled)


class _Runner:
    """One training: the trainer with its hooks, from a checkpoint or from the start."""

    def __init__(
        self,
        session: Session,
        inputs: Inputs,
        adapted: Adapted,
        recipe: Recipe,
        forward: TrainingForward,
        meter: MemoryMeter,
    ) -> None:
        self.session, self.inputs, self.adapted = session, inputs, adapted
        self.recipe, self.forward, self.meter = recipe, forward, meter
        self._last = time.monotonic()

    def run(self, resumed: Path | None, state: TrainState, *, is_compiled: bool) -> Trained:
        session, recipe = self.session, self.recipe
        resumed_from = state.step if resumed else None  # its folder may be pruned by the end
        gpus = watched_gpus(session)
        with ExitStack() as stack:
            stack.enter_context(self.forward.active(compiled=is_compiled))
            trainer = self._trainer(state)
            watch = stack.enter_context(GpuWatch(list(gpus), session.emit_main))
            if state.step < recipe.total_steps:
                if not session.plan.use_gpu:
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
        return Trained(
            state=state,
            meter=self.meter,
            gpu=watch.summary(gpus),
            resumed_from=resumed_from,
            energy=watch.energy(told_energy(session.told)),
        )

    def _trainer(self, state: TrainState) -> AdapterTrainer:
        session = self.session
        arguments = training_arguments(
            session.settings,
            session.plan,
            precision=session.precision,
            folder=str(session.run.path / "trainer"),
        )
        hooks = Hooks(
            emit=emitter(session),
            save=self._save,
            validate=self._validate,
            wants_stop=session.wants_stop,
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
        if self.session.plan.use_gpu:
            epochs = range(recipe.settings.epochs)
            windows = [window for epoch in epochs for window in recipe.windows(epoch)]
            watched = steps_to_watch(
                windows[first:], lambda window: extent_of([window], recipe).tokens, first=first
            )
        return peaks_of(self.session, self.meter, watched)

    def _is_due(self) -> bool:
        minutes = self.session.settings.save_minutes
        return minutes is not None and time.monotonic() - self._last > 60 * minutes

    def _save(self, state: TrainState, trainer: AdapterTrainer) -> None:
        session = self.session
        self._last = time.monotonic()
        if session.is_main:
            path = ck.save_checkpoint(
                session.run.checkpoints_path,
                step=state.step,
                model_state=adapter_tensors(self.adapted.model),
                optimizer_state=trainer.optimizer.state_dict(),
                state={"train": state.to_dict()},
                extra=lambda folder: self._write_rest(folder, trainer),
                is_best=True,  # the seed's rule: the model is the one after the last step
                keep=session.settings.save_total_limit,
                weights_name=ADAPTER_WEIGHTS,
            )
            session.writer.write("checkpoint", step=state.step, path=str(path), is_best=True)
        session.accelerator.wait_for_everyone()

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
        config.base_model_name_or_path = self.session.settings.model
        config.inference_mode = True
        config.save_pretrained(folder)
        config.base_model_name_or_path, config.inference_mode = before
        self.adapted.base.tokenizer.save_pretrained(folder)

    def _validate(self) -> float | None:
        """Return the mean loss over the supervised tokens of valid; every rank does its share."""
        table, s = self.inputs.tables["valid"], self.recipe.settings
        if not len(table):
            return None
        model, accelerator = self.adapted.model, self.session.accelerator
        order = np.argsort(-table.lengths, kind="stable")
        order = order[self.recipe.rank :: self.recipe.plan.world_size]
        sums = torch.zeros(2, dtype=torch.float64)
        was_training = model.training
        model.eval()
        with torch.no_grad(), accelerator.autocast():
            for start in range(0, len(order), s.per_device_eval_batch_size):
                rows = order[start : start + s.per_device_eval_batch_size]
                batch = make_batch(
                    table,
                    rows,
                    pad_id=self.recipe.pad_id,
                    packed=s.packing,
                    multiple=self.recipe.multiple,
                ).to(accelerator.device)
                loss = model(**self.forward.inputs(batch)).loss
                sums += torch.tensor([float(loss), float(table.supervised[rows].sum())])
        model.train(was_training)
        loss, tokens = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
        return loss / tokens


def find_state(session: Session) -> tuple[Path | None, TrainState]:
    """Return the newest sound checkpoint, and where training stands."""
    folder = session.run.checkpoints_path
    path = ck.agree(session.accelerator, folder, lambda: ck.find_last(folder, session.warn))
    if path is None:
        return None, TrainState()
    values = json.loads((path / "state.json").read_text(encoding="utf-8"))
    session.emit_main("resumed", step=values["train"]["step"], checkpoint=path.name)
    return path, TrainState(**values["train"])


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors under PEFT's names, asking no hub."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, save_embedding_layers=False)
