"""Our fine-tuning under simulation: training, compiled blocks, scoring and generation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nbhelpers.budget.formulas import (
    BACKWARD_BYTES,
    COMPILED_FORWARD_BYTES,
    COMPILED_RECOMPUTED_BYTES,
    CausalExtent,
    choose_compile,
    compiled_block_bytes,
)
from nbhelpers.budget.memory import QLORA_SAFETY_FACTOR, MemoryBudget
from nbhelpers.budget.shapes import find_shape
from nbhelpers.common.files import is_folder
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.finetune_task import AdapterTask, learning, prepare
from nbhelpers.jobs.loop import PlainTask
from nbhelpers.jobs.models import causal_forward
from nbhelpers.jobs.models.causal import (
    DTYPES,
    Adapted,
    CausalBase,
    add_adapter,
    keep_as_stored,
    quantise,
    read_config,
    silence_bitsandbytes,
)
from nbhelpers.jobs.models.causal_batches import TextTable
from nbhelpers.jobs.models.causal_forward import choose_attention, generating, generation_kernel
from nbhelpers.jobs.simulated.step import OneStep, one_step, simulated_context
from nbhelpers.simulate.opaque_patches import without_modes
from nbhelpers.simulate.state import EVALUATION, current
from nbhelpers.simulate.step import simulate_step

if TYPE_CHECKING:
    from nbhelpers.budget.shapes import CausalShape
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import FinetuneSettings


# ------------------------------------------------------------------------------------------------
# Compiled code of our fine-tuning under simulation: what it keeps was measured, not traced.
#
# A compiled block keeps less than an eager one, by a choice that only the compiler's partitioner
# knows. So a block takes the bytes that the ledger fitted to measured peaks, and gives its adapters
# their gradients; everything around it is traced as it runs.


NOTE = "Compiled blocks: what each keeps is a formula that was fitted to measured peaks."


class CompiledCode:
    """Stands in for the functions that our fine-tuning compiles.

    Args:
        kernel: Of attention: eager, sdpa or flex.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        plan: BatchPlan,
        shape: CausalShape,
        *,
        precision: str,
        kernel: str,
        note: Callable[[str], None],
    ) -> None:
        self.settings, self.plan, self.shape, self.note = settings, plan, shape, note
        self.how, self.width = f"{precision} {kernel}", 4 if precision == "fp32" else 2

    def find(self, function: Any) -> Callable[..., Any] | None:
        """Return what takes the place of a compiled function, None for one that is not ours."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
        if (module, name) == ("nbhelpers.jobs.models.causal_forward", "_chunk_step"):
            return _fused_step
        layer = getattr(function, "__self__", None)
        is_block = name == "forward" and hasattr(layer, "self_attn") and hasattr(layer, "mlp")
        return self._block(layer) if is_block else None

    def _block(self, layer: Any) -> Callable[..., Any]:
        self.note(NOTE)

        def forward(states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            sizes = self._sizes(states)
            trained = [p for p in layer.parameters() if p.requires_grad]
            if not torch.is_grad_enabled():
                return _without_gradients(states, sizes["forward"])
            return _Block.apply(states, sizes, *trained)

        return forward

    def _sizes(self, states: Tensor) -> dict[str, int]:
        rows, length, _ = states.shape
        tokens = rows * length
        batch_shape = CausalExtent(tokens=tokens, squares=rows * length**2, supervised=0)
        inner = tokens * self.shape.inner * self.width // 2
        again = self.settings.gradient_checkpointing
        saved_bytes = compiled_block_bytes(
            self.settings, self.plan, self.shape, batch_shape, self.how
        )
        saved_bytes -= states.numel() * states.element_size()  # the output is one of its tensors
        return {
            "kept": max(saved_bytes, 0),
            "backward": inner * (COMPILED_RECOMPUTED_BYTES if again else BACKWARD_BYTES),
            "forward": inner * COMPILED_FORWARD_BYTES,
        }


def _pieces(size: int, like: Tensor) -> list[Tensor]:
    """Empty tensors of so many bytes in all, no larger than those of an MLP."""
    largest = max(4 * like.numel() * like.element_size(), 1)
    count = -(-size // largest) if size else 0
    return [like.new_empty(size // count, dtype=torch.uint8) for _ in range(count)]


def _without_gradients(states: Tensor, size: int) -> Tensor:
    inside = _pieces(size, states)
    out = torch.empty_like(states)
    del inside
    return out


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, sizes: dict[str, int], *trained: Tensor) -> Tensor:
        out = torch.empty_like(states)
        ctx.save_for_backward(states, *_pieces(sizes["kept"], states))
        ctx.sizes, ctx.trained = sizes, trained
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, *_ = ctx.saved_tensors
        states.new_empty(8, 8) @ states.new_empty(8, 8)  # this thread's cuBLAS takes its workspace
        inside = _pieces(ctx.sizes["backward"], states)
        grads = [torch.empty_like(p) for p in ctx.trained]
        before = torch.empty_like(states)
        del inside
        return (before, None, *grads)


def _fused_step(
    logits: Tensor, targets: Tensor, soft_cap: float | None, scale: float, wants: bool
) -> tuple[Tensor, Tensor | None]:
    """`causal_forward._chunk_step` in few kernels: sums per token, then gradients of logits."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = [logits.new_empty((len(logits), 1), dtype=wide) for _ in range(2)]
    loss = logits.new_empty((), dtype=wide)
    slope = torch.empty_like(logits) if wants else None
    del sums
    return loss, slope


