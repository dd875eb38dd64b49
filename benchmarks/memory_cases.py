"""The configurations of the memory grid: what is trained, and how, as plain dictionaries.

Each names only what differs from `DEFAULTS`; `memory_cases_steps.make` turns one into the
functions `build` and `step`, and `memory_cases_jobs` holds the jobs of this package.
"""

from __future__ import annotations

import copy
from typing import Any

Case = dict[str, Any]

DEFAULTS: Case = {
    "task": "causal",  # causal, classify, masked, seq2seq, image, speech, pairs, graph
    "batch": 4,
    "length": 512,
    "target": 64,  # tokens of the answer, where encoder and decoder differ
    "padding": True,  # False, True or "left"
    "mask": "ones",  # "none": no mask is handed over where nothing is padded
    "sizes": {},  # changes of the family's configuration
    "layers": 0,  # 0: as the family has
    "weights": "bfloat16",
    "autocast": None,
    "scaler": False,
    "attention": "sdpa",
    "without": [],  # attention kernels switched off
    "only": None,  # the one attention kernel allowed
    "checkpointing": None,  # "plain" or "reentrant"
    "adapter": None,
    "quantise": None,  # "nf4" or "int8"
    "prepare": True,
    "compute": None,
    "loss": "own",  # own, logits, chunked, liger
    "liger": "loss",
    "optimizer": "adamw",
    "accumulate": 1,
    "clip": 1.0,
    "set_to_none": True,
    "keep_outputs": False,
    "feed": "build",  # "step": the batch moves to the GPU in every step
    "place": "device",  # "to": built on the CPU
    "ddp": False,
    "compile": False,
    "tiny": False,
}


def lora(rank: int = 16, **options: Any) -> Case:
    """Return a LoRA adapter on all seven projections."""
    return {"kind": "lora", "r": rank} | options


_G: Case = {"family": "gemma2", "adapter": lora()}
_GC = _G | {"checkpointing": "plain"}
_Q = _GC | {"quantise": "nf4"}
_BF16: Case = {"autocast": "bfloat16"}
_FP16: Case = {"autocast": "float16", "scaler": True}
_EAGER: Case = {"attention": "eager"}
_FULL: Case = {"weights": "float32"}
_C = _FULL | {"family": "codebert", "task": "classify"}
_GPT = _FULL | {"family": "gpt2_body", "task": "pairs", "sizes": {}}
_GRAPH = _FULL | {"family": "roberta_body", "task": "graph", "length": 512}
_QW: Case = {"family": "qwen2", "adapter": lora()}
_BARE = lora(lora_dropout=0.0)

GEMMA: dict[str, Case] = {
    "gemma-lora8-4x512": _G | {"adapter": lora(8)},
    "gemma-lora16-4x512": _G,
    "gemma-lora32-2x512-full-rows": _G | {"adapter": lora(32), "batch": 2, "padding": False},
    "gemma-lora16-eager-4x512-ckpt": _GC | _EAGER,
    "gemma-lora16-8x768-ckpt": _GC | {"batch": 8, "length": 768},
    "gemma-lora16-5x611-ckpt": _GC | {"batch": 5, "length": 611},
    "gemma-lora16-3x1000": _G | {"batch": 3, "length": 1000},
    "gemma-lora16-autocast-4x512": _G | _BF16,
    "gemma-lora16-autocast-4x512-ckpt": _GC | _BF16,
    "gemma-lora16-fp16-scaler-4x512-ckpt": _GC | _FP16 | {"weights": "float16"},
    "gemma-lora16-fp16-eager-4x384": _G | _FP16 | _EAGER | {"weights": "float16", "length": 384},
    "gemma-lora16-nodrop-4x512": _G | {"adapter": _BARE},
    "gemma-lora16-bf16adapter-4x512": _G | {"adapter": lora(fp32=False)},
    "gemma-lora16-nocudnn-4x512": _G | {"without": ["cudnn"]},
    "gemma-lora16-noflash-4x512": _G | {"without": ["cudnn", "flash"]},
    "gemma-lora16-math-2x384": _G | {"only": "MATH", "batch": 2, "length": 384},
    "gemma-lora16-flex-4x512-ckpt": _GC | {"attention": "flex_attention"},
    "gemma-lora16-chunked-8x768-ckpt": _GC | {"loss": "chunked", "batch": 8, "length": 768},
    "gemma-lora16-chunked-6x700": _G | {"loss": "chunked", "batch": 6, "length": 700},
    "gemma-lora16-logits-2x640-ckpt": _GC | {"loss": "logits", "batch": 2, "length": 640},
    "gemma-lora16-liger-8x768-ckpt": _GC | {"loss": "liger", "batch": 8, "length": 768},
    "gemma-lora16-liger-all-4x1024": _G | {"loss": "liger", "liger": "all", "length": 1024},
    "gemma-lora16-keep-8x512-ckpt": _GC | {"keep_outputs": True, "batch": 8},
    "gemma-lora16-left-3x777-ckpt": _GC | {"padding": "left", "batch": 3, "length": 777},
    "gemma-lora16-accumulate-2x512": _G | {"batch": 2, "accumulate": 3},
    "gemma-lora16-ddp-4x512-ckpt": _GC | {"ddp": True},
    "gemma-lora16-reentrant-4x512": _G | {"checkpointing": "reentrant"},
    "gemma-qlora16-4x512-ckpt": _Q,
    "gemma-qlora16-8x768-autocast-ckpt": _Q | _BF16 | {"batch": 8, "length": 768},
    "gemma-qlora16-noprepare-4x512": _Q | {"prepare": False, "checkpointing": None},
    "gemma-qlora16-fp16-3x500-ckpt": _Q | _FP16 | {"weights": "float16", "batch": 3, "length": 500},
    "gemma-qlora16-chunked-4x512-reentrant": _Q | {"loss": "chunked", "checkpointing": "reentrant"},
    "gemma-qlora16-eager-2x512-adam8": _Q | _EAGER | {"batch": 2, "optimizer": "AdamW8bit"},
    "gemma-lora-embeddings-2x384": _GC
    | {"adapter": lora(modules_to_save=["embed_tokens"]), "batch": 2, "length": 384},
    "gemma-dora16-2x512-ckpt": _GC | {"adapter": lora(use_dora=True), "batch": 2},
    "gemma-full-4layers-2x512": {"family": "gemma2", "sizes": {"num_hidden_layers": 4}, "batch": 2},
}

ENCODERS: dict[str, Case] = {
    "codebert-fp16-128x512": _C | _FP16 | {"batch": 128},
    "codebert-fp16-eager-32x512": _C | _FP16 | _EAGER | {"batch": 32},
    "codebert-bf16-32x256": _C | _BF16 | {"batch": 32, "length": 256},
    "codebert-fp32-32x256": _C | {"batch": 32, "length": 256},
    "codebert-fp32-7x133": _C | {"batch": 7, "length": 133},
    "codebert-fp32-eager-7x133": _C | _EAGER | {"batch": 7, "length": 133},
    "codebert-purebf16-32x256": _C | {"weights": "bfloat16", "batch": 32, "length": 256},
    "codebert-bf16-full-rows-64x200": _C | _BF16 | {"padding": False, "batch": 64, "length": 200},
    "codebert-bf16-nomask-16x512": _C
    | _BF16
    | {"padding": False, "mask": "none", "batch": 16, "without": ["cudnn"]},
    "codebert-bf16-ckpt-64x512": _C | _BF16 | {"batch": 64, "checkpointing": "plain"},
    "codebert-bf16-fused-16x512": _C | _BF16 | {"batch": 16, "optimizer": "adamw_fused"},
    "codebert-fp16-fused-16x301": _C
    | _FP16
    | {"batch": 16, "length": 301, "optimizer": "adamw_fused"},
    "codebert-bf16-loop-8x256": _C | _BF16 | {"optimizer": "adamw_loop", "batch": 8, "length": 256},
    "codebert-sgd-8x256": _C | _BF16 | {"optimizer": "sgd", "batch": 8, "length": 256},
    "codebert-adafactor-8x256": _C | _BF16 | {"optimizer": "adafactor", "batch": 8, "length": 256},
    "codebert-adam8-8x256": _C | _BF16 | {"optimizer": "AdamW8bit", "batch": 8, "length": 256},
    "codebert-zeros-16x256": _C | _BF16 | {"set_to_none": False, "batch": 16, "length": 256},
    "codebert-accumulate-8x384": _C | _FP16 | {"accumulate": 4, "batch": 8, "length": 384},
    "codebert-ddp-16x256": _C | _FP16 | {"ddp": True, "batch": 16, "length": 256},
    "codebert-ddp-view-16x256": _C
    | {"ddp": {"gradient_as_bucket_view": True}, "batch": 16, "length": 256},
    "codebert-noclip-feed-24x320": _C
    | _BF16
    | {"clip": None, "feed": "step", "place": "to", "batch": 24, "length": 320},
    "codebert-compile-32x256": _C | _BF16 | {"compile": True, "batch": 32, "length": 256},
    "bert-mlm-bf16-24x384": _FULL
    | _BF16
    | {"family": "bert_mlm", "task": "masked", "batch": 24, "length": 384},
    "modernbert-mlm-8x512": _FULL | _BF16 | {"family": "modernbert", "task": "masked", "batch": 8},
    "deberta-bf16-8x256": _FULL
    | _BF16
    | {"family": "deberta", "task": "classify", "attention": None, "batch": 8, "length": 256},
    "vit-bf16-64": _FULL | _BF16 | {"family": "vit", "task": "image", "batch": 64},
}

PAIRS: dict[str, Case] = {
    "codegpt-fp32-eager-4x512": _GPT | _EAGER,
    "codegpt-fp32-8x1024": _GPT | {"batch": 8, "length": 1024},
    "codegpt-bf16-8x1024": _GPT | _BF16 | {"batch": 8, "length": 1024},
    "codegpt-fp16-16x400": _GPT | _FP16 | {"batch": 16, "length": 400},
    "graph-fp32-eager-8x512": _GRAPH | _EAGER | {"batch": 8},
    "graph-fp16-16x512": _GRAPH | _FP16 | {"batch": 16},
    "graph-bf16-5x333": _GRAPH | _BF16 | {"batch": 5, "length": 333},
    "graph-fp32-6x400": _GRAPH | {"batch": 6, "length": 400},
}

