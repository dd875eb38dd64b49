"""Networks of the memory grid: public architectures from their configuration classes.

Weights are random, as no value decides how much memory a step takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# family: (transformers model type, Auto class, sizes, what the tiny version changes)
_TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320}
_TINY |= {"intermediate_size": 96}
_TINY_KV = _TINY | {"num_key_value_heads": 2}
_ROBERTA = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_ROBERTA |= {"intermediate_size": 3072, "vocab_size": 50265, "max_position_embeddings": 514}
_ROBERTA |= {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50260}
_GPT2 |= {"pad_token_id": 1, "use_cache": False}
_TINY_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320}
_LLAMA = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32}
_LLAMA |= {"num_key_value_heads": 8, "intermediate_size": 5632, "vocab_size": 32000}
_LLAMA |= {"use_cache": False}

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")

FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        "gemma2",
        "AutoModelForCausalLM",
        {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8}
        | {"num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216}
        | {"vocab_size": 256000, "query_pre_attn_scalar": 256, "use_cache": False},
        _TINY_KV | {"head_dim": 16, "query_pre_attn_scalar": 16},
    ),
    "llama": ("llama", "AutoModelForCausalLM", _LLAMA, _TINY_KV),
    "qwen2": (
        "qwen2",
        "AutoModelForCausalLM",
        {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936}
        | {"tie_word_embeddings": True, "use_cache": False},
        _TINY_KV,
    ),
    "qwen3": (
        "qwen3",
        "AutoModelForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072}
        | {"vocab_size": 151936, "tie_word_embeddings": True, "use_cache": False},
        _TINY_KV | {"head_dim": 16},
    ),
    "mistral": (
        "mistral",
        "AutoModelForCausalLM",
        _LLAMA | {"sliding_window": 256, "num_hidden_layers": 6},
        _TINY_KV | {"sliding_window": 8},
    ),
    "phi": (
        "phi",
        "AutoModelForCausalLM",
        {"hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32}
        | {"intermediate_size": 8192, "vocab_size": 51200, "use_cache": False},
        _TINY,
    ),
    "mixtral": (
        "mixtral",
        "AutoModelForCausalLM",
        {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
        | {"num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32000}
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "use_cache": False},
        _TINY_KV | {"num_local_experts": 4},
    ),
    "gpt2": ("gpt2", "AutoModelForCausalLM", _GPT2, _TINY_GPT2),
    "starcoder2": (
        "starcoder2",
        "AutoModelForCausalLM",
        {"hidden_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 12}
        | {"num_key_value_heads": 2, "intermediate_size": 6144, "vocab_size": 49152}
        | {"use_cache": False},
        _TINY_KV,
    ),
    "codebert": ("roberta", "AutoModelForSequenceClassification", _ROBERTA, _TINY),
    "roberta_body": ("roberta", "AutoModel", _ROBERTA, _TINY),
    "gpt2_body": ("gpt2", "AutoModel", _GPT2, _TINY_GPT2),
    "bert_mlm": (
        "bert",
        "AutoModelForMaskedLM",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"intermediate_size": 3072, "vocab_size": 30522},
        _TINY,
    ),
    "modernbert": (
        "modernbert",
        "AutoModelForMaskedLM",
        {"hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12}
        | {"intermediate_size": 1152, "vocab_size": 50368, "reference_compile": False},
        _TINY
        | {"pad_token_id": 1, "cls_token_id": 2, "sep_token_id": 3}
        | {"bos_token_id": 2, "eos_token_id": 3},
    ),
    "deberta": (
        "deberta-v2",
        "AutoModelForSequenceClassification",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"intermediate_size": 3072, "vocab_size": 128100, "relative_attention": True}
        | {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
        | {"pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
        | {"type_vocab_size": 0, "pooler_hidden_size": 768},
        _TINY | {"pooler_hidden_size": 64},
    ),
    "vit": (
        "vit",
        "AutoModelForImageClassification",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"intermediate_size": 3072, "image_size": 224, "patch_size": 16},
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 96, "image_size": 32, "patch_size": 16},
    ),
    "codet5": (
        "t5",
        "AutoModelForSeq2SeqLM",
        {"d_model": 768, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12}
        | {"d_kv": 64, "d_ff": 3072, "vocab_size": 32100, "decoder_start_token_id": 0}
        | {"pad_token_id": 0, "use_cache": False},
        {"d_model": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 16}
        | {"d_ff": 96, "vocab_size": 320},
    ),
    "whisper": (
        "whisper",
        "AutoModelForSpeechSeq2Seq",
        {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12}
        | {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
        | {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "vocab_size": 51865}
        | {"use_cache": False},
        {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
        | {"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
        | {"max_source_positions": 20, "vocab_size": 320, "pad_token_id": 1}
        | {"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2},
    ),
}


def config_of(case: dict[str, Any]) -> Any:
    """Return the configuration of a case's network."""
    from transformers import AutoConfig

    kind, _, sizes, tiny = FAMILIES[case["family"]]
    values = sizes | (tiny if case["tiny"] else {}) | case["sizes"]
    if layers := 2 if case["tiny"] else case["layers"]:
        values |= {name: layers for name in _LAYERS if name in values}
    return AutoConfig.for_model(kind, **values)


