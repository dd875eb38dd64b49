"""Training of adapters: proof of the attention, resume, checkpoints, measured memory and energy."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.finetune_recipe import Recipe
from nbhelpers.jobs.finetune_trainer import AdapterTrainer, Hooks, training_arguments
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter, told_energy
from nbhelpers.jobs.parity import prove
from nbhelpers.jobs.track import emitter
from nbhelpers.jobs.training import watched_gpus
from nbhelpers.ledger_finetune import COMPILE_PAYS_TOKENS, CausalExtent, finetune_ledger
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.causal import DTYPES
from nbhelpers.models.causal_attention import has_triton
from nbhelpers.models.causal_batches import make_batch, padded_width, row_multiple
from nbhelpers.models.causal_forward import TrainingForward
from nbhelpers.models.causal_text import TextTable
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.jobs.finetune import Adapted, Inputs
    from nbhelpers.jobs.session import Session

ADAPTER_WEIGHTS = "adapter_model.safetensors"
COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all
ROOM_SHARE = 0.8  # of the card, for a short run without compiling


@dataclass(slots=True, kw_only=True)
class Trained:
    """What training leaves behind for the result."""

    state: TrainState
    meter: MemoryMeter
    gpu: list[dict[str, Any]]
    resumed_from: int | None
    total_steps: int
    is_compiled: bool
    parity: dict[str, Any]
    energy: dict[str, Any] | None = None
    supervised_tokens: int = 0
    notes: list[str] = field(default_factory=list)


def train_adapter(session: Session, inputs: Inputs, adapted: Adapted) -> Trained:
    """Train from the newest checkpoint, or from the start.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: Gradients that are not finite.
        ConfigError: Too little disk.
    """
    s, accelerator = session.settings, session.accelerator
    session.check_disk(adapted.facts["trainable_parameters"])
    dtype = DTYPES[session.precision]
    kernel, packed, parity = _proven_kernel(session, inputs, adapted, dtype)
    s = s.model_copy(update={"packing": packed})
    forward = TrainingForward(
        adapted.bare, kernel=kernel, loss=adapted.base.facts["loss"], dtype=dtype
    )
    recipe = Recipe(
        settings=s,
        plan=session.plan,
        table=inputs.tables["train"],
        pad_id=adapted.base.pad_id,
        multiple=row_multiple(kernel, s.packing),
        rank=session.writer.rank,
    )
    vocab = int(adapted.base.config.vocab_size)
    is_compiled = _compiles(session, inputs, recipe, kernel, vocab)
    adapted.base.facts |= {"attention": kernel, "compiled": is_compiled, "parity": parity}
    meter = MemoryMeter(accelerator.device)
    runner = _Runner(session, inputs, adapted, recipe, forward, meter)
    resumed, state = runner.find()
    session.data_budget = data_budget(
        session,
        inputs,
        recipe,
        kernel,
        vocab=vocab,
        is_compiled=is_compiled,
        first=state.step,
    )
    if session.data_budget is not None:
        session.emit_main("memory", predicted_bytes=session.data_budget.allocated_bytes)
    session.clock.phase("train")
    trained = runner.run(resumed, state, is_compiled=is_compiled)
    trained.parity = parity
    return trained


def _proven_kernel(
    session: Session, inputs: Inputs, adapted: Adapted, dtype: torch.dtype
) -> tuple[str, bool, dict[str, Any]]:
    """Return the attention that may be used, whether samples are packed, and what was measured.

    Where another kernel fails, eager is used, and samples are padded: eager attention computes the
    whole square of a packed row.
    """
    kernel = adapted.base.facts["attention"]
    table, packed = inputs.tables["train"], session.settings.packing
    found = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    if not found["passed"] and kernel != "eager":
        session.warn(
            f"attention={kernel} does not agree with eager attention on this machine "
            f"(relative error {found['relative_error']:.2g}): eager is used, and samples are padded "
            "instead of packed; the samples of each update stay the same."
        )
        kernel, packed = "eager", False
        found = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    if not found["passed"]:
        error = found["relative_error"]
        session.warn(
            f"Samples in one batch do not agree with the same samples one by one (relative error "
            f"{error:.2g}): set packing=false."
            if math.isfinite(error)
            else f"The base's hidden states are not finite in {session.precision}."
        )
    session.emit_main("parity", **found)
    return kernel, packed, found


def _compiles(session: Session, inputs: Inputs, recipe: Recipe, kernel: str, vocab: int) -> bool:
    """Say whether blocks are compiled: long runs gain time, and large micro-batches need the room.

    The budget before the run assumes compiled blocks wherever there is flex attention.
    """
    s = recipe.settings
    if s.compile_layers != "auto":
        return s.compile_layers == "on"
    if kernel != "flex" or not session.plan.use_gpu or not has_triton():
        return False
    if int(recipe.table.lengths.sum()) * s.epochs >= COMPILE_PAYS_TOKENS:
        return True
    plain = data_budget(session, inputs, recipe, kernel, vocab=vocab, is_compiled=False)
    total = torch.cuda.get_device_properties(session.accelerator.device).total_memory
    return plain is None or plain.total_bytes > ROOM_SHARE * total


def data_budget(
    session: Session,
    inputs: Inputs,
    recipe: Recipe,
    kernel: str,
    *,
    vocab: int,
    is_compiled: bool,
    first: int = 0,
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch, now that the lengths are known.

    Args:
        vocab: Words of the loaded model; before the run only a nominal number is known of a model
            whose tokenizer is trained on the data.
        first: The optimizer step that this process begins with.
    """
    shape = find_shape(session.settings)
    if shape is None:
        return None
    largest = largest_extent(recipe, first)
    lines = finetune_ledger(
        recipe.settings,
        session.plan,
        replace(shape, vocab=vocab),
        precision=session.precision,
        kernel=kernel,
        is_compiled=is_compiled,
        extent=largest,
        scoring=_scoring_extent(recipe, inputs.tables["valid"]),
        prompts=_prompt_extent(session, inputs),
    )
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())


