"""Causal models in training: kernel and mask of the attention, chunked loss, forward pass."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.causal_batches import BLOCK, Layout, MicroBatch, send

# ------------------------------------------------------------------------------------------------
# Attention of causal models on packed rows: which kernel, which mask, and the proof that it fits.
#
# A row may hold several samples end to end. `segments` numbers them, and a token sees the tokens of
# its own sample that are not after it. The mask is built here, once per batch, for eager, SDPA and
# flex_attention alike, so that all three see the same.


FLEX = "nbhelpers_flex"  # the name under which transformers finds our kernel
SOFT_CAPPED = ("gemma2",)  # families whose attention scores are capped
BLOCK_LISTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


# Flex attention's tiles by head size on a GPU of compute capability 9.0. Source: of 20 choices on
# an H200 (docs/log/speed.md); torch 2.11's own take 3.4 ms where these take 2.0.
HOPPER_OPTIONS = {
    256: {
        **{"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 8, "fwd_num_stages": 2},
        **{"bwd_BLOCK_M1": 64, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 128, "bwd_BLOCK_N2": 32},
        **{"bwd_num_warps": 8, "bwd_num_stages": 2},
    }
}
_options: dict[int, dict[str, int]] = {}  # of the GPU that is here


def has_triton() -> bool:
    """Whether torch.compile can make GPU kernels here."""
    return find_spec("triton") is not None


def choose_attention(asked: str, family: str, device: torch.device) -> str:
    """Return eager, sdpa or flex for a model family on a device.

    `auto` takes flex_attention where the family caps its scores and the GPU has bf16 and Triton,
    SDPA where nothing is capped, else eager.

    Raises:
        ConfigError: SDPA for a family whose scores are capped.
    """
    if asked == "sdpa" and family in SOFT_CAPPED:
        raise ConfigError(
            f"attention=sdpa drops the soft-cap of {family}'s attention: another model.",
            fix="set attention=auto, eager or flex",
        )
    if asked != "auto":
        return asked
    if family not in SOFT_CAPPED:
        return "sdpa"
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "flex" if modern and has_triton() else "eager"


def implementation(kernel: str) -> str:
    """Return the name that transformers knows a kernel by; registers ours."""
    if kernel != "flex":
        return kernel
    from transformers import AttentionInterface, AttentionMaskInterface

    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        _options.update(HOPPER_OPTIONS)
    AttentionInterface.register(FLEX, flex_attention_forward)
    AttentionMaskInterface.register(FLEX, _refuse_mask)
    return FLEX


def _refuse_mask(*args: Any, **kwargs: Any) -> Any:
    """Transformers makes no mask for our kernel: batches bring their own."""
    raise RuntimeError("a batch for flex attention lacks its masks (causal_attention.masks)")


@functools.cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with a soft-cap on the scores.

    Args:
        query: (batch, heads, seq_len, head_dim); `key`, `value` with fewer heads.
        attention_mask: A BlockMask of (batch, 1, seq_len, seq_len).

    Returns:
        (batch, seq_len, heads, head_dim), and no weights.
    """
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * tanh(score / softcap)

    is_plain = torch.compiler.is_compiling() or query.device.type == "cpu"
    attend = flex_attention if is_plain else _compiled_flex()
    # The lengths as those of the tensors: plain numbers would be compiled in, each anew.
    mask = BlockMask(
        (query.shape[2], key.shape[2]),
        *(getattr(attention_mask, name) for name in BLOCK_LISTS),
        BLOCK_SIZE=attention_mask.BLOCK_SIZE,
        mask_mod=attention_mask.mask_mod,
    )
    out = attend(
        query,
        key,
        value,
        score_mod=capped if softcap else None,
        block_mask=mask,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        kernel_options=_options.get(query.shape[-1]),
    )
    return out.transpose(1, 2).contiguous(), None


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent, within 1e-7 in fp32, by a third of the work in a kernel."""
    return 2 * torch.sigmoid(2 * x) - 1


def masks(layout: Layout, *, kernel: str, config: Any, dtype: torch.dtype) -> Any:
    """Return what the model's `attention_mask` takes: one mask, or one per kind of layer.

    Args:
        kernel: eager, sdpa or flex.
        config: The model's; `sliding_window` limits how far a token sees on some layers.
        dtype: Of eager's additive mask.
    """
    near = sliding_window(layout, config)
    make = _block_mask if kernel == "flex" else dense_mask
    full = make(layout, None, dtype)
    return by_kind(config, full, full if near is None else make(layout, near, dtype))


def by_kind(config: Any, full: Any, near: Any) -> Any:
    """Return a mask for all layers, or one for each kind of a model that has two kinds."""
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return full
    return {"full_attention": full, "sliding_attention": near}


def sliding_window(layout: Layout, config: Any) -> int | None:
    """Return how far a token of a sliding layer sees; None where nothing is out of its reach."""
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return None
    return window if window is not None and _reach(layout) > window else None


def _reach(layout: Layout) -> int:
    """Return the tokens of the longest sample, padding included."""
    starts = layout.first_tokens()
    return int((np.arange(starts.shape[1]) - starts).max()) + 1


def _visible(layout: Layout, window: int | None, b: Any, q: Any, kv: Any) -> Tensor:
    same = layout.segments[b, q] == layout.segments[b, kv]
    seen = same & (q >= kv)
    return seen if window is None else seen & (q - kv < window)


def dense_mask(layout: Layout, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return (batch, 1, seq_len, seq_len), 0 where a token sees another, else the lowest number."""
    rows, length = layout.segments.shape
    at = torch.arange(length, device=layout.segments.device)
    batch = torch.arange(rows, device=at.device)[:, None, None]
    seen = _visible(layout, window, batch, at[None, :, None], at[None, None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=at.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def _block_mask(layout: Layout, window: int | None, dtype: torch.dtype) -> Any:
    """Return flex_attention's mask; what `create_block_mask` finds by trying every pair of tokens.

    Its lists of blocks are made on the host, as a token sees an unbroken span that ends in itself.
    """
    device = layout.segments.device
    arrays = block_arrays(layout, window)
    return block_mask([send(torch.from_numpy(array), device) for array in arrays])


def block_arrays(layout: Layout, window: int | None) -> list[np.ndarray]:
    """Return int32 arrays: (batch, seq_len) first token that each sees, and the lists of blocks."""
    starts = layout.first_tokens()
    if window is not None:
        starts = np.maximum(starts, np.arange(starts.shape[1]) - window + 1)
    partial, full = _blocks(starts)
    lists = [
        array[:, None]
        for blocks in (partial, full, partial.swapaxes(1, 2), full.swapaxes(1, 2))
        for array in _ordered(blocks)
    ]
    return [starts.astype(np.int32), *lists]


def block_mask(arrays: list[Tensor]) -> Any:
    """Return flex_attention's mask from what `block_arrays` gives, on the device."""
    from torch.nn.attention.flex_attention import BlockMask

    first = of_any_size(arrays[0], 1)
    length = first.shape[1]

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv >= first[b, q]) & (q >= kv)

    lists = [of_any_size(array, *range(2, array.ndim)) for array in arrays[1:]]
    return BlockMask((length, length), *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=visible)


def _blocks(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (batch, blocks, blocks): which blocks are seen in part, and which by every query.

    Args:
        starts: (batch, seq_len) first token that each sees; it never falls along a row.
    """
    length = starts.shape[1]
    count = -(-length // BLOCK)
    of_keys = np.arange(count)  # (keys' blocks,)
    at = of_keys[:, None]  # (queries' blocks, 1)
    lowest = starts[:, ::BLOCK, None] // BLOCK  # (batch, queries' blocks, 1)
    highest = starts[:, np.minimum(BLOCK * (of_keys + 1), length) - 1, None]
    seen = (lowest <= of_keys) & (of_keys <= at)
    whole = BLOCK * (at + 1) <= length  # the last block may be cut
    full = seen & (highest <= BLOCK * of_keys) & (of_keys < at) & whole
    return seen & ~full, full


def _ordered(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many blocks each row has, and their numbers before those of the others."""
    numbers = np.argsort(~blocks, axis=-1, kind="stable")
    return blocks.sum(-1, dtype=np.int32), numbers.astype(np.int32)


def of_any_size(tensor: Tensor, *dims: int) -> Tensor:
    """Tell torch.compile that these dimensions vary; else it makes code for the first sizes too."""
    import torch._dynamo

    torch._dynamo.maybe_mark_dynamic(tensor, list(dims))
    return tensor


# ------------------------------------------------------------------------------------------------
# Cross-entropy over a large vocabulary, some tokens at a time: the whole logits never exist.
#
# Only supervised tokens reach the head. Each chunk's logits, loss and gradient are computed and
# dropped before the next, so memory does not grow with the tokens of a batch.


# Source: 2,048 x 256,000 logits are 1 GiB in bf16; larger chunks gained nothing on an H100.
CHUNK_BYTES = 2**30
# The gradients of single logits are below fp16's smallest numbers; powers of two lose nothing.
FP16_SCALE = 1024.0
MOST_CAP = 40.0  # exp(-80), of values between both ends of a cap, is a normal number of fp32


def chunk_size(vocab_size: int, bytes_per_logit: int) -> int:
    """Return how many tokens' logits fit into `CHUNK_BYTES`, a multiple of 128."""
    return max(128, CHUNK_BYTES // (vocab_size * bytes_per_logit) // 128 * 128)


def cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return the summed cross-entropy of a linear head, as a scalar in fp32 (fp64 for fp64).

    Args:
        hidden: (n, hidden) inputs of the head; its gradient is computed.
        weight: (vocab, hidden) of the head, frozen: it gets no gradient.
        targets: (n,) right words.
        soft_cap: Gemma-2's cap on the logits, cap x tanh(logits / cap).
        chunk: Tokens at a time; None: by `CHUNK_BYTES`.

    Source: the gradient of the loss by the logits is softmax - one-hot; through the cap it is
    multiplied by 1 - tanh^2.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    hidden = hidden.to(weight.dtype)
    size = chunk or chunk_size(weight.shape[0], weight.element_size())
    return _ChunkedCrossEntropy.apply(hidden, weight, targets, soft_cap, size)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass, when a chunk's logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        soft_cap: float | None,
        chunk: int,
    ) -> Tensor:
        wants = hidden.requires_grad
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        total = torch.zeros((), dtype=wide, device=hidden.device)
        gradient = torch.empty_like(hidden) if wants else None
        scale = FP16_SCALE if hidden.dtype == torch.float16 else 1.0
        step = _step(hidden)
        for start in range(0, len(targets), chunk):
            part, wanted = hidden[start : start + chunk], targets[start : start + chunk]
            loss, slope = step(part @ weight.T, wanted, soft_cap, scale, wants)
            total += loss
            if gradient is not None:
                gradient[start : start + chunk] = (slope @ weight).div_(scale)
            del slope  # else it is alive beside the next chunk's logits
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        if gradient is None:
            return None, None, None, None, None
        # A scaled loss may hand down more than fp16 can hold.
        wide = gradient if gradient.dtype == torch.float64 else gradient.float()
        return (wide * upstream).to(gradient.dtype), None, None, None, None


def _chunk_step(
    logits: Tensor, targets: Tensor, soft_cap: float | None, scale: float, wants: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the summed loss of a chunk, and its gradient by the logits times `scale`."""
    values = logits if logits.dtype == torch.float64 else logits.float()
    bent = None
    if soft_cap is not None:
        bent = tanh(values / soft_cap)
        values = soft_cap * bent
    if soft_cap is not None and soft_cap <= MOST_CAP:  # the largest need not be looked for first
        log_sum = soft_cap + torch.exp(values - soft_cap).sum(-1, keepdim=True).log()
    else:
        log_sum = torch.logsumexp(values, dim=-1, keepdim=True)
    loss = (log_sum - values.gather(-1, targets[:, None])).sum()
    if not wants:
        return loss, None
    slope = torch.exp(values - log_sum)
    columns = torch.arange(values.shape[-1], device=values.device)
    slope = slope - (columns == targets[:, None]).to(slope.dtype)
    if bent is not None:
        slope = slope * (1 - bent * bent)
    return loss, (slope * scale).to(logits.dtype)


_compiled: dict[str, Callable[..., Any]] = {}


def _step(hidden: Tensor) -> Callable[..., Any]:
    """Return the step, compiled into few kernels on a GPU with Triton."""

    if hidden.device.type != "cuda" or not has_triton():
        return _chunk_step
    if "step" not in _compiled:
        _compiled["step"] = torch.compile(_chunk_step, dynamic=True)
    return _compiled["step"]


# ------------------------------------------------------------------------------------------------
# Dropout of the adapters in compiled blocks: a tenth of a step is what its random numbers cost.
#
# torch.compile draws each of them by ten rounds of Philox, and a block needs 22,784 for a token.
# Here one number per adapter and pass comes from the host's generator, and a hash of it and of the
# element's place decides whether the element stays.


class HashedDropout(nn.Module):
    """Dropout whose mask is a hash of `seed` and of each element's place.

    `seed`, an int32 of one element, is drawn by whoever calls the model. Each element is dropped
    with the probability `p`, rounded to a multiple of 2^-31.

    Source: the finaliser of MurmurHash3 (Appleby, 32 bits), after a multiple of place and seed by
    the odd number next to 2^32 / golden ratio.
    """

    def __init__(self, p: float, seed: Tensor) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., n) with some elements 0, and the others divided by 1 - p."""
        if not self.training or not self.p:
            return x
        rows = torch.arange(x.numel() // x.shape[-1], dtype=torch.int32, device=x.device)
        columns = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
        # The seed comes first: of places alone torch.compile would make a product beyond 32 bits,
        # which Triton refuses.
        place = rows[:, None] * x.shape[-1] + columns + self.seed
        number = _mixed(place * -1640531527, self.seed) & 0x7FFFFFFF
        is_kept = number >= round(self.p * 2**31)
        return torch.where(is_kept.view(x.shape), x / (1 - self.p), 0.0)


def _mixed(h: Tensor, seed: Tensor) -> Tensor:
    """Return a hash of int32 numbers; shifts bring in zeros.

    The seed comes in once more, or the masks of two seeds would be one another's, shifted.
    """
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * -2048144789 + seed  # 0x85EBCA6B
    h = h ^ ((h >> 13) & 0x7FFFF)
    h = h * -1028477387  # 0xC2B2AE35
    return h ^ ((h >> 16) & 0xFFFF)


@contextmanager
def hashed_dropout(model: Any, seeds: Tensor | None = None) -> Iterator[Tensor]:
    """Have the adapters of a model drop by hashes inside this context.

    Args:
        seeds: As another such context of this model gave them; None: new ones.

    Yields:
        (adapters,) int32: the seeds, to be drawn anew before each pass.
    """
    lists = [m.lora_dropout for m in model.modules() if hasattr(m, "lora_dropout")]
    plain = [(d, name, d[name]) for d in lists for name in d if isinstance(d[name], nn.Dropout)]
    if seeds is None:
        device = next(model.parameters()).device
        seeds = torch.zeros(len(plain), dtype=torch.int32, device=device)
    for number, (dropouts, name, module) in enumerate(plain):
        dropouts[name] = HashedDropout(module.p, seeds[number : number + 1]).train(module.training)
    try:
        yield seeds
    finally:
        for dropouts, name, module in plain:
            dropouts[name] = module.train(dropouts[name].training)


# ------------------------------------------------------------------------------------------------
# The forward pass of training: hidden states, then the loss, through the model's own `forward`.
#
# DDP and PEFT wrap the model, so the loss must come out of the wrapped call. The model's `forward`
# is replaced on the instance; blocks may be compiled, and both are undone for generation.


class TrainingForward:
    """Makes a causal model return the summed loss of supervised tokens.

    Args:
        model: The bare model, `Gemma2ForCausalLM` for example; adapters may live in its layers.
        kernel: eager, sdpa or flex.
        loss: chunked or plain.
        dtype: Of the residual stream, for eager's mask.
        checkpointing: Compute each block anew in the backward pass.
    """

    def __init__(
        self,
        model: Any,
        *,
        kernel: str,
        loss: str,
        dtype: torch.dtype,
        checkpointing: bool = False,
    ) -> None:
        self.model, self.kernel, self.loss, self.dtype = model, kernel, loss, dtype
        self.checkpointing = checkpointing
        self.seeds: Tensor | None = None  # of compiled blocks' dropout, the same in all contexts

    def draw(self) -> None:
        """Draw what the adapters drop in the next pass, where their blocks are compiled."""
        if self.seeds is not None and len(self.seeds) and self.model.training:
            numbers = torch.empty(self.seeds.shape, dtype=torch.int32).random_()
            self.seeds.copy_(send(numbers, self.seeds.device))

    def inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return what the model is called with."""
        return {"input_ids": batch.ids, "learned": batch.learned} | self.placed(batch.layout)

    def placed(self, layout: Layout) -> dict[str, Any]:
        """Return masks and positions of a layout."""
        mask = masks(layout, kernel=self.kernel, config=self.model.config, dtype=self.dtype)
        return {"attention_mask": mask, "position_ids": layout.positions}

    def hidden(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden states, (rows, width, hidden)."""
        called = self.placed(layout)
        return self.model.model(input_ids=ids, use_cache=False, **called).last_hidden_state

    def _forward(
        self,
        model: Any,
        input_ids: Tensor,
        learned: tuple[Tensor, Tensor],
        attention_mask: Any,
        position_ids: Tensor,
    ) -> CausalLMOutput:
        self.draw()
        states = model.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        cap = getattr(model.config, "final_logit_softcapping", None)
        at, targets = learned
        if self.loss == "chunked":
            flat = states.reshape(-1, states.shape[-1]).index_select(0, at)
            loss = cross_entropy_sum(flat, model.lm_head.weight, targets, soft_cap=cap)
        else:
            loss = plain_loss(model.lm_head(states), at, targets, cap)
        return CausalLMOutput(loss=loss)

    @contextmanager
    def active(self, *, compiled: bool = False) -> Iterator[None]:
        """Have the model compute losses inside this context, its blocks compiled or not."""
        _set_attention(self.model, implementation(self.kernel))

        def forward(
            this: Any,
            input_ids: Tensor | None = None,
            learned: Any = None,
            attention_mask: Any = None,
            position_ids: Tensor | None = None,
            **_: Any,
        ) -> CausalLMOutput:
            return self._forward(this, input_ids, learned, attention_mask, position_ids)

        self.model.forward = types.MethodType(forward, self.model)
        layers = self.model.model.layers
        try:
            with ExitStack() as stack:
                if compiled:
                    self.seeds = stack.enter_context(hashed_dropout(layers, self.seeds))
                    _compile(layers)
                if self.checkpointing:
                    for layer in layers:
                        layer.forward = _checkpointed(layer, layer.forward)
                yield
        finally:
            for module in (self.model, *layers):
                vars(module).pop("forward", None)


def _compile(layers: Any) -> None:
    import torch._dynamo

    # The blocks share two compiled codes, with gradients and without; some families need more.
    torch._dynamo.config.recompile_limit = 32
    for layer in layers:
        layer.forward = torch.compile(layer.forward)
    layers[0].forward = _like_the_others(layers[0].forward)


def _checkpointed(layer: Any, forward: Any) -> Any:
    """Have a block computed anew in the backward pass, around what may be compiled of it.

    Transformers' own switch acts around `forward` in 5.17 and inside it in 5.24, where a compiled
    block then keeps three times as much.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if layer.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return call


def _like_the_others(forward: Any) -> Any:
    """Have the first block compiled so that its code serves all blocks and widths.

    It alone gets states that need no gradient, and it is the one whose sizes torch.compile sees
    first.
    """

    def call(states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not states.requires_grad:
            states = states.detach().requires_grad_()
        of_any_size(states, 1)
        for table in kwargs.get("position_embeddings") or ():
            of_any_size(table, 1)
        if isinstance(mask := kwargs.get("attention_mask"), Tensor):
            of_any_size(mask, 2, 3)
        return forward(states, *args, **kwargs)

    return call


def plain_loss(logits: Tensor, at: Tensor, targets: Tensor, soft_cap: float | None) -> Tensor:
    """Return the summed loss from the logits of all tokens, as the library computes it.

    Args:
        logits: (rows, width, vocab).
        at: (n,) positions into the flattened rows whose next token is supervised.
    """
    if soft_cap is not None:
        logits = torch.tanh(logits / soft_cap) * soft_cap
    supervised_logits = logits.reshape(-1, logits.shape[-1])[at].float()
    return torch.nn.functional.cross_entropy(supervised_logits, targets, reduction="sum")


def _set_attention(model: Any, name: str) -> None:
    """Switch the attention of a model and of its parts."""
    model.config._attn_implementation = name
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


@contextmanager
def generating(model: Any, kernel: str) -> Iterator[None]:
    """Use a kernel that works with a cache, eager or SDPA, inside this context."""
    before = model.config._attn_implementation
    _set_attention(model, kernel)
    try:
        yield
    finally:
        _set_attention(model, before)


def generation_kernel(model: Any) -> str:
    """Return the attention for generation: SDPA, eager where scores are capped or it is not known.

    Args:
        model: The bare model.
    """
    is_capped = model.config.model_type in SOFT_CAPPED
    return "eager" if is_capped or not getattr(model, "_supports_sdpa", True) else "sdpa"
