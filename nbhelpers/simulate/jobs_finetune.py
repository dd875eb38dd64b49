"""Our fine-tuning under simulation: the loop as it trains adapters, scoring and generation.

Model, adapters, micro-batches, loss, attention and loop are the job's own; only weights, data and
the run's folder are left out. The optimizer's state is made first, and gradients of an earlier
micro-step where there is one; then the largest micro-step is like any of a long run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.errors import ConfigError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.finetune_task import AdapterTask, learning, prepare
from nbhelpers.ledger_finetune import choose_compile
from nbhelpers.memory import QLORA_SAFETY_FACTOR, MemoryBudget
from nbhelpers.models import causal_loss
from nbhelpers.models.causal import DTYPES, Adapted, CausalBase, add_adapter
from nbhelpers.models.causal_attention import choose_attention
from nbhelpers.models.causal_text import TextTable
from nbhelpers.models.four_bits import keep_as_stored, quantise, silence_bitsandbytes
from nbhelpers.paths import is_folder
from nbhelpers.shapes import find_shape
from nbhelpers.simulate.jobs_finetune_compiled import CompiledCode
from nbhelpers.simulate.jobs_finetune_generate import generate_longest
from nbhelpers.simulate.jobs_step import OneStep, one_step, simulated_context
from nbhelpers.simulate.opaque_patches import without_modes
from nbhelpers.simulate.state import EVALUATION, current
from nbhelpers.simulate.step import simulate_step

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import FinetuneSettings
    from nbhelpers.shapes_causal import CausalShape


def simulate_finetune(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    gpu: Any,
    lengths: Sequence[int] | None = None,
    steps: int = 2,
    world_size: int = 1,
    expandable_segments: bool = True,
) -> MemoryBudget:
    """Return the simulated memory of one process that trains adapters.

    Args:
        lengths: Tokens of the samples of one optimizer step over all processes, of which the
            largest micro-step is made; None: samples of `seq_len` tokens.
        steps: Optimizer steps; in the place of the first the optimizer's state is made.

    Raises:
        ConfigError: The sizes of the model cannot be read.
    """
    settings = preset.settings
    shape = find_shape(settings)
    if shape is None:
        raise ConfigError(
            f"The sizes of {settings.model} cannot be read, so its memory cannot be simulated.",
            fix="give a folder with config.json, or go online",
        )
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    with ExitStack() as stack:

        def build() -> tuple[Any, ...]:
            # Limit: the buckets of DDP are left out; `simulate_step` counts NCCL's memory.
            alone = replace(plan, world_size=1)
            context = stack.enter_context(
                simulated_context(settings, alone, hardware, precision=precision)
            )
            context = replace(context, plan=plan)
            run = _Finetuning(context, shape, lengths, steps, stack)
            return (run, run.model)

        return simulate_step(
            build,
            lambda run, model: run.step(),
            gpu=gpu,
            steps=1,  # `_Finetuning.step` makes all of them in one go
            world_size=world_size,
            expandable_segments=expandable_segments,
            safety=QLORA_SAFETY_FACTOR if settings.method == "qlora" else None,
        )


class _HostBatches(AdapterTask):
    """The job's task, whose batches are real numbers even while the model is built."""

    has_earlier = False  # gradients of an earlier micro-step, to which each adds its own

    def host_batch(self, rows: np.ndarray) -> Any:
        """Return samples as a micro-batch on the host."""
        with without_modes():
            return super().host_batch(rows)

    def batch(self, rows: np.ndarray) -> Any:
        """Return samples as a micro-batch on the device, beside earlier gradients."""
        if self.has_earlier:
            _give_gradients(learning(self.adapted.model))
        return super().batch(rows)


