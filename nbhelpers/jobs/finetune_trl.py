"""Fine-tuning by TRL: `SFTTrainer` trains the adapters, for every causal family of transformers.

The trainer is used as its documentation has it: prompts with completions, a loss on the completions
alone, its packing, its order of rows, its checkpoints and its resume. It is handed token ids with
their `completion_mask`, as its own preparation makes them of such rows, so that both engines learn
the same tokens. What it does not promise stands in `plan.TRL_NOTE`. A callback tells the run's
events, stops it, and makes each checkpoint one of ours.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from nbhelpers.errors import NonFinite, Stopped
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.finetune_task import Inputs, save_files
from nbhelpers.jobs.loop import TrainState, not_finite
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter, told_energy
from nbhelpers.jobs.measure_phases import PhaseTimer, meter_of, peaks_of
from nbhelpers.jobs.models.causal import Adapted, adapter_tensors, adapters_in_fp32
from nbhelpers.jobs.models.causal_batches import TextTable
from nbhelpers.jobs.models.causal_forward import generating
from nbhelpers.jobs.probe import ProbedSteps, probed_steps
from nbhelpers.jobs.schedule import epoch_windows
from nbhelpers.jobs.training import COUNTED_STEPS, Training, watched_gpus

SCHEDULES = {"constant": "constant_with_warmup"}  # under transformers' name
WATCHED_STEPS = 20  # whose phases are measured on a GPU: which is the heaviest is not known before


def sft_config(context: RunContext, folder: Path, **changes: Any) -> SFTConfig:
    """Return the settings of a run as TRL has them; what is told, scored and saved `_Watch` asks.

    Args:
        folder: Where the trainer writes.
        changes: Further arguments of `SFTConfig`.
    """
    s, plan, precision = context.settings, context.plan, context.precision
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": s.epochs,
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "per_device_eval_batch_size": s.per_device_eval_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "learning_rate": s.learning_rate,
        "lr_scheduler_type": SCHEDULES.get(s.lr_schedule, s.lr_schedule),
        "warmup_steps": s.warmup_ratio if s.warmup_steps is None else s.warmup_steps,
        "weight_decay": s.weight_decay,
        "adam_epsilon": s.adam_epsilon,
        "max_grad_norm": s.max_grad_norm,
        "optim": "adamw_torch_fused" if plan.use_gpu else "adamw_torch",
        "seed": s.seed,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not plan.use_gpu,
        "gradient_checkpointing": s.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "completion_only_loss": True,
        "max_length": s.seq_len,
        "packing": s.packing,
        "eval_packing": False,
        "pad_to_multiple_of": s.seq_len if s.padding == "fixed" else None,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": plan.use_gpu,
        "ddp_find_unused_parameters": False,
        # The processes have found each other; a second start would forget it.
        "accelerator_config": {"use_configured_state": True},
    }
    return SFTConfig(**values | changes)


def make_trainer(
    context: RunContext,
    tables: dict[str, TextTable],
    adapted: Adapted,
    folder: Path,
    *,
    callbacks: Sequence[TrainerCallback] = (),
    **changes: Any,
) -> SFTTrainer:
    """Return TRL's trainer of a model that has its adapters.

    Args:
        tables: Of `train`, and of `valid` where it has rows.
        folder: Where the trainer writes.
        changes: Further arguments of `SFTConfig`.
    """
    valid = tables.get("valid")
    datasets.disable_progress_bars()
    trainer = SFTTrainer(
        model=adapted.model,
        args=sft_config(context, folder, **changes),
        train_dataset=_dataset(tables["train"]),
        eval_dataset=_dataset(valid) if valid is not None and len(valid) else None,
        processing_class=adapted.base.tokenizer,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    if context.precision != "bf16":  # TRL gives QLoRA's adapters bf16, which fp16 cannot scale
        adapters_in_fp32(adapted.model)
    return trainer


def _dataset(table: TextTable) -> datasets.Dataset:
    """Return samples as TRL's preparation leaves prompts with completions."""
    masks = [
        [0] * int(start) + [1] * (len(ids) - int(start))
        for ids, start in zip(table.ids, table.prompt_lengths, strict=True)
    ]
    rows = [ids.tolist() for ids in table.ids]
    return datasets.Dataset.from_dict({"input_ids": rows, "completion_mask": masks})


