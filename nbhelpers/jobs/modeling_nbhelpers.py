"""A detector or a clone model for transformers alone; nbhelpers copies this file into its exports.

::

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

It needs torch and transformers. What becomes token ids, and in which form, README.md says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

HIDDEN = -1e4  # added to the scores of attention where a token may not look


class _Config(PretrainedConfig):
    """`encoder` holds the encoder's own configuration as a dict."""

    def __init__(self, encoder: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(**values)
        self.encoder = encoder or {}


class NbhelpersDetectorConfig(_Config):
    """Of a detector: its heads by `objective`, and what they see by `pooling`."""

    model_type = "nbhelpers_detector"

    def __init__(
        self,
        objective: str = "both",
        pooling: str = "mean",
        similarity_pooling: str = "same",
        projection_size: int = 256,
        **values: Any,
    ) -> None:
        super().__init__(**values)
        self.objective, self.pooling = objective, pooling
        self.similarity_pooling, self.projection_size = similarity_pooling, projection_size


class NbhelpersClonesConfig(_Config):
    """Of a clone model; `reads_data_flow`: its tokens of code are followed by nodes."""

    model_type = "nbhelpers_clones"

    def __init__(self, reads_data_flow: bool = False, **values: Any) -> None:
        super().__init__(**values)
        self.reads_data_flow = reads_data_flow


def _encoder(config: _Config) -> nn.Module:
    values = dict(config.encoder)
    inner = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    options = {"add_pooling_layer": False} if inner.model_type in ("bert", "roberta") else {}
    if inner.model_type == "t5":
        from transformers import T5EncoderModel

        return T5EncoderModel(inner).encoder
    return AutoModel.from_config(inner, **options)


class _Head(nn.Module):
    """Linear layers with a tanh between; without `inner`, one layer without a bias."""

    def __init__(self, reads: int, inner: int, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(reads, inner) if inner else None
        self.out_proj = nn.Linear(inner or reads, size, bias=bool(inner))

    def forward(self, states: Tensor) -> Tensor:
        return self.out_proj(states if self.dense is None else torch.tanh(self.dense(states)))


@dataclass
class DetectorOutput(ModelOutput):
    """`logits`: (rows,), AI against human; `vectors`: (rows, size) of length 1; None: no head."""

    logits: Tensor | None = None
    vectors: Tensor | None = None


@dataclass
class ClonesOutput(ModelOutput):
    """`logits`: (pairs, 2), no clone and clone; `states`: (pairs, 2, hidden) of the functions."""

    logits: Tensor | None = None
    states: Tensor | None = None


class NbhelpersDetector(PreTrainedModel):
    """An encoder, a head for who wrote a program, and a head for what it does."""

    config_class = NbhelpersDetectorConfig
    base_model_prefix = "nbhelpers"

    def __init__(self, config: NbhelpersDetectorConfig) -> None:
        super().__init__(config)
        self.encoder = _encoder(config)
        hidden = self.encoder.config.hidden_size
        ways = {"mean": ("mean",), "first": ("first",), "mean_max": ("mean", "max")}
        ways = ways[config.pooling]
        has_classifier = config.objective != "similar"
        has_projector = config.objective != "detect"
        self.has_rarity = config.similarity_pooling == "rarity" and has_projector
        reads = len(ways) * hidden if has_classifier else 0
        self.ways = ways if has_classifier else () if self.has_rarity else ways[:1]
        self.hidden, self.reads = hidden, reads
        self.classifier = _Head(reads, hidden, 1) if has_classifier else None
        self.projector = _Head(hidden, 0, config.projection_size) if has_projector else None
        width = hidden * (len(self.ways) + self.has_rarity)
        words = self.encoder.config.vocab_size
        self.register_buffer("rarity", torch.ones(words) if self.has_rarity else None)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> DetectorOutput:
        """Score programs.

        Args:
            input_ids: (rows, length) int64, padded on the right.
            attention_mask: (rows, length) int64, 1 for tokens and 0 for padding.
        """
        outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        tokens = outputs.last_hidden_state.float()  # (rows, length, hidden)
        mask = attention_mask.to(tokens.dtype)
        parts = [self._pooled(tokens, mask, way) for way in self.ways]
        if self.has_rarity:
            parts.append(self._pooled(tokens, mask * self.rarity[input_ids], "mean"))
        states = (torch.cat(parts, dim=1) - self.centre) / self.spread
        logits = vectors = None
        if self.classifier is not None:
            logits = self.classifier(states[:, : self.reads]).squeeze(-1)
        if self.projector is not None:
            seen = states[:, -self.hidden :] if self.has_rarity else states[:, : self.hidden]
            vectors = nn.functional.normalize(self.projector(seen), dim=-1)
        return DetectorOutput(logits=logits, vectors=vectors)

    @staticmethod
    def _pooled(tokens: Tensor, weights: Tensor, way: str) -> Tensor:
        if way == "first":
            return tokens[:, 0]
        if way == "max":
            return tokens.masked_fill((weights == 0)[..., None], float("-inf")).amax(1)
        total = (tokens * weights[..., None]).sum(1)
        return total / weights.sum(1, keepdim=True).clamp(min=1e-6)


class NbhelpersClones(PreTrainedModel):
    """An encoder that gives one state per function, and a head that sees the pair."""

    config_class = NbhelpersClonesConfig
    base_model_prefix = "nbhelpers"

    def __init__(self, config: NbhelpersClonesConfig) -> None:
        super().__init__(config)
        self.encoder = _encoder(config)
        hidden = self.encoder.config.hidden_size
        self.classifier = _Head(2 * hidden, hidden, 2)
        self.post_init()

    def encode(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return (rows, hidden): GPT-2's end token, else the first token.

        Args:
            input_ids: (rows, length) int64, padded on the right.
            attention_mask: (rows, length) int64; with data flow (rows, length, length), 1 where the
                first column may look at the second, as GraphCodeBERT's script makes it.
            position_ids: With data flow (rows, length) int64: 0 for nodes, the padding's id for
                padding, and more for code.
        """
        if self.config.reads_data_flow:
            return self._graph_states(input_ids, attention_mask, position_ids)[:, 0]
        if self.encoder.config.model_type != "gpt2":
            outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
            return outputs.last_hidden_state[:, 0]
        tokens = self.encoder(input_ids=input_ids, use_cache=False).last_hidden_state
        return tokens[torch.arange(len(tokens), device=tokens.device), attention_mask.sum(1) - 1]

    def _graph_states(self, ids: Tensor, sees: Tensor, positions: Tensor) -> Tensor:
        # Source: microsoft/CodeBERT, GraphCodeBERT/clonedetection/model.py, Model.forward.
        words = self.encoder.embeddings.word_embeddings(ids)
        is_node = positions == 0
        is_code = positions > self.encoder.config.pad_token_id
        own = (is_node[:, :, None] & is_code[:, None, :] & sees.bool()).to(words.dtype)
        means = torch.bmm(own, words) / own.sum(-1, keepdim=True).clamp(min=1.0)
        bias = torch.where(sees.bool(), 0.0, HIDDEN).to(words.dtype)[:, None]
        return self.encoder(
            inputs_embeds=torch.where(is_node[..., None], means, words),
            attention_mask=bias,
            position_ids=positions,
        ).last_hidden_state

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> ClonesOutput:
        """Score pairs: the arguments are those of `encode` as (pairs, 2, ...)."""
        given = (input_ids, attention_mask, position_ids)
        states = self.encode(*(None if x is None else x.flatten(0, 1) for x in given))
        states = states.unflatten(0, input_ids.shape[:2])
        return ClonesOutput(logits=self.classifier(states.flatten(1)), states=states)
