"""Our fine-tuning under simulation: TRL's trainer as it trains adapters, scoring and generation.

Model, adapters, micro-batches, loss, attention and trainer are the job's own; only weights, data
and the run's folder are left out. The optimizer's state is made first, and gradients of an earlier
micro-step where there is one; then the largest micro-step is like any of a long run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.errors import ConfigError
from nbhelpers.ledger_finetune import choose_compile
from nbhelpers.memory import QLORA_SAFETY_FACTOR, MemoryBudget
from nbhelpers.paths import is_folder
from nbhelpers.shapes import find_shape
from nbhelpers.simulate.opaque_patches import without_modes
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

WORDS = ("<pad>", "<eos>", "<bos>", "<unk>")


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
    """One run of the job, without a run's folder."""

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
        from nbhelpers.jobs.finetune_inputs import Adapted
        from nbhelpers.models.causal import add_adapter
        from nbhelpers.models.causal_attention import choose_attention

        self.shape, self.precision, self.stack = shape, precision, stack
        self.settings, self.plan, rows = _shortened(settings, plan, lengths, steps)
        self.has_earlier = plan.gradient_accumulation_steps > 1
        self.device = torch.device("cuda", 0)
        stack.enter_context(_as_a_worker())
        self.base = base_model(settings, shape, precision, self.device)
        self.kernel = choose_attention(settings.attention, shape.family, self.device)
        self.table = rows_of(rows, shape.vocab)
        self.adapted = None
        if settings.method != "base":
            model = add_adapter(self.base, settings).eval()  # as the proof of the attention does
            self.adapted = Adapted(base=self.base, model=model, facts={})
            self.trainer = self._trainer()

    def _trainer(self) -> Any:
        from nbhelpers.jobs.finetune_trainer import AdapterTrainer, Hooks, training_arguments
        from nbhelpers.jobs.loop import TrainState
        from nbhelpers.models.causal import DTYPES
        from nbhelpers.models.causal_batches import row_multiple
        from nbhelpers.models.causal_forward import TrainingForward

        s, dtype = self.settings, DTYPES[self.precision]
        loss = "plain" if s.loss == "plain" else "chunked"
        self.forward = TrainingForward(self.base.model, kernel=self.kernel, loss=loss, dtype=dtype)
        self.recipe = _recipe(
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
            _make_state(self.trainer)
            if self.has_earlier:
                _with_earlier_gradients(self.trainer)
            self.trainer.train()
        with current().phase(EVALUATION):
            if self.settings.evaluate != "none":
                self._generate()

    def _validate(self) -> float | None:
        """Compute the loss of held-out rows, once, as the job does between its steps."""
        from nbhelpers.jobs.finetune_train import valid_loss

        if self.trainer.progress.step < self.recipe.total_steps or not self.settings.valid_samples:
            return None
        rows = np.full(self.settings.per_device_eval_batch_size, self.settings.seq_len)
        table = rows_of(rows, self.shape.vocab)
        accelerator, model = self.trainer.accelerator, self.adapted.model
        with current().phase(EVALUATION):
            return valid_loss(accelerator, model, self.forward, self.recipe, table)

    def _generate(self) -> None:
        from nbhelpers.simulate.jobs_finetune_generate import generate_longest

        model = self.adapted.model if self.adapted else self.base.model
        self.stack.close()  # the model computes logits again, as after training
        generate_longest(model.eval(), self.base, self.settings, self.precision)


def _shortened(
    settings: FinetuneSettings, plan: BatchPlan, lengths: Sequence[int] | None, steps: int
) -> tuple[FinetuneSettings, BatchPlan, np.ndarray]:
    """Return settings and plan of one micro-step, and the lengths of its samples over all ranks."""
    each = plan.world_size * plan.per_device_train_batch_size
    rows = np.full(each, settings.seq_len, dtype=np.int64)
    if lengths is not None:  # `schedule.micro_batches` puts the longest first
        rows = np.sort(np.minimum(np.asarray(lengths, dtype=np.int64), settings.seq_len))[::-1][
            :each
        ]
    changes = {"epochs": max(1, steps - 1), "global_batch_size": len(rows), "eval_steps": None}
    one = replace(plan, gradient_accumulation_steps=1, global_batch_size=len(rows))
    return settings.model_copy(update=changes), one, rows


def _make_state(trainer: Any) -> None:
    """Give the optimizer what it keeps from its first step on."""
    optimizer = trainer.optimizer
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _with_earlier_gradients(trainer: Any) -> None:
    """Let each micro-step find the gradients of one before it, to which it adds its own."""
    train = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> Any:
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        return train(*args, **kwargs)

    trainer.training_step = training_step


def _recipe(**given: Any) -> Any:
    """Return the job's recipe, whose batches are real numbers even while the model is built."""
    from nbhelpers.jobs.finetune_recipe import Recipe

    class OnHost(Recipe):
        def batch(self, rows: np.ndarray) -> Any:
            with without_modes():
                return Recipe.batch(self, rows)

    return OnHost(**given)


@contextmanager
def _as_a_worker() -> Iterator[None]:
    """Set torch and Accelerate up as a worker does on a GPU, and undo it."""
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
