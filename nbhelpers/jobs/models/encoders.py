"""Build encoder and tokenizer: the hub's weights, a local folder, or the small `smoke` models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.budget.shapes import SMOKE_MODELS, Shape
from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.model_config import encoder_config, is_own, own_config
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.clones import CloneModel, head_dropout, set_dropout
from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, SPECIAL_TOKENS, train_bpe
from nbhelpers.jobs.models.weights import Weights, find_weights
from nbhelpers.presets.schema import LARGEST, ClonesSettings, Settings

NEW_TOKENIZER_VOCAB = 8000
FAMILIES = ("gpt2", "roberta")
CONFIG = "config.json"
ENDINGS = {"bert": "sep_token_id", "modernbert": "sep_token_id"}  # where there is no end token
_FETCH_WEIGHTS = "fetch them again; weights and config.json must be of the same model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokeniser:
    """A tokenizer and the model configuration that it belongs to."""

    tokenizer: Any
    config: Any
    weights: Weights | None
    note: str

    def save(self, folder: Path, model_type: str) -> None:
        """Write both into a folder, as a checkpoint of one of our model types has them."""
        inner = json.loads(self.config.to_json_string())
        write_json(folder / CONFIG, own_config(model_type, inner))
        self.tokenizer.save_pretrained(folder)


def read_config(folder: Path) -> Any:
    """Return the encoder's configuration in a folder: of a bare model, or of one of ours."""
    from transformers import CONFIG_MAPPING, AutoConfig

    saved = read_json(folder / CONFIG) or {}
    if not is_own(saved):
        return AutoConfig.from_pretrained(folder)
    inner = dict(encoder_config(saved))
    return CONFIG_MAPPING[inner["model_type"]].from_dict(inner)


def build_tokenizer(settings: ClonesSettings, train_texts: Sequence[str]) -> Tokeniser:
    """Return tokenizer and configuration; `smoke` and bare folders train a tokenizer first.

    Raises:
        ConfigError: Not an architecture that this job encodes, or seq_len exceeds its positions.
    """
    if settings.model in SMOKE_MODELS:
        tokeniser = smoke_tokenizer(SMOKE_MODELS[settings.model], train_texts)
    else:
        tokeniser = read_tokenizer(settings, train_texts)
    fit(tokeniser, settings)
    if settings.data_flow_length is not None and tokeniser.config.model_type != "roberta":
        raise ConfigError(
            f"data_flow_length is for RoBERTa models; {settings.model} is a "
            f"{tokeniser.config.model_type!r} model.",
            fix="leave data_flow_length out, or use model=graphcodebert",
        )
    return tokeniser


def fit(tokeniser: Tokeniser, settings: Settings) -> None:
    """Set a configuration's dropout, where the model has positions for `seq_len`.

    Raises:
        ConfigError: It has not.
    """
    positions = code_positions(tokeniser.config)
    if settings.seq_len > positions:
        raise ConfigError(
            f"seq_len={settings.seq_len} exceeds the {positions} positions of {settings.model}.",
            fix=f"set seq_len to {positions} or less",
        )
    set_dropout(tokeniser.config, settings.dropout)


def code_positions(config: Any) -> int:
    """Return how many tokens of code the table of positions can number."""
    if config.model_type == "gpt2":
        return config.n_positions
    if config.model_type == "t5":
        return LARGEST  # its positions are relative
    if config.model_type in ("bert", "modernbert"):
        return config.max_position_embeddings
    # RoBERTa numbers tokens from the position after padding's.
    return config.max_position_embeddings - config.pad_token_id - 1


def smoke_tokenizer(
    shape: Shape, train_texts: Sequence[str], *, collapse: bool = True
) -> Tokeniser:
    """Train a tokenizer on the texts and return it with the configuration of a small model."""
    special = SPECIAL_TOKENS if shape.family == "gpt2" else ROBERTA_TOKENS
    tokenizer = train_bpe(train_texts, shape.vocab, special_tokens=special, collapse=collapse)
    options = {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id}
    options |= {"eos_token_id": tokenizer.eos_token_id}
    if shape.family != "gpt2":
        options |= {"layer_norm_eps": 1e-5, "pad_token_id": tokenizer.pad_token_id}
    config = config_of(shape, **options)
    note = f"byte-level BPE of {len(tokenizer)} words, trained on the train functions"
    return Tokeniser(tokenizer=tokenizer, config=config, weights=None, note=note)


