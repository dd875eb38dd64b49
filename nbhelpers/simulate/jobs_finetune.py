"""Our fine-tuning under simulation: TRL's trainer as it trains adapters, scoring and generation.

Model, adapters, micro-batches, loss, attention and trainer are the job's own; only weights, data
and the run's folder are left out. Two optimizer steps are made, of at most two micro-steps each:
later ones are like the second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.errors import ConfigError
from nbhelpers.ledger_finetune import choose_compile
from nbhelpers.memory import QLORA_SAFETY_FACTOR, MemoryBudget
from nbhelpers.paths import is_folder
from nbhelpers.shapes import find_shape
from nbhelpers.simulate.state import EVALUATION, current
from nbhelpers.simulate.step import simulate_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.models.causal_text import TextTable
    from nbhelpers.presets import Preset
    from nbhelpers.schema import FinetuneSettings
    from nbhelpers.shapes_causal import CausalShape

STEPS, MOST_MICRO_STEPS = 2, 2
WORDS = ("<pad>", "<eos>", "<bos>", "<unk>")


def simulate_finetune(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    gpu: Any,
    lengths: Sequence[int] | None = None,
    steps: int = STEPS,
    world_size: int = 1,
    expandable_segments: bool = True,
) -> MemoryBudget:
    """Return the simulated memory of one process that trains adapters.

    Args:
        lengths: Tokens of the samples of one optimizer step over all processes; None: as many
            samples of `seq_len` tokens as two micro-steps have.
        steps: Optimizer steps; the first makes the optimizer's state.

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
            run = _Finetuning(settings, plan, shape, precision, lengths, steps, stack)
            return (run, run.adapted.model if run.adapted else run.base.model)

        return simulate_step(
            build,
            lambda run, model: run.step(),
            gpu=gpu,
            steps=1,  # the trainer makes all of its steps in one go
            world_size=world_size,
            expandable_segments=expandable_segments,
            safety=QLORA_SAFETY_FACTOR if settings.method == "qlora" else None,
        )


