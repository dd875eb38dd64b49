"""Promise: the sizes of a causal model are those of the library, and a folder or hub id brings its
own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbhelpers.budget.formulas import GIB, weight_bytes
from nbhelpers.budget.shapes import (
    GEMMA_2_2B,
    PROJECTIONS,
    SMOKE_CAUSAL,
    SMOLLM2_135M,
    CausalShape,
    find_shape,
)
from nbhelpers.presets.loading import load_preset

LLAMA = CausalShape(
    family="llama",
    hidden=128,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    inner=512,
    vocab=2000,
    positions=1024,
)


@pytest.mark.parametrize(("r", "count"), [(8, 10_383_360), (16, 20_766_720), (32, 41_533_440)])
def test_adapters_on_all_seven_projections_have_the_published_sizes(r, count):
    assert GEMMA_2_2B.adapter_parameters(r, PROJECTIONS) == count
    assert GEMMA_2_2B.adapter_parameters(r, ["all-linear"]) == count


def test_weights_in_16_bits_are_5_23_gb_and_in_4_bits_with_an_adapter_2_17_gib():
    assert GEMMA_2_2B.parameters() == 2_614_341_888
    half = weight_bytes(GEMMA_2_2B, precision="bf16", is_quantised=False)
    assert half / 1e9 == pytest.approx(5.23, abs=0.005)
    four = weight_bytes(GEMMA_2_2B, precision="bf16", is_quantised=True)
    adapter = 4 * GEMMA_2_2B.adapter_parameters(16, PROJECTIONS)
    assert (four + adapter) / GIB == pytest.approx(2.17, rel=0.015)
    whole = weight_bytes(GEMMA_2_2B, precision="fp32", is_quantised=False)
    assert whole / 1e9 == pytest.approx(10.46, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SMOKE_CAUSAL, LLAMA], ids=["gemma2", "llama"])
def test_the_counts_are_those_of_the_library(shape):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

    config = (Gemma2Config if shape.family == "gemma2" else LlamaConfig)(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == shape.parameters()
        lora = LoraConfig(r=8, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM")
        tuned = get_peft_model(model, lora)
    trained = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
    assert trained == shape.adapter_parameters(8, PROJECTIONS)


def shape_of_folder(folder: Path, config: object) -> object:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = load_preset("finetune", "base").settings
    return find_shape(settings.model_copy(update={"model": str(folder)}))


GEMMA_CONFIG = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 9216,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
}
LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def test_a_local_folder_gives_its_own_shape(tmp_path):
    assert shape_of_folder(tmp_path, GEMMA_CONFIG) == GEMMA_2_2B
    assert shape_of_folder(tmp_path, LLAMA_CONFIG) == SMOLLM2_135M
    untied = shape_of_folder(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": False})
    assert untied.parameters() - SMOLLM2_135M.parameters() == 49152 * 576


@pytest.mark.parametrize(
    "config",
    [
        [],
        {},
        {"model_type": "gpt2", "n_embd": 64},
        LLAMA_CONFIG | {"hidden_size": "x"},
        LLAMA_CONFIG | {"num_attention_heads": 0},
        LLAMA_CONFIG | {"vocab_size": -1},
    ],
)
def test_a_folder_of_an_unknown_shape_gives_none_instead_of_a_guess(tmp_path, config):
    assert shape_of_folder(tmp_path, config) is None


def test_the_hub_ids_and_short_names_have_known_sizes():
    for model, shape in {"gemma-2-2b": GEMMA_2_2B, "gemma-2-2b-it": GEMMA_2_2B}.items():
        settings = load_preset("finetune", "base", overrides={"model": model}).settings
        assert find_shape(settings) is shape
        named = load_preset("finetune", "base", overrides={"model": f"google/{model}"})
        assert named.settings == settings
    settings = load_preset("finetune", "base", overrides={"model": "smollm2"}).settings
    assert find_shape(settings) is SMOLLM2_135M
    assert find_shape(load_preset("finetune", "smoke").settings) is SMOKE_CAUSAL


def test_the_smoke_models_vocabulary_is_small_and_its_heads_divide():
    assert SMOKE_CAUSAL.vocab <= 1200 and SMOKE_CAUSAL.heads % SMOKE_CAUSAL.kv_heads == 0
    assert SMOKE_CAUSAL.parameters() < 2_000_000