def _scoring_extent(recipe: Recipe, table: TextTable) -> CausalExtent | None:
    """Return the largest batch of held-out rows whose loss is computed."""
    s = recipe.settings
    if not len(table):
        return None
    longest = -np.sort(-table.lengths)[: s.per_device_eval_batch_size]
    count, width = (1, int(longest.sum())) if s.packing else (len(longest), int(longest[0]))
    width = padded_width(width, recipe.multiple)
    return CausalExtent(
        tokens=count * width, squares=count * width * width, supervised=count * width
    )


def _prompt_extent(session: Session, inputs: Inputs) -> CausalExtent | None:
    """Return the largest batch of prompts; the problems of pass@1 count as long as `seq_len`."""
    s, table = session.settings, inputs.tables["test"]
    if not len(table) or inputs.tasks:
        return None
    count, width = min(len(table), s.generation_batch_size), int(table.prompt_lengths.max())
    return CausalExtent(tokens=count * width, squares=count * width**2, supervised=0)


def largest_extent(recipe: Recipe, first: int = 0) -> CausalExtent:
    """Return the size of the largest micro-batch of all epochs.

    On a CPU, of the steps whose bytes are counted: a few from the `first` of this process on.
    """
    s, lengths, learned = recipe.settings, recipe.table.lengths, recipe.table.supervised
    largest = CausalExtent(tokens=0, squares=0, supervised=0)
    windows = [window for epoch in range(s.epochs) for window in recipe.windows(epoch)]
    if not recipe.plan.use_gpu:
        windows = windows[first : first + COUNTED_STEPS] or windows[-1:]
    for window in windows:
        for rows in recipe.micro(window):
            if not len(rows):
                continue
            if s.packing:
                width, count = int(lengths[rows].sum()), 1
            else:
                width = s.seq_len if s.padding == "fixed" else int(lengths[rows].max())
                count = len(rows)
            width = padded_width(width, recipe.multiple)
            extent = CausalExtent(
                tokens=count * width,
                squares=count * width * width,
                supervised=int(learned[rows].sum()),
            )
            largest = max(largest, extent, key=lambda x: (x.tokens, x.squares))
    return largest


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
            total_steps=recipe.total_steps,
            is_compiled=is_compiled,
            parity={},
            energy=watch.energy(told_energy(session.told)),
            supervised_tokens=int(recipe.table.supervised.sum()),
        )

    def find(self) -> tuple[Path | None, TrainState]:
        """Return the newest sound checkpoint, and where training stands."""
        session, folder = self.session, self.session.run.checkpoints_path
        path = ck.agree(session.accelerator, folder, lambda: ck.find_last(folder, session.warn))
        if path is None:
            return None, TrainState()
        values = json.loads((path / "state.json").read_text(encoding="utf-8"))
        session.emit_main("resumed", step=values["train"]["step"], checkpoint=path.name)
        return path, TrainState(**values["train"])

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


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors under PEFT's names, asking no hub."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, save_embedding_layers=False)