def train_trl(context: RunContext, inputs: Inputs, adapted: Adapted) -> Training:
    """Train the adapters by TRL to the last step.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: A loss or gradients that are not finite.
        ConfigError: Too little disk.
    """
    device, kernel = context.accelerator.device, adapted.base.facts["attention"]
    load_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    context.check_disk(sum(x.numel() for x in adapter_tensors(adapted.model).values()))
    tables, probed, changes = inputs.tables, None, {}
    if context.is_probe:
        tables, probed = _probed(context, inputs)
        changes = {"max_steps": len(probed.batches), "train_sampling_strategy": "sequential"}
    folder = context.run.checkpoints_path
    path = ck.agree(context.accelerator, folder, lambda: ck.find_last(folder, context.warn))
    state = TrainState()
    if path is not None:
        values = json.loads((path / "state.json").read_text(encoding="utf-8"))
        state = TrainState.from_dict(values["train"])
        context.emit("resumed", step=state.step, checkpoint=path.name)
    resumed_from = state.step if path is not None else None
    meter = meter_of(context, is_resumed=path is not None, load_bytes=load_bytes)
    watch = _Watch(context, adapted, state, meter, samples=len(tables["train"]), probed=probed)
    trainer = make_trainer(context, tables, adapted, folder, callbacks=[watch], **changes)
    watch.can_evaluate = trainer.eval_dataset is not None
    hook = adapted.model.register_forward_hook(watch.forward_ended, with_kwargs=True)
    context.clock.phase("train")
    gpus = watched_gpus(context)
    with GpuWatch(list(gpus), context.emit) as gpu_watch, generating(adapted.bare, kernel):
        trainer.train(resume_from_checkpoint=str(path) if path is not None else None)
    hook.remove()
    trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    if watch.is_stopped:
        text = f"Stopped on request after optimizer step {state.step} of {watch.total_steps}."
        raise Stopped(text, fix="run the same launch again: it goes on from the checkpoint")
    meter.begin_scoring()
    return Training(
        state=state,
        meter=meter,
        gpu=gpu_watch.summary(gpus),
        resumed_from=resumed_from,
        budget=context.forecast.budget,
        energy=gpu_watch.energy(told_energy(context.earlier)),
        probed=probed,
        model={"attention": kernel, "compiled": False},
    )


def _probed(context: RunContext, inputs: Inputs) -> tuple[dict[str, TextTable], ProbedSteps]:
    """Return the rows of a probe's steps in their order, and the steps."""
    s, table = context.settings, inputs.tables["train"]
    usual = epoch_windows(len(table), s.global_batch_size, seed=s.seed, epoch=0)
    probed = probed_steps(context, table.lengths, usual, examples=len(table))
    rows = np.concatenate(probed.batches)
    ids, starts = [table.ids[row] for row in rows], table.prompt_lengths[rows]
    return {"train": TextTable(ids=ids, prompt_lengths=starts, rows=rows.tolist())}, probed