def config_of(shape: Shape, **options: Any) -> Any:
    """Return a GPT-2's, BERT's or RoBERTa's configuration in these sizes.

    Args:
        options: Beside or in the place of what follows from the sizes.
    """
    from transformers import BertConfig, GPT2Config, RobertaConfig

    if shape.family == "gpt2":
        sizes = {
            "vocab_size": shape.vocab,
            "n_positions": shape.positions,
            "n_embd": shape.hidden,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": None if shape.inner == 4 * shape.hidden else shape.inner,
            "resid_pdrop": shape.dropout,
            "embd_pdrop": shape.dropout,
            "attn_pdrop": shape.dropout,
        }
        return GPT2Config(**sizes | options)
    sizes = {
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "type_vocab_size": shape.token_types,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": max(0, shape.spare_positions - 1),
    }
    return (BertConfig if shape.family == "bert" else RobertaConfig)(**sizes | options)


def read_tokenizer(
    settings: Settings,
    train_texts: Sequence[str],
    *,
    families: tuple[str, ...] = FAMILIES,
    weights: Weights | None = None,
    collapse: bool = True,
) -> Tokeniser:
    """Return tokenizer and configuration of a hub id or a folder.

    Args:
        train_texts: A tokenizer is trained on them where the folder holds none and the weights are
            random.
        families: Values of `model_type` that the job encodes.
        weights: Where they are, if that is known.
        collapse: Read any white space as one blank.

    Raises:
        ConfigError: The folder holds no model of these families, or no tokenizer.
    """
    from transformers import AutoTokenizer

    weights = weights or find_weights(
        settings.model, settings.model_revision, with_weights=not settings.random_weights
    )
    if not (weights.folder / CONFIG).is_file():
        raise ConfigError(
            f"{settings.model} holds no config.json.", fix="give the folder of a Hugging Face model"
        )
    with _reading(settings.model, "config.json", "give the folder of a Hugging Face model"):
        config = read_config(weights.folder)
    if config.model_type not in families:
        raise ConfigError(
            f"{settings.model} is a {config.model_type!r} model; this job encodes models of the "
            f"types {', '.join(families)}.",
            fix="use model=graphcodebert or codebert, or a checkpoint of these types",
        )
    if list(weights.folder.glob("tokenizer.json")) or (weights.folder / "vocab.json").is_file():
        with _reading(settings.model, "tokenizer", "fetch its tokenizer.json again"):
            tokenizer = AutoTokenizer.from_pretrained(weights.folder, config=config)
        note = f"{type(tokenizer).__name__} of {weights.name}"
    elif settings.random_weights:
        special = SPECIAL_TOKENS if config.model_type == "gpt2" else ROBERTA_TOKENS
        tokenizer = train_bpe(
            train_texts, NEW_TOKENIZER_VOCAB, special_tokens=special, collapse=collapse
        )
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        note = f"byte-level BPE of {len(tokenizer)} words, trained on the train functions"
    else:
        raise ConfigError(
            f"{settings.model} holds no tokenizer.", fix="put tokenizer.json beside config.json"
        )
    if config.model_type == "gpt2":
        # With a pad id, transformers looks for padding in every forward pass: a host-device sync.
        config.pad_token_id = None
    else:
        _agree_on_padding(settings.model, config, tokenizer)
    name_ends(tokenizer, config.model_type)
    return Tokeniser(tokenizer=tokenizer, config=config, weights=weights, note=note)


def name_ends(tokenizer: Any, family: str) -> None:
    """Let `[CLS]` and `[SEP]` be known as the beginning and the end, as other models call them."""
    if family in ENDINGS and tokenizer.eos_token_id is None:
        tokenizer.bos_token, tokenizer.eos_token = tokenizer.cls_token, tokenizer.sep_token