OTHERS: dict[str, Case] = {
    "gpt2-lm-bf16-8x512": _FULL | _BF16 | {"family": "gpt2", "batch": 8},
    "llama-full-4x512": {"family": "llama", "sizes": {"num_hidden_layers": 4}},
    "llama-rslora-4x640": {"family": "llama", "adapter": lora(use_rslora=True), "length": 640},
    "llama-ia3-6x400": {
        "family": "llama",
        "adapter": {"kind": "ia3"},
        "batch": 6,
        "length": 400,
    },
    "llama-vera-4x512": {"family": "llama", "adapter": {"kind": "vera"}},
    "llama-loha-4x512": {"family": "llama", "adapter": {"kind": "loha"}, **_BF16},
    "llama-int8-4x512": {
        "family": "llama",
        "weights": "float16",
        "quantise": "int8",
        "adapter": lora(),
        **_FP16,
    },
    "qwen2-lora16-4x512": _QW,
    "qwen2-prefix-4x384": _QW
    | {"adapter": {"kind": "prefix", "num_virtual_tokens": 20}}
    | {"length": 384},
    "qwen2-prompt-4x384": _QW
    | {"adapter": {"kind": "prompt", "num_virtual_tokens": 16}}
    | {"length": 384},
    "qwen2-dora8-autocast-3x500": _QW
    | _BF16
    | {"adapter": lora(8, use_dora=True), "batch": 3, "length": 500},
    "qwen2-liger-all-8x512": _QW | {"loss": "liger", "liger": "all", "batch": 8},
    "qwen3-full-bf16-2x768": {"family": "qwen3", "batch": 2, "length": 768}
    | {"sizes": {"num_hidden_layers": 8}},
    "mistral-window-2x900": {"family": "mistral", "batch": 2, "length": 900, "adapter": lora()},
    "phi-full-autocast-4x512": _FULL | _BF16 | {"family": "phi"},
    "mixtral-full-4x256": {"family": "mixtral", "length": 256},
    "starcoder2-full-adam8-2x512": {"family": "starcoder2", "batch": 2, "optimizer": "AdamW8bit"},
    "codet5-fp32-8x256": _FULL
    | {"family": "codet5", "task": "seq2seq", "attention": None, "batch": 8, "length": 256},
    "codet5-bf16-16x400": _FULL
    | _BF16
    | _EAGER
    | {"family": "codet5", "task": "seq2seq", "batch": 16, "length": 400, "target": 150},
    "codet5-bf16-sdpa-4x200": _FULL
    | _BF16
    | {"family": "codet5", "task": "seq2seq", "length": 200},
    "whisper-fp16-4": _FULL | _FP16 | {"family": "whisper", "task": "speech", "batch": 4},
}

ALL: dict[str, Case] = GEMMA | ENCODERS | PAIRS | OTHERS

# Sizes for a CPU: (batch, length, length of the answer).
_TINY_SIZES: Case = {"batch": 2, "length": 24, "target": 6, "tiny": True}


def find_case(name: str, *, tiny: bool = False) -> Case:
    """Return a configuration with all its values; `tiny` cuts layers, widths and batch.

    A name may change whole numbers, and say how the allocator is set:
    `codebert-fp32-7x133:batch=9,length=200@14.3+expandable` may use 14.3 GiB, in segments that
    grow.

    Raises:
        KeyError: No configuration has this name.
    """
    plain, _, changes = without_cap(name).partition("+")[0].partition(":")
    case = DEFAULTS | copy.deepcopy(ALL[plain]) | {"name": name}
    for change in filter(None, changes.split(",")):
        key, _, value = change.partition("=")
        if not isinstance(case.get(key), int):
            raise KeyError(f"{key} is not a whole number of {plain}")
        case[key] = int(value)
    return case | _TINY_SIZES if tiny else case


def without_cap(name: str) -> str:
    """Return a name without the cap in it."""
    before, at, behind = name.partition("@")
    return before + ("+expandable" if at and is_expandable(behind) else "")


def cap_of(name: str) -> float | None:
    """Return the GiB that a name lets the allocator have, None for all of the GPU."""
    _, at, behind = name.partition("@")
    return float(behind.partition("+")[0]) if at else None


def is_expandable(name: str) -> bool:
    """Say whether the allocator's segments may grow."""
    return name.endswith("+expandable")


def is_quantised(case: Case) -> bool:
    """Say whether bitsandbytes has a part in it."""
    return bool(case["quantise"]) or "8bit" in case["optimizer"]


def runs_on_cpu(case: Case) -> bool:
    """Say whether the tiny version runs where there is no GPU and no Triton."""
    needs_gpu = case["loss"] == "liger" or case["attention"] == "flex_attention"
    return not needs_gpu and not case["compile"]