# ------------------------------------------------------------------------------------------------
# Generation of our fine-tuning under simulation: the prompts, then an answer's last token.
#
# The cache grows by one token at a time, so memory is highest at the first pass over the prompts or
# at the last token of the longest answers; what lies between is not computed.


@torch.inference_mode()
def generate_longest(
    model: Any, base: CausalBase, context: RunContext, prompts: Sequence[int]
) -> None:
    """Compute as `jobs.generate` does with these prompts and the longest answers.

    Args:
        prompts: Tokens of each; none: nothing is generated.
    """
    if not prompts:
        return
    from transformers import DynamicCache

    from nbhelpers.jobs.generate import _numbers, for_generation

    device = next(model.parameters()).device
    rows, width = len(prompts), max(prompts)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    with _numbers(device, context.precision), for_generation(bare):
        layers, blocks = base.config.get_text_config().num_hidden_layers, _blocks(bare)
        others = 0 if blocks is None else layers - len(blocks)
        skipped = list(_keys_and_values(model, base, rows, width, others))
        _next_token(model, DynamicCache(config=base.config), rows, width, width, device)
        del skipped
        length, cache = width + context.settings.max_new_tokens, DynamicCache(config=base.config)
        for layer, pair in enumerate(_keys_and_values(model, base, rows, length - 1, layers)):
            cache.update(*pair, layer)
        del pair
        _next_token(model, cache, rows, 1, length, device)


def _next_token(
    model: Any, cache: Any, rows: int, width: int, length: int, device: torch.device
) -> None:
    """Compute the word behind `length` tokens, of which the last `width` are not in the cache."""
    ids = torch.full((rows, length), 4).to(device)
    mask = torch.ones((rows, length), dtype=torch.long).to(device)
    positions = mask.cumsum(-1) - 1
    logits = model(
        input_ids=ids[:, -width:],
        attention_mask=mask,
        position_ids=positions[:, -width:],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    scores = logits[:, -1].to(torch.float32, copy=True)
    torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=-1)


def _keys_and_values(
    model: Any, base: CausalBase, rows: int, length: int, layers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the keys and values of so many tokens, of each layer."""
    config = base.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = (rows, heads, length, size)
    weight = model.get_input_embeddings().weight
    for _ in range(layers):
        yield weight.new_empty(shape), weight.new_empty(shape)


@contextmanager
def _last_blocks(model: Any) -> Iterator[None]:
    """Let passes without gradients go through the last two blocks alone: no other holds more.

    Models that are built otherwise go through all of theirs.
    """
    blocks = _blocks(model)
    if blocks is not None:
        model.model.layers = blocks[-2:]
    try:
        yield
    finally:
        if blocks is not None:
            model.model.layers = blocks


def _blocks(model: Any) -> Any:
    return getattr(getattr(model, "model", None), "layers", None)


# ------------------------------------------------------------------------------------------------
# Our fine-tuning under simulation: the loop as it trains adapters, scoring and generation.
#
# Model, adapters, micro-batches, loss, attention and loop are the job's own; only weights, data and
# the run's folder are left out. The optimizer's state is made first, and gradients of an earlier
# micro-step where there is one; then the largest micro-step is like any of a long run.


def simulate_finetune(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    gpu: Any,
    shapes: dict[str, Any] | None = None,
    steps: int = 2,
    world_size: int = 1,
    expandable_segments: bool = True,
) -> MemoryBudget:
    """Return the simulated memory of one process that trains adapters.

    Args:
        shapes: As `jobs.finetune.batch_shapes` says; None: samples of `seq_len` tokens.
        steps: Optimizer steps; in the place of the first the optimizer's state is made.

    Raises:
        ConfigError: The sizes of the model cannot be read.
    """
    settings = preset.settings
    shape = find_shape(settings)
    if shape is None and settings.has_own_loop:
        raise ConfigError(
            f"The sizes of {settings.model} cannot be read, so its memory cannot be simulated.",
            fix="give a folder with config.json, or go online",
        )
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    shapes = shapes or _longest_shapes(settings, plan)
    if shape is not None:
        shape = replace(shape, vocab=shapes["vocab"] or shape.vocab)
    kind = _Finetuning if settings.has_own_loop else _TrlFinetuning
    with ExitStack() as stack:

        def build() -> tuple[Any, ...]:
            # Limit: the buckets of DDP are left out; `simulate_step` counts NCCL's memory.
            alone = replace(plan, world_size=1)
            context = stack.enter_context(
                simulated_context(settings, alone, hardware, precision=precision)
            )
            context = replace(context, plan=plan)
            run = kind(context, shape, shapes, steps, stack)
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
        return self.host_batch(rows).to(self.accelerator.device)

    backward = PlainTask.backward  # what is captured in a graph is computed in the same order


class _Finetuning:
    """One run of the job, without a run folder."""

    def __init__(
        self,
        context: RunContext,
        shape: CausalShape,
        shapes: dict[str, Any],
        steps: int,
        stack: ExitStack,
    ) -> None:
        self.shape, self.stack, self.shapes = shape, stack, shapes
        self.steps = max(1, steps - 1)
        plan, parts = context.plan, shapes["parts"]
        self.has_earlier = plan.gradient_accumulation_steps > len(parts) == 1
        samples = np.repeat(shapes["samples"], plan.world_size, axis=0)
        plan = replace(plan, gradient_accumulation_steps=len(parts), global_batch_size=len(samples))
        changes = {"epochs": 1, "global_batch_size": len(samples)}
        settings = context.settings.model_copy(update=changes)
        self.context = replace(context, settings=settings, plan=plan)
        device = torch.device("cuda", 0)
        self.base = base_model(settings, shape, context.precision, device)
        self.kernel = self._kernel()
        self.model, self.one_step = self.base.model, None
        if settings.method != "base":
            model = add_adapter(self.base, settings).eval()  # as the proof of the attention does
            self.model = model
            self.one_step = self._loop(Adapted(base=self.base, model=model, facts={}), samples)

    def _kernel(self) -> str:
        asked, device = self.context.settings.attention, self.base.model.device
        return choose_attention(asked, self.shape.family, device)

    def _loop(self, adapted: Adapted, samples: np.ndarray) -> OneStep:
        context = self.context
        s, accelerator = context.settings, context.accelerator
        splits = {"train": samples, "valid": self.shapes["valid"]}
        is_compiled = choose_compile(s, self.kernel)
        task = _HostBatches(
            s,
            context.plan,
            {name: rows_of(sizes, self.shape.vocab) for name, sizes in splits.items()},
            adapted,
            accelerator,
            kernel=self.kernel,
            precision=context.precision,
            is_compiled=is_compiled,
        )
        task.has_earlier = self.has_earlier
        self._stand_in_for_compiled()
        self.stack.enter_context(task.forward.active(compiled=is_compiled))
        prepare(adapted, s, accelerator)
        return one_step(context, task, adapted.model, len(samples), groups=learning)

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
        compiled = dict(causal_forward._compiled)
        causal_forward._compiled.clear()
        self.stack.callback(causal_forward._compiled.update, compiled)
        self.stack.callback(causal_forward._compiled.clear)

    def step(self) -> None:
        """Train, then score held-out rows and generate as the job does."""
        if self.one_step is not None:
            _make_state(self.one_step.trainer.optimizer.optimizer)
            for _ in range(self.steps):
                self.one_step()
        with current().phase(EVALUATION), _last_blocks(self.base.model):
            if self.one_step is not None:
                self.one_step.trainer.task.evaluate(self.steps)
            self.stack.close()  # the model computes logits again, as after training
            generate_longest(self.model.eval(), self.base, self.context, self.shapes["prompts"])


class _TrlFinetuning(_Finetuning):
    """One run of the job with TRL's trainer, without a run folder."""

    def _kernel(self) -> str:
        asked, config = self.context.settings.attention, self.base.config
        asked = generation_kernel(self.base.model) if asked == "auto" else asked
        return choose_attention(asked, config.model_type, self.base.model.device)

    def _loop(self, adapted: Adapted, samples: np.ndarray) -> Any:
        """Return the trainer of one optimizer step; what earlier ones leave is there before."""
        from transformers import TrainerCallback

        from nbhelpers.jobs.finetune_trl import make_trainer

        class Earlier(TrainerCallback):
            def on_step_begin(this, *_: Any, **__: Any) -> None:
                if self.has_earlier:
                    _give_gradients(learning(adapted.model))

        vocab = self.base.config.get_text_config().vocab_size
        sizes = {"train": samples, "valid": np.asarray(self.shapes["valid"]).reshape(-1, 2)}
        with without_modes():
            adapted.base.tokenizer = _tokenizer()
            tables = {name: rows_of(of_split, vocab) for name, of_split in sizes.items()}
        one = {"per_device_train_batch_size": len(samples), "gradient_accumulation_steps": 1}
        folder = Path(tempfile.gettempdir())  # where nothing is written
        return make_trainer(
            self.context, tables, adapted, folder, callbacks=[Earlier()], max_steps=1, **one
        )

    def step(self) -> None:
        """Train, then score held-out rows and generate as the job does."""
        if self.one_step is not None:
            _make_state(self.one_step.create_optimizer())
            with generating(self.base.model, self.kernel):
                self.one_step.train()
        with current().phase(EVALUATION), _last_blocks(self.base.model):
            if self.one_step is not None and len(self.shapes["valid"]):
                with generating(self.base.model, self.kernel):
                    self.one_step.evaluate()
            self.stack.close()
            generate_longest(self.model.eval(), self.base, self.context, self.shapes["prompts"])


def _tokenizer() -> Any:
    """Return a tokenizer of two words, for a trainer that must have one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    )


def _longest_shapes(settings: FinetuneSettings, plan: BatchPlan) -> dict[str, Any]:
    each, length = plan.per_device_train_batch_size, settings.seq_len
    asks = settings.evaluate != "none"
    scored = settings.per_device_eval_batch_size if settings.valid_samples else 0
    return {
        "vocab": None,
        "samples": [[length, 0]] * each,
        "parts": [each],
        "valid": [[length, 0]] * scored,
        "prompts": [length] * settings.generation_batch_size if asks else [],
    }


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer what it keeps from its first step on."""
    _give_gradients(optimizer.param_groups)
    optimizer.step()
    optimizer.zero_grad()


def _give_gradients(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)


def rows_of(sizes: Any, vocab: int) -> TextTable:
    """Return samples of these sizes, of words without a meaning.

    Args:
        sizes: (samples, 2) tokens of each sample, and of its prompt.
    """
    lengths, prompts = np.asarray(sizes, dtype=np.int64).reshape(-1, 2).T
    ids = [np.arange(length, dtype=np.int64) % vocab for length in lengths]
    return TextTable(ids=ids, prompt_lengths=prompts, rows=list(range(len(ids))))


def base_model(
    settings: FinetuneSettings, shape: CausalShape | None, precision: str, device: torch.device
) -> Any:
    """Return the frozen base as `models.causal.load_base` leaves it, without its numbers.

    Quantised layers go to the device one by one, as those of a folder's weights do.
    """
    from transformers import AutoModelForCausalLM

    silence_bitsandbytes()
    dtype, config = DTYPES[precision], _config(settings, shape)
    if settings.dropout is not None:
        config.attention_dropout = settings.dropout
    with device if settings.random_weights else nullcontext():  # as `models.causal` makes them
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    if settings.method == "qlora":
        quantise(model, dtype)
    keep_as_stored(model)
    model.requires_grad_(False)
    model = model.to(device).eval()
    model.config.use_cache = False
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    return CausalBase(model=model, tokenizer=tokenizer, config=model.config)


def _config(settings: FinetuneSettings, shape: CausalShape | None) -> Any:
    from transformers import AutoConfig, Gemma2Config, LlamaConfig

    if is_folder(settings.model):
        return AutoConfig.from_pretrained(settings.model)
    if shape is None:
        return read_config(settings)
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