@contextmanager
def _reading(model: str, part: str, fix: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a reader raise into an error with a fix."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # tokenizers and safetensors raise bare ones of their own
        text = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise ConfigError(f"The {part} of {model} cannot be used: {text}", fix=fix) from error


def _agree_on_padding(model: str, config: Any, tokenizer: Any) -> None:
    """Take the tokenizer's padding where the configuration names none.

    RoBERTa numbers positions from the one after its padding's, so two paddings would shift them.

    Raises:
        ConfigError: They name different ones, or the tokenizer none.
    """
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None or config.pad_token_id != tokenizer.pad_token_id:
        raise ConfigError(
            f"The padding of {model} has id {config.pad_token_id} in config.json and id "
            f"{tokenizer.pad_token_id} in the tokenizer.",
            fix="take tokenizer and config.json from the same model; RoBERTa's padding is 1",
        )


def build_clone_model(
    settings: ClonesSettings,
    tokeniser: Tokeniser,
    *,
    pretrain: Callable[[Any], Any] | None = None,
) -> CloneModel:
    """Return the clone model in fp32: pretrained encoder, new head. Seed before you call.

    Args:
        pretrain: Given the `smoke` configuration, returns its pre-trained encoder.
    """
    is_smoke = settings.model in SMOKE_MODELS
    encoder = build_encoder(
        settings,
        tokeniser,
        is_random=is_smoke or settings.random_weights,
        pretrain=pretrain if is_smoke and settings.pretrain_steps else None,
    )
    packed = settings.padding == "dynamic"
    return CloneModel(encoder, dropout=head_dropout(tokeniser.config), packed=packed)


def build_encoder(
    settings: Settings,
    tokeniser: Tokeniser,
    *,
    is_random: bool,
    pretrain: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the bare encoder in fp32: pretrained, random, or what `pretrain` makes."""
    import torch

    config = tokeniser.config
    build, options = encoder_class(config)
    attention = "eager" if settings.attention == "eager" else "sdpa"
    config._attn_implementation = attention
    if attention == "sdpa" and getattr(config, "activation_function", "") == "gelu_new":
        # The same formula in one kernel; under autocast `gelu_new` computes it in fp32, in eight.
        config.activation_function = "gelu_pytorch_tanh"
    if pretrain is not None:
        encoder = pretrain(config)
    elif is_random:
        encoder = new_encoder(config)
    else:
        with _reading(settings.model, "weights", _FETCH_WEIGHTS):
            encoder, facts = build.from_pretrained(
                tokeniser.weights.folder,
                config=config,
                dtype=torch.float32,
                attn_implementation=attention,
                output_loading_info=True,
                **options,
            )
        _require_all(settings.model, facts["missing_keys"])
        encoder = _without_alias(encoder)
    if settings.gradient_checkpointing:
        encoder.gradient_checkpointing_enable({"use_reentrant": False})
    return encoder


def _require_all(model: str, missing: Iterable[str]) -> None:
    """Stop where weights left a part of the encoder random.

    Raises:
        ConfigError: Names what is missing.
    """
    if names := sorted(missing):
        raise ConfigError(
            f"The weights of {model} lack {len(names)} tensors of the encoder "
            f"({', '.join(names[:3])}), which would stay random.",
            fix="give a folder of a bare encoder; of a run of ours, the folder encoder of its "
            "export (nbhelpers export RUN OUT)",
        )


def new_encoder(config: Any) -> Any:
    """Return an encoder with random weights."""
    build, options = encoder_class(config)
    return _without_alias(build(config, **options))


def _without_alias(encoder: Any) -> Any:
    """Return T5's stack itself: around it the embedding has a second name, and is saved twice."""
    return encoder.encoder if encoder.config.model_type == "t5" else encoder


def encoder_class(config: Any) -> tuple[Any, dict[str, Any]]:
    """Return the bare encoder's class and options.

    Without RoBERTa's pooler: it would never get a gradient, and DDP would wait for one.
    """
    import transformers

    if config.model_type == "gpt2":
        return transformers.GPT2Model, {}
    if config.model_type == "t5":
        return transformers.T5EncoderModel, {}
    if config.model_type == "modernbert":
        return transformers.ModernBertModel, {}
    build = transformers.BertModel if config.model_type == "bert" else transformers.RobertaModel
    return build, {"add_pooling_layer": False}