class _Watch(TrainerCallback):
    """Tells, measures, evaluates, saves and stops where our loop does, around TRL's steps."""

    def __init__(
        self,
        context: RunContext,
        adapted: Adapted,
        state: TrainState,
        meter: MemoryMeter,
        *,
        samples: int,
        probed: ProbedSteps | None,
    ) -> None:
        self.context, self.adapted, self.state, self.meter = context, adapted, state, meter
        self.samples, self.probed, self.emit = samples, probed, context.emit
        self.can_evaluate = self.is_stopped = False
        self.total_steps = 0
        on_cpu = not context.plan.use_gpu
        self.counted = range(state.step, state.step + (COUNTED_STEPS if on_cpu else WATCHED_STEPS))
        self.mode = meter.watch_steps(adapted.model) or nullcontext()
        memory = peaks_of(context, meter, self.counted, context.forecast.budget)
        self.timer = PhaseTimer(context.accelerator.device, memory=memory)
        self.step, self.evaluation = ExitStack(), ExitStack()
        self.earlier_tokens, self.padded = state.useful_tokens, 0
        self.since = self.saved = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to time."""
        self.total_steps, self.since = state.max_steps, time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin an optimizer step."""
        self.timer.start(state.global_step)
        if state.global_step in self.counted:
            self.step.enter_context(self.mode)

    def forward_ended(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Count what a forward pass of the training computed."""
        if model.training:
            self.padded += kwargs["input_ids"].numel()
            self.timer.mark("forward")

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A micro-step ends with its gradients."""
        self.timer.mark("backward")

    on_pre_optimizer_step = on_substep_end

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the step, and ask for what is due: it is done after the loss has been told."""
        self.timer.mark("optimizer")
        self.step.close()
        ours, s, context = self.state, self.context.settings, self.context
        ours.step, done = state.global_step, state.global_step == state.max_steps
        ours.epoch, ours.window = divmod(ours.step, max(1, state.max_steps // s.epochs))
        ours.examples = round(state.epoch * self.samples)
        minutes = s.save_minutes
        due = minutes is not None and time.monotonic() - self.saved > 60 * minutes
        own = [self.padded, context.wants_stop(), due and context.is_main]
        counts = torch.tensor(own, dtype=torch.float64, device=context.accelerator.device)
        padded, stop, due = context.accelerator.reduce(counts, "sum").tolist()  # waits for the GPU
        ours.train_s += time.monotonic() - self.since
        ours.phases = self.timer.add_to(ours.phases)
        ours.padded_tokens, self.padded = ours.padded_tokens + int(padded), 0
        self.is_stopped = stop > 0 and not done
        control.should_training_stop |= self.is_stopped
        self.since = time.monotonic()
        if self.probed is not None:
            return
        at_eval = ours.step % s.eval_steps == 0 if s.eval_steps else ours.window == 0
        control.should_evaluate = self.can_evaluate and (at_eval or done)
        if control.should_evaluate:
            self.evaluation.enter_context(self.timer.memory.evaluation())
        by_count = bool(s.save_steps) and ours.step % s.save_steps == 0
        control.should_save = bool(by_count or due or stop or done)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Tell of a step, once its loss is known to be finite; nothing is saved before.

        Raises:
            NonFinite: It is not, nor is the norm of the gradients.
        """
        ours, s = self.state, self.context.settings
        if "loss" not in logs or "grad_norm" not in logs:  # of an evaluation, or of the whole
            return
        loss, norm = float(logs["loss"]), float(logs["grad_norm"])
        most = s.max_skipped_steps if self.context.precision == "fp16" else 0
        if problem := not_finite(ours, loss, norm, step=str(ours.step), most=most):
            fix = (
                "lower learning_rate or raise warmup_ratio; with precision fp16 try bf16 or fp32. "
            )
            fix += "The last checkpoint is from before this step; engine=nbhelpers names the rows"
            raise NonFinite(problem, fix=fix)
        ours.useful_tokens = self.earlier_tokens + int(logs["num_tokens"])
        if ours.step % s.logging_steps and ours.step not in (1, self.total_steps):
            return
        line = {"loss": loss, "learning_rate": logs["learning_rate"], "grad_norm": norm}
        ours.history.append({"step": ours.step} | line)
        self.emit(
            "step",
            total_steps=self.total_steps,
            epoch=state.epoch,
            memory_bytes=self.meter.peak_bytes(),
            **ours.counts() | line,
        )

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        """Tell the validation loss, which TRL averages over batches."""
        self.evaluation.close()
        ours, scores = self.state, {"loss": float(metrics["eval_loss"])}
        ours.phases["evaluate"] = ours.phases.get("evaluate", 0.0) + metrics["eval_runtime"]
        ours.evals.append({"step": ours.step} | scores)
        self.emit("eval", step=ours.step, split="valid", scores=scores)
        self.since = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the trainer's checkpoint one of ours: sound to the byte, or not there."""
        context, ours = self.context, self.state
        context.accelerator.wait_for_everyone()  # each rank has written its random numbers
        if context.is_main:
            folder = context.run.checkpoints_path
            part = folder / f"checkpoint-{ours.step}"
            values = {"train": ours.to_dict(), "scaler": None, "is_best": True}
            (part / "state.json").write_text(json.dumps(values, default=float), encoding="utf-8")
            save_files(part, self.adapted, context.settings.model)
            (folder / "README.md").unlink(missing_ok=True)  # a card of the folder of checkpoints
            keep = context.settings.save_total_limit
            path = ck.adopt(folder, part, step=ours.step, is_best=True, keep=keep)
            for left in folder.glob("checkpoint-*"):  # a run was killed while it saved
                shutil.rmtree(left, ignore_errors=True)
            context.emit_rank("checkpoint", step=ours.step, path=str(path), is_best=True)
        context.accelerator.wait_for_everyone()
        self.since = self.saved = time.monotonic()
