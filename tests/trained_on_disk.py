"""A tiny Gemma-2 with an adapter on it, and the folder of the run that trained it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbhelpers.presets.preset import Preset
from nbhelpers.presets.schema import FinetuneSettings

STEP = "step-00000008"
# Settings of which these tests say nothing else.
NEUTRAL: dict[str, Any] = {
    **{"data": "smoke", "on_bad_rows": "stop", "train_fraction": 1.0, "seq_len": 1024},
    **{"padding": "dynamic", "epochs": 1, "global_batch_size": 1, "per_device_train_batch_size": 1},
    **{"allow_uneven_split": False, "num_gpus": 1, "per_device_eval_batch_size": 1},
    **{"learning_rate": 1e-4, "lr_schedule": "constant", "warmup_ratio": 0.0, "weight_decay": 0.0},
    **{"adam_epsilon": 1e-8, "max_grad_norm": 1.0, "seed": 0, "precision": "auto"},
    **{"attention": "auto", "gradient_checkpointing": False, "logging_steps": 1},
    **{"save_total_limit": 1, "max_skipped_steps": 1, "track": "none", "bootstrap_samples": 100},
    **{"method": "lora", "lora_r": 1, "lora_target_modules": ["all-linear"], "lora_dropout": 0.0},
    **{"packing": False, "loss": "auto", "compile_layers": "off"},
    **{"template": "auto", "remove_duplicates": False, "valid_samples": 1, "eval_samples": 1},
    **{"evaluate": "none", "tasks": [], "mbpp_data": "google-research-datasets/mbpp"},
    **{"run_generated_code": "never", "max_new_tokens": 256, "generation_batch_size": 8},
}
WORDS = ["Write a function that adds two numbers.", "def add(a, b):\n    return a + b\n"]
WORDS += ["Solve this task.\n\n### Instruction:\nReverse a list.\n\n### Response:\n", "x[::-1]"]
SCORES = {
    "n_samples": 40,
    "metrics": {"syntax_accuracy": 0.925, "bleu": 31.4159, "exact_match": 0.1, "stopped": 0.95},
    "intervals": {"syntax_accuracy": [0.85, 0.98], "bleu": [25.0, 38.0]},
    "level": 0.95,
    "signatures": {"bleu": "nrefs:1|case:mixed|tok:none|version:2.5.1"},
    "tokenizer": "python tokens",
    "decoding": {"mode": "greedy", "max_new_tokens": 32},
}


def settings(model: str, **changes: Any) -> FinetuneSettings:
    """Settings of a run on this model."""
    values = NEUTRAL | {"method": "lora", "lora_r": 4, "lora_target_modules": ["all-linear"]}
    values |= {"max_new_tokens": 8, "seq_len": 64, "template": "alpaca", "model": model}
    return FinetuneSettings.model_validate(values | changes)


def result(used: FinetuneSettings, **parts: Any) -> dict[str, Any]:
    """What a finished run of these settings recorded."""
    return {
        "run_id": "finetune-r4-0123456789",
        "job": "finetune",
        "mode": "train",
        "settings": used.model_dump(mode="json"),
        "precision": "bf16",
        "adapter": {"name": used.adapter, "trainable_parameters": 20_766_720},
        "model": {"name": used.model, "revision": "abc123", "parameters": 2_614_341_888},
        "data": {
            "source": used.data,
            "revision": "r1",
            "licence": "not stated",
            "fingerprint": "f" * 16,
            "template": "alpaca",
            "note": "",
            "splits": {"train": {"samples": 18000, "tokens": 3_800_000, "cut": 12}},
            "lengths": {"cut_share": 0.031},
        },
        "scores": {"test": SCORES},
        "training": {"optimizer_steps": 1125, "first_loss": 1.5, "last_loss": 0.7},
        "timing": {"train_s": 612.4},
        "memory": {"measured_bytes": 9 * 2**30},
        "throughput": {"useful_tokens_per_s": 18_250.0},
        "gpu": [{"index": 0, "name": "NVIDIA L4"}],
        "versions": {
            "python": "3.12.1",
            "torch": "2.11.0",
            "peft": "0.20.0",
            "trl": "not installed as a package",
        },
    } | parts


def write_run(folder: Path, used: FinetuneSettings, *, finished: bool = True) -> Path:
    """Write run.json, result.json and generations.jsonl; the checkpoint is for others to add."""
    folder.mkdir(parents=True)
    preset = Preset(
        job="finetune",
        name="test",
        settings=used,
        provenance=dict.fromkeys(FinetuneSettings.model_fields, "a test"),
        why={},
        notes=(),
        gpu=None,
        num_target_gpus=1,
        about="",
        base={},
    )
    record = {"run_id": folder.name, "job": "finetune", "mode": "train"}
    record |= {"command": "nbhelpers train finetune", "preset": preset.to_dict()}
    (folder / "run.json").write_text(json.dumps(record))
    if finished:
        told = result(used, run_id=folder.name)
        del told["model"]["parameters"]  # the tiny model's are others
        (folder / "result.json").write_text(json.dumps(told))
        rows = [
            {
                "split": "test",
                "id": str(i),
                "prompt": WORDS[2],
                "reference": f"x = {i}",
                "answer": "",
            }
            for i in range(6)
        ]
        lines = [
            json.dumps(row) for row in [*rows, {"split": "mbpp", "prompt": "no", "answer": ""}]
        ]
        (folder / "generations.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_adapter_files(folder: Path, **config: Any) -> Path:
    """Write files that have the names of an adapter; nothing can load them."""
    folder.mkdir(parents=True)
    told = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": None} | config
    (folder / "adapter_config.json").write_text(json.dumps(told))
    (folder / "adapter_model.safetensors").write_bytes(b"0")
    return folder


def point_to(run: Path, name: str = STEP) -> None:
    """Make a checkpoint the last and best of a run."""
    index = run / "checkpoints" / "index.json"
    index.write_text(json.dumps({"last": name, "best": name}))


def make_base(folder: Path, *, hidden: int = 64, positions: int = 128) -> Path:
    """Save a random Gemma-2 of two layers with a tokenizer trained on a few words.

    A head of its own, unlike Gemma's: a random model with a tied one repeats its last token.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>", "<bos>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(WORDS, trainer)
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", words.token_to_id("<bos>"))]
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=positions,
        sliding_window=positions,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    Gemma2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(folder: Path, base: Path, *, scale: float = 0.2, r: int = 4) -> Path:
    """Save a random adapter with the base's tokenizer beside it; scale 0 leaves B at zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    config = LoraConfig(r=r, lora_alpha=2 * r, target_modules="all-linear", task_type="CAUSAL_LM")
    plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    model = get_peft_model(plain, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=scale)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder
