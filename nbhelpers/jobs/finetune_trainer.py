"""TRL's trainer with our batches, loss, order, guards and checkpoints.

What an optimizer step sees depends on (seed, epoch, global batch) alone: its samples are the same,
packed or padded, on one GPU or several. Each micro-step seeds its own randomness, so a resumed run
repeats an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from nbhelpers.batching import BatchPlan
from nbhelpers.errors import NonFinite
from nbhelpers.jobs.finetune_recipe import EpochOrder, Recipe, Rows
from nbhelpers.jobs.loop import TrainState, seed_everything
from nbhelpers.jobs.measure import MemoryMeter
from nbhelpers.jobs.measure_phases import PhasePeaks
from nbhelpers.models.causal_attention import send
from nbhelpers.models.causal_batches import MicroBatch
from nbhelpers.models.causal_forward import TrainingForward

if TYPE_CHECKING:
    from nbhelpers.schema import FinetuneSettings

FIRST_SCALE = 2.0**10  # of fp16's loss: at PyTorch's 2^16 the first steps of Gemma are all skipped


@dataclass(slots=True, kw_only=True)
class Hooks:
    """How the trainer speaks to the outside."""

    emit: Callable[..., None]
    save: Callable[..., None]  # (state, trainer)
    validate: Callable[[], float | None]  # the mean loss on valid
    wants_stop: Callable[[], bool]
    save_is_due: Callable[[], bool]
    peak_bytes: Callable[[], int]
    memory: PhasePeaks = field(default_factory=PhasePeaks)  # the peaks of the phases of a step


@dataclass(slots=True)
class _Window:
    """Sums over the micro-steps of the optimizer step that is being made."""

    loss: list[torch.Tensor] = field(default_factory=list)
    useful: int = 0
    padded: int = 0
    samples: int = 0
    micro: int = 0
    found: torch.Tensor | None = None  # the norm, still on its device
    norm: float = 0.0
    mean: float = 0.0  # of the loss
    stop: bool = False
    due: bool = False
    rate: float = 0.0
    started: float = 0.0


class AdapterTrainer(SFTTrainer):
    """TRL's trainer on micro-batches that are made here."""

    def __init__(
        self,
        model: Any,
        *,
        recipe: Recipe,
        forward: TrainingForward,
        hooks: Hooks,
        arguments: SFTConfig,
        tokenizer: Any,
        state: TrainState,
    ) -> None:
        """Wrap a PEFT model; its parameters lie on their device already."""
        self.recipe, self.forward_of, self.hooks = recipe, forward, hooks
        self.progress, self.window = state, _Window()
        self.stopped = False
        self.counted: tuple[Any, int] | None = None  # a context for the steps before the second
        self.counting = ExitStack()  # of the step that is being counted
        trained = [p for p in model.parameters() if p.requires_grad]
        s = recipe.settings
        optimizer = torch.optim.AdamW(
            trained,
            lr=s.learning_rate,
            weight_decay=s.weight_decay,
            eps=s.adam_epsilon,
            fused=recipe.plan.use_gpu,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: recipe.rate(step) / s.learning_rate
        )
        exact = [parameter.data for parameter in trained]
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=Rows(recipe),
            data_collator=lambda items: items[0],
            processing_class=tokenizer,
            optimizers=(optimizer, schedule),
            callbacks=[_Watch(self)],
        )
        for parameter, values in zip(trained, exact, strict=True):
            parameter.data = values  # TRL rounds QLoRA's to bf16, which a scaler cannot work on
        self.model_accepts_loss_kwargs = True
        self._note_norms(trained)
        if self.accelerator.scaler is not None:
            self.accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE)

    def _note_norms(self, trained: list[torch.nn.Parameter]) -> None:
        """Keep the norm that clipping returns: asking again would unscale fp16 gradients twice.

        Frozen parameters have no gradient, so they are not gone through.
        """
        clip = self.accelerator.clip_grad_norm_

        def noting(_: Any, *args: Any, **options: Any) -> Any:
            self.window.found = clip(trained, *args, **options)
            return self.window.found

        self.accelerator.clip_grad_norm_ = noting

    def count_live_bytes(self, meter: MemoryMeter, steps: int) -> None:
        """Count the bytes of live tensors in the first steps of this process (on a CPU)."""
        self.counted = (meter.watch_steps(self.model), self.progress.step + steps)

    def load_adapter(self, folder: Path) -> None:
        """Take the adapter's tensors of a checkpoint."""
        self._load_from_checkpoint(str(folder))

    def get_train_dataloader(self) -> DataLoader:  # type: ignore[type-arg]
        """Return this rank's micro-batches; they are split over ranks already."""
        order = EpochOrder(
            self.recipe, lambda: self.state.global_step // self.recipe.windows_per_epoch
        )
        return DataLoader(
            self.train_dataset,
            batch_sampler=order,  # type: ignore[arg-type]
            collate_fn=lambda items: items[0],
        )

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Return the micro-steps of an optimizer step; one process counts tokens on the host."""
        if self.accelerator.num_processes == 1:
            device = torch.device("cpu")
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the trainer would go through all modules to count what nobody reads."""
        return 0

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return this micro-step's share of the mean over all supervised tokens of the step."""
        batch: MicroBatch = inputs["batch"].to(self.args.device)
        total = model(**self.forward_of.inputs(batch)).loss
        # DDP averages over ranks: times their number, over all tokens, is the mean.
        return total * (self.accelerator.num_processes / num_items_in_batch)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Seed the micro-step, do it, and count what it saw.

        In the place of the trainer's own, which sets every module to training each time.
        """
        step, seen, batch = self.state.global_step, self.window, inputs["batch"]
        epoch, window = divmod(step, self.recipe.windows_per_epoch)
        seed_everything(self.recipe.settings.seed, epoch, window, seen.micro, self.recipe.rank)
        self.hooks.memory.mark("data")
        if not model.training:
            model.train()
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.hooks.memory.mark("forward")
        self.accelerator.backward(loss)
        self.hooks.memory.mark("backward")
        loss = loss.detach()
        seen.loss.append(loss)
        seen.micro += 1
        seen.samples += batch.samples
        seen.useful += batch.useful_tokens
        seen.padded += batch.padded_tokens
        return loss

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `_Watch` tells every step as an event."""


class _Watch(TrainerCallback):
    """Clips, guards, counts, tells, evaluates, saves and stops, around the optimizer steps."""

    def __init__(self, trainer: AdapterTrainer) -> None:
        self.trainer, self.since = trainer, 0.0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note when the first batches of an epoch are made: a step's time begins with that."""
        self.since = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have gradients dropped of what is trained alone, not looked for in all modules."""
        optimizer = self.trainer.optimizer
        self.trainer.model_wrapped.zero_grad = optimizer.optimizer.zero_grad

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give the model its own way back."""
        del self.trainer.model_wrapped.zero_grad

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the sums of an optimizer step."""
        trainer = self.trainer
        trainer.window = _Window(started=self.since)
        if trainer.counted and state.global_step < trainer.counted[1]:
            trainer.counting.enter_context(trainer.counted[0])
        trainer.hooks.memory.start(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the norm that the gradients had before they were clipped."""
        trainer = self.trainer
        _agree(trainer)
        # What is in force: a step that fp16's scaler skips holds the schedule back.
        trainer.window.rate = trainer.optimizer.param_groups[0]["lr"]
        _check_finite(trainer, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Count the step; evaluate, save and stop where that is due."""
        trainer, done = self.trainer, self.trainer.progress
        trainer.hooks.memory.mark("optimizer")
        trainer.counting.close()
        window, stop = trainer.window, trainer.window.stop
        done.useful_tokens += window.useful
        done.padded_tokens += window.padded
        done.examples += window.samples
        done.step, done.train_s = state.global_step, done.train_s + _since(trainer.window)
        done.epoch, done.window = divmod(done.step, trainer.recipe.windows_per_epoch)
        _tell(trainer)
        _after(trainer)
        if stop:
            trainer.stopped = done.step < trainer.recipe.total_steps
            control.should_training_stop = True
        self.since = time.perf_counter()  # evaluating and saving are no part of the next step
        return control


def _since(window: _Window) -> float:
    return time.perf_counter() - window.started


def _check_finite(trainer: AdapterTrainer, step: int) -> None:
    done, norm = trainer.progress, trainer.window.norm
    if math.isfinite(norm):
        done.skipped_in_a_row = 0
        return
    done.skipped_steps += 1
    done.skipped_in_a_row += 1
    s, fp16 = trainer.recipe.settings, trainer.accelerator.mixed_precision == "fp16"
    if fp16 and done.skipped_in_a_row <= s.max_skipped_steps:
        return  # the gradient scaler skips this update and lowers its scale
    again = f" for {done.skipped_in_a_row} steps in a row" if fp16 else ""
    raise NonFinite(
        f"The gradient of optimizer step {step + 1} is not finite{again} (norm {norm}); "
        f"{step - done.skipped_steps + 1} updates were applied before.",
        fix="lower learning_rate or raise warmup_ratio; in fp16 (a T4 has no bf16) Gemma may "
        "overflow: try precision=fp32 with a shorter seq_len, or a GPU with bf16",
    )


def _agree(trainer: AdapterTrainer) -> None:
    """Read loss and norm, and sum loss, tokens and wishes over ranks.

    This is the one host-device sync of a step: the update runs while the next batch is made.
    """
    window, hooks, accelerator = trainer.window, trainer.hooks, trainer.accelerator
    due = accelerator.is_main_process and hooks.save_is_due()
    told = [window.useful, window.padded, window.samples, hooks.wants_stop(), due]
    loss, norm = torch.stack(window.loss).sum(0, keepdim=True), window.found.reshape(1)
    facts = torch.cat([loss.double(), norm.double()])
    if accelerator.num_processes > 1:  # the norm is the same on each
        rest = send(torch.tensor(told, dtype=torch.float64), facts.device)
        facts = accelerator.reduce(torch.cat([facts, rest]), "sum")
    loss, norm, *summed = facts.tolist()
    window.mean = loss / accelerator.num_processes
    window.norm = norm / accelerator.num_processes
    window.useful, window.padded, window.samples = (int(count) for count in (summed or told)[:3])
    window.stop, window.due = (wish > 0 for wish in (summed or told)[3:])


def _tell(trainer: AdapterTrainer) -> None:
    done, recipe, loss = trainer.progress, trainer.recipe, trainer.window.mean
    every, total = recipe.settings.logging_steps, recipe.total_steps
    if done.step % every and done.step not in (1, total):
        return
    rate = trainer.window.rate
    line = {"step": done.step, "loss": loss, "learning_rate": rate}
    done.history.append(line | {"grad_norm": trainer.window.norm})
    trainer.hooks.emit(
        "step",
        step=done.step,
        total_steps=total,
        epoch=done.step / recipe.windows_per_epoch,
        loss=loss,
        learning_rate=rate,
        grad_norm=trainer.window.norm,
        examples=done.examples,
        useful_tokens=done.useful_tokens,
        padded_tokens=done.padded_tokens,
        elapsed_s=done.train_s,
        useful_tokens_per_s=done.useful_tokens / max(done.train_s, 1e-9),
        memory_bytes=trainer.hooks.peak_bytes(),
        skipped_steps=done.skipped_steps,
    )


def _after(trainer: AdapterTrainer) -> None:
    done, s, window = trainer.progress, trainer.recipe.settings, trainer.window
    if trainer.recipe.only is not None:  # a probe evaluates and saves nothing
        return
    is_last = done.step == trainer.recipe.total_steps
    by_step = s.eval_steps and done.step % s.eval_steps == 0
    by_epoch = not s.eval_steps and done.window == 0
    loss = None
    if by_step or by_epoch or is_last:
        with trainer.hooks.memory.evaluation():
            loss = trainer.hooks.validate()
    if loss is not None:
        done.evals.append({"step": done.step, "loss": loss})
        trainer.hooks.emit("eval", step=done.step, split="valid", scores={"loss": loss})
    if window.due or window.stop or is_last or (s.save_steps and done.step % s.save_steps == 0):
        trainer.hooks.save(done, trainer)


def training_arguments(
    settings: FinetuneSettings,
    plan: BatchPlan,
    *,
    precision: str,
    folder: str,
    max_steps: int = -1,
) -> SFTConfig:
    """Return TRL's arguments for what the trainer still decides; the rest is done here.

    Args:
        max_steps: Optimizer steps after which it ends; -1: all epochs.
    """
    return SFTConfig(
        output_dir=folder,
        num_train_epochs=settings.epochs,
        max_steps=max_steps,
        per_device_train_batch_size=plan.per_device_train_batch_size,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
        max_length=settings.seq_len,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not plan.use_gpu,
        seed=settings.seed,
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