class _Finetuning:
    """One run of the job, without a session's folder."""

    def __init__(
        self,
        settings: FinetuneSettings,
        plan: BatchPlan,
        shape: CausalShape,
        precision: str,
        lengths: Sequence[int] | None,
        steps: int,
        stack: ExitStack,
    ) -> None:
        from nbhelpers.jobs.finetune import Adapted
        from nbhelpers.models.causal import add_adapter
        from nbhelpers.models.causal_attention import choose_attention

        self.shape, self.precision, self.stack = shape, precision, stack
        self.settings, self.plan, rows = _shortened(settings, plan, lengths, steps)
        self.device = torch.device("cuda", 0)
        stack.enter_context(_as_a_worker())
        self.base = base_model(settings, shape, precision, self.device)
        self.kernel = choose_attention(settings.attention, shape.family, self.device)
        self.table = rows_of(rows, shape.vocab)
        self.adapted = None
        if settings.method != "base":
            model = add_adapter(self.base, settings)
            self.adapted = Adapted(base=self.base, model=model, facts={})
            self.trainer = self._trainer()

    def _trainer(self) -> Any:
        from nbhelpers.jobs.finetune_recipe import Recipe
        from nbhelpers.jobs.finetune_trainer import AdapterTrainer, Hooks, training_arguments
        from nbhelpers.jobs.loop import TrainState
        from nbhelpers.models.causal import DTYPES
        from nbhelpers.models.causal_batches import row_multiple
        from nbhelpers.models.causal_forward import TrainingForward

        s, dtype = self.settings, DTYPES[self.precision]
        loss = "plain" if s.loss == "plain" else "chunked"
        self.forward = TrainingForward(self.base.model, kernel=self.kernel, loss=loss, dtype=dtype)
        self.recipe = Recipe(
            settings=s,
            plan=self.plan,
            table=self.table,
            pad_id=self.base.pad_id,
            multiple=row_multiple(self.kernel, s.packing),
        )
        is_compiled = choose_compile(s, self.kernel)
        self._stand_in_for_compiled()
        self.stack.enter_context(self.forward.active(compiled=is_compiled))
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        hooks = Hooks(
            emit=lambda *args, **fields: None,
            save=lambda *args: None,
            validate=self._validate,
            wants_stop=lambda: False,
            save_is_due=lambda: False,
            peak_bytes=lambda: 0,
        )
        arguments = training_arguments(s, self.plan, precision=self.precision, folder=folder)
        return AdapterTrainer(
            self.adapted.model,
            recipe=self.recipe,
            forward=self.forward,
            hooks=hooks,
            arguments=arguments,
            tokenizer=self.base.tokenizer,
            state=TrainState(),
        )

    def _stand_in_for_compiled(self) -> None:
        from nbhelpers.models import causal_loss
        from nbhelpers.simulate.jobs_finetune_compiled import CompiledCode

        state = current()
        code = CompiledCode(
            self.settings,
            self.plan,
            self.shape,
            precision=self.precision,
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
        if self.adapted is not None:
            self.trainer.train()
        with current().phase(EVALUATION):
            if self.settings.evaluate != "none":
                self._generate()

    def _validate(self) -> float | None:
        """Compute the loss of held-out rows, once, as the job does between its steps."""
        from nbhelpers.jobs.finetune_train import _Runner

        if self.trainer.progress.step < self.recipe.total_steps or not self.settings.valid_samples:
            return None
        rows = np.full(self.settings.per_device_eval_batch_size, self.settings.seq_len)
        runner: Any = SimpleNamespace(
            inputs=SimpleNamespace(tables={"valid": rows_of(rows, self.shape.vocab)}),
            recipe=self.recipe,
            adapted=self.adapted,
            session=SimpleNamespace(accelerator=self.trainer.accelerator),
            forward=self.forward,
        )
        with current().phase(EVALUATION):
            return _Runner._validate(runner)

    def _generate(self) -> None:
        from nbhelpers.simulate.jobs_finetune_generate import generate_longest

        model = self.adapted.model if self.adapted else self.base.model
        self.stack.close()  # the model computes logits again, as after training
        generate_longest(model.eval(), self.base, self.settings, self.precision)


def _shortened(
    settings: FinetuneSettings, plan: BatchPlan, lengths: Sequence[int] | None, steps: int
) -> tuple[FinetuneSettings, BatchPlan, np.ndarray]:
    """Return settings and plan of a short run, and the lengths of its samples."""
    each = plan.world_size * plan.per_device_train_batch_size
    micro = min(plan.gradient_accumulation_steps, MOST_MICRO_STEPS)
    if lengths is None:
        rows = np.full(each * micro, settings.seq_len, dtype=np.int64)
    else:
        rows = np.minimum(np.asarray(lengths, dtype=np.int64), settings.seq_len)
        micro = max(1, -(-len(rows) // each))
    settings = settings.model_copy(
        update={"epochs": steps, "global_batch_size": len(rows), "eval_steps": None}
    )
    plan = replace(plan, gradient_accumulation_steps=micro, global_batch_size=len(rows))
    return settings, plan, rows


@contextmanager
def _as_a_worker() -> Iterator[None]:
    """Set torch and Accelerate up as `jobs.session` does on a GPU, and undo it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    shared = [kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)]
    before = [dict(values) for values in shared]
    cudnn, products = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    for values in shared:
        values.clear()
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        torch.set_float32_matmul_precision(products)
        for values, old in zip(shared, before, strict=True):
            values.clear()
            values.update(old)


def rows_of(lengths: np.ndarray, vocab: int) -> TextTable:
    """Return samples of these lengths, of words without a meaning; all of a sample is learned."""
    from nbhelpers.models.causal_text import TextTable

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

    from nbhelpers.models.causal import DTYPES, CausalBase
    from nbhelpers.models.four_bits import keep_as_stored, quantise, silence_bitsandbytes

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
    return CausalBase(model=model, tokenizer=_tokenizer(), config=model.config)


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


def _tokenizer() -> Any:
    """A tokenizer of four words: the trainer asks for one, and reads only its marks."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(WORDS)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
    )