def build_network(case: dict[str, Any], device: str) -> nn.Module:
    """Make the network on the device, or on the CPU to be moved there (`place: "to"`)."""
    import transformers

    auto = getattr(transformers, FAMILIES[case["family"]][1])
    options = {"dtype": getattr(torch, case["weights"])}
    if case["attention"]:
        options["attn_implementation"] = case["attention"]
    with torch.device("cpu" if case["place"] == "to" else device):
        model = auto.from_config(config_of(case), **options)
        if case["task"] in ("pairs", "graph"):
            model = PairClassifier(model, case["task"] == "graph").to(options["dtype"])
    return model.to(device) if case["place"] == "to" else model


class PairClassifier(nn.Module):
    """Both functions of a pair through one encoder as two rows, then a head over the two vectors.

    With `graph`, an average over the tokens that a data-flow node stands for takes the node's
    embedding's place, and attention follows a mask of its own (batch, length, length).
    """

    def __init__(self, body: nn.Module, graph: bool) -> None:
        super().__init__()
        self.body, self.graph = body, graph
        size = body.config.hidden_size
        self.drop = nn.Dropout(0.1)
        self.dense = nn.Linear(2 * size, size)
        self.out = nn.Linear(size, 2)

    def forward(
        self,
        input_ids: torch.Tensor,  # (2 * pairs, length)
        attention_mask: torch.Tensor,  # (2 * pairs, length), or (2 * pairs, length, length)
        labels: torch.Tensor,  # (pairs,)
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss."""
        if self.graph:
            hidden = self._encode_graph(input_ids, attention_mask, position_ids)
        else:
            hidden = self.body(input_ids=input_ids, attention_mask=attention_mask)[0]
        last = -1 if self.body.config.model_type == "gpt2" else 0
        pair = hidden[:, last].reshape(-1, 2 * hidden.shape[-1])
        pair = torch.tanh(self.dense(self.drop(pair)))
        return nn.functional.cross_entropy(self.out(self.drop(pair)), labels)

    def _encode_graph(
        self, input_ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        embedded = self.body.get_input_embeddings()(input_ids)
        nodes, tokens = positions.eq(0), positions.ge(2)
        share = (nodes[:, :, None] & tokens[:, None, :] & mask).to(embedded.dtype)
        share = share / (share.sum(-1) + 1e-10)[:, :, None]
        mean = torch.einsum("abc,acd->abd", share, embedded)
        embedded = embedded * (~nodes)[:, :, None] + mean * nodes[:, :, None]
        out = self.body(
            inputs_embeds=embedded,
            attention_mask=mask[:, None],
            position_ids=positions,
            token_type_ids=positions.eq(-1).long(),
        )
        return out[0]