class _Finetuning:
    """One run of the job, without a run folder."""

    def __init__(
        self,
        context: RunContext,
        shape: CausalShape,
        lengths: Sequence[int] | None,
        steps: int,
        stack: ExitStack,
    ) -> None:
        self.shape, self.stack = shape, stack
        self.steps = max(1, steps - 1)
        self.has_earlier = context.plan.gradient_accumulation_steps > 1
        settings, plan, rows = _shortened(context.settings, context.plan, lengths)
        self.context = replace(context, settings=settings, plan=plan)
        device = torch.device("cuda", 0)
        self.base = base_model(settings, shape, context.precision, device)
        self.kernel = choose_attention(settings.attention, shape.family, device)
        self.model, self.one_step = self.base.model, None
        if settings.method != "base":
            model = add_adapter(self.base, settings).eval()  # as the proof of the attention does
            self.model = model
            self.one_step = self._loop(Adapted(base=self.base, model=model, facts={}), rows)

    def _loop(self, adapted: Adapted, rows: np.ndarray) -> OneStep:
        context = self.context
        s, accelerator = context.settings, context.accelerator
        held_out = np.full(s.per_device_eval_batch_size if s.valid_samples else 0, s.seq_len)
        task = _HostBatches(
            s,
            context.plan,
            {
                "train": rows_of(rows, self.shape.vocab),
                "valid": rows_of(held_out, self.shape.vocab),
            },
            adapted,
            accelerator,
            kernel=self.kernel,
            precision=context.precision,
        )
        task.has_earlier = self.has_earlier
        self._stand_in_for_compiled()
        is_compiled = choose_compile(s, self.kernel)
        self.stack.enter_context(task.forward.active(compiled=is_compiled))
        prepare(adapted, s, accelerator)
        return one_step(context, task, adapted.model, len(rows), groups=learning)

    def _stand_in_for_compiled(self) -> None:
        state = current()
        code = CompiledCode(
            self.context.settings,
            self.context.plan,
            self.shape,
            precision=self.context.precision,
            kernel=self.kernel,
            note=state.note,
        )
        state.compiled_stand_ins = [code.find]
        compiled = dict(causal_loss._compiled)
        causal_loss._compiled.clear()
        self.stack.callback(causal_loss._compiled.update, compiled)
        self.stack.callback(causal_loss._compiled.clear)

    def step(self) -> None:
        """Train, then score held-out rows and generate as the job does."""
        settings, precision = self.context.settings, self.context.precision
        if self.one_step is not None:
            _make_state(self.one_step.trainer.optimizer.optimizer)
            for _ in range(self.steps):
                self.one_step()
        with current().phase(EVALUATION):
            if self.one_step is not None:
                self.one_step.trainer.task.evaluate(self.steps)
            self.stack.close()  # the model computes logits again, as after training
            if settings.evaluate != "none":
                generate_longest(self.model.eval(), self.base, settings, precision)


def _shortened(
    settings: FinetuneSettings, plan: BatchPlan, lengths: Sequence[int] | None
) -> tuple[FinetuneSettings, BatchPlan, np.ndarray]:
    """Return settings and plan of one micro-step, and the lengths of its samples over all ranks."""
    each = plan.world_size * plan.per_device_train_batch_size
    rows = np.full(each, settings.seq_len, dtype=np.int64)
    if lengths is not None:  # `schedule.micro_batches` puts the longest first
        rows = np.sort(np.minimum(np.asarray(lengths, dtype=np.int64), settings.seq_len))[::-1][
            :each
        ]
    changes = {"epochs": 1, "global_batch_size": len(rows)}
    one = replace(plan, gradient_accumulation_steps=1, global_batch_size=len(rows))
    return settings.model_copy(update=changes), one, rows


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer what it keeps from its first step on."""
    _give_gradients(optimizer.param_groups)
    optimizer.step()
    optimizer.zero_grad()


def _give_gradients(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)


def rows_of(lengths: np.ndarray, vocab: int) -> TextTable:
    """Return samples of these lengths, of words without a meaning; all of a sample is learned."""
    ids = [np.arange(length, dtype=np.int64) % vocab for length in lengths]
    zeros = np.zeros(len(ids), dtype=np.int64)
    return TextTable(ids=ids, prompt_lengths=zeros, rows=list(range(len(ids))))


def base_model(
    settings: FinetuneSettings, shape: CausalShape, precision: str, device: torch.device
) -> Any:
    """Return the frozen base as `models.causal.load_base` leaves it, without its numbers.

    Quantised layers go to the device one by one, as those of a folder's weights do.
    """
    from transformers import AutoModelForCausalLM

    silence_bitsandbytes()
    dtype, config = DTYPES[precision], _config(settings, shape)
    if settings.dropout is not None:
        config.attention_dropout = settings.dropout
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    if settings.method == "qlora":
        quantise(model, dtype)
    keep_as_stored(model)
    model.requires_grad_(False)
    model = model.to(device).eval()
    model.config.use_cache = False
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    return CausalBase(model=model, tokenizer=tokenizer, config=model.config)


def _config(settings: FinetuneSettings, shape: CausalShape) -> Any:
    from transformers import AutoConfig, Gemma2Config, LlamaConfig

    if is_folder(settings.model):
        return AutoConfig.from_pretrained(settings.model)
    kind = Gemma2Config if shape.family == "gemma2" else LlamaConfig
    return kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=shape.is_tied,
    )
