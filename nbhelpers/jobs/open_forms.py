"""What other libraries' own loaders open of an exported folder, and the proof that it is equal.

::

    config.json, modeling_nbhelpers.py   AutoModel.from_pretrained(FOLDER, trust_remote_code=True)
    encoder/                             AutoModel.from_pretrained(FOLDER/encoder): a bare encoder
    modules.json, 1_ ... 5_, code_input.py   SentenceTransformer(FOLDER, trust_remote_code=True)

Without `trust_remote_code` the whole model is refused: its `model_type` is our own. What cannot be
opened in one of these ways is left out, with the reason.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.model_config import encoder_config, own_config
from nbhelpers.jobs import modeling_nbhelpers as modeling
from nbhelpers.jobs.load import LoadedClones, LoadedDetector
from nbhelpers.jobs.models.encoding import graph_positions, graph_sees, hidden_states
from nbhelpers.jobs.models.inputs import GraphBucket, TextBucket

ENCODER = "encoder"
MODELING = "modeling_nbhelpers"
CANONICAL = "canonical.py"
BATCH = 8
# A model that AutoModel completes with random weights: T5's decoder.
_NOT_BARE = {"t5": "AutoModel would add a decoder with random weights"}
_LOCAL = ("_name_or_path", "name_or_path")

# The form of a program is brought about before it is cut into tokens, as where it was trained.
_CODE_INPUT = '''"""The input of this folder's sentence-transformers model: whole programs."""

from sentence_transformers.models import Transformer

from .canonical import canonical

FORM = "{form}"
READS = "preprocess" if hasattr(Transformer, "preprocess") else "tokenize"  # before 6.0


class CodeTransformer(Transformer):
    """Brings each program to the form that the encoder was trained on, and reads it then."""


def _read(self, codes, *rest, **more):
    codes = [canonical(code, FORM) for code in codes]
    return getattr(super(CodeTransformer, self), READS)(codes, *rest, **more)


setattr(CodeTransformer, READS, _read)
'''


class Opened(NamedTuple):
    """What was written: the forms by name, and why others were not."""

    forms: tuple[str, ...]
    left_out: dict[str, str]


def write_forms(loaded: LoadedDetector | LoadedClones, folder: Path, *, member: str) -> Opened:
    """Add to a folder with our config.json, weights and tokenizer what other loaders need.

    Args:
        member: Which member of the score the model's logits are; "": they are the score.
    """
    shutil.copy2(Path(modeling.__file__), folder / f"{MODELING}.py")
    _write_config(loaded, folder, {"member": member} if member else {})
    facts = loaded.facts if isinstance(loaded, LoadedDetector) else loaded.trained
    tokenizer = plain_tokenizer(loaded.tokenizer, facts.seq_len)
    tokenizer.save_pretrained(folder)
    family = loaded.model.encoder.config.model_type
    if family in _NOT_BARE:
        reason = f"{family}: {_NOT_BARE[family]}"
        return Opened((MODELING,), {"encoder": reason, "sentence-transformers": reason})
    write_encoder(loaded, folder / ENCODER)
    tokenizer.save_pretrained(folder / ENCODER)
    forms, left_out = [MODELING, ENCODER], {}
    if isinstance(loaded, LoadedClones):
        left_out["sentence-transformers"] = "a pair of functions has a score, and no vectors"
    elif loaded.model.projector is None:
        left_out["sentence-transformers"] = "it was trained without a similarity space"
    else:
        write_sentences(loaded, folder)
        forms.append("sentence-transformers")
    return Opened(tuple(forms), left_out)


def _write_config(
    loaded: LoadedDetector | LoadedClones, folder: Path, more: dict[str, Any]
) -> None:
    saved = read_json(folder / "config.json") or {}
    inner = {key: value for key, value in encoder_config(saved).items() if key not in _LOCAL}
    if isinstance(loaded, LoadedDetector):
        name, kind = "NbhelpersDetector", modeling.NbhelpersDetectorConfig
        names = ("objective", "pooling", "similarity_pooling", "projection_size")
        facts = {name: getattr(loaded.facts, name) for name in names}
    else:
        name, kind = "NbhelpersClones", modeling.NbhelpersClonesConfig
        facts = {"reads_data_flow": loaded.trained.data_flow_length is not None}
    auto_map = {"AutoConfig": f"{MODELING}.{name}Config", "AutoModel": f"{MODELING}.{name}"}
    more |= {"architectures": [name], "auto_map": auto_map, "dtype": "float32"}
    write_json(folder / "config.json", own_config(kind.model_type, inner, **facts, **more))


# ------------------------------------------------------------------------------------------------
# The encoder alone.


def write_encoder(loaded: LoadedDetector | LoadedClones, folder: Path) -> None:
    """Write the encoder as a plain model.

    A BERT or RoBERTa gets a pooler of zeros: ours have none, and AutoModel would draw a random one.
    """
    from safetensors.torch import save_file

    encoder = loaded.model.encoder
    folder.mkdir()
    state = {name: tensor.detach().cpu() for name, tensor in encoder.state_dict().items()}
    hidden = encoder.config.hidden_size
    if encoder.config.model_type in ("bert", "roberta"):
        state["pooler.dense.weight"] = torch.zeros(hidden, hidden)
        state["pooler.dense.bias"] = torch.zeros(hidden)
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(encoder.config.to_json_string())
    config = {key: value for key, value in config.items() if key not in _LOCAL}
    config |= {"architectures": [type(encoder).__name__], "dtype": "float32"}
    write_json(folder / "config.json", config)


def plain_tokenizer(tokenizer: Any, seq_len: int) -> Any:
    """Return a tokenizer that gives a text's ids with both ends, cut to `seq_len` where asked.

    Text that looks like a special token stays text.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    first = [tokenizer.bos_token] if tokenizer.bos_token_id is not None else []
    ends = [*first, tokenizer.eos_token]
    backend.post_processor = TemplateProcessing(
        single=" ".join([*first, "$A", tokenizer.eos_token]),
        special_tokens=[(end, backend.token_to_id(end)) for end in dict.fromkeys(ends)],
    )
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")
    names = (*names, "mask_token")
    special = {name: value for name in names if (value := getattr(tokenizer, name, None))}
    special.setdefault("pad_token", tokenizer.eos_token)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=seq_len,
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


# ------------------------------------------------------------------------------------------------
# The similarity space as a sentence-transformers model.


def write_sentences(loaded: LoadedDetector, folder: Path) -> None:
    """Write modules.json and its modules: the encoder, a mean, two linear layers and the norm.

    The first layer takes the centre off, exactly; the second is the projection over the spread.
    """
    from nbhelpers.data import canonical

    model, facts = loaded.model, loaded.facts
    hidden, size = model.hidden, facts.projection_size
    kind = "sentence_transformers.models."
    modules = [("encoder", f"{kind}Transformer")]
    write_json(folder / ENCODER / "sentence_bert_config.json", {"max_seq_length": facts.seq_len})
    if facts.canonical != "raw":
        modules = [("encoder", "code_input.CodeTransformer")]
        code = _CODE_INPUT.replace("{form}", facts.canonical)
        (folder / "code_input.py").write_text(code, encoding="utf-8")
        text = Path(canonical.__file__).read_text(encoding="utf-8")
        (folder / CANONICAL).write_text(alone(text), encoding="utf-8")
    if model.has_rarity:
        weights = {str(i): weight for i, weight in enumerate(model.rarity.tolist())}
        values = {"vocab": list(weights), "word_weights": weights, "unknown_word_weight": 1}
        modules.append(("1_WordWeights", f"{kind}WordWeights"))
        _write_module(folder / "1_WordWeights", values)
    is_first = facts.pooling == "first" and not model.has_rarity
    ways = {"cls_token": is_first, "mean_tokens": not is_first, "max_tokens": False}
    values = {f"pooling_mode_{name}": is_on for name, is_on in ways.items()}
    _write_module(folder / "2_Pooling", {"word_embedding_dimension": hidden} | values)
    first = -hidden if model.has_rarity else 0
    centre, spread = (x[first:][:hidden].double() for x in (model.centre, model.spread))
    weight = model.projector.out_proj.weight.double() / spread
    _write_dense(folder / "3_Centre", torch.eye(hidden), -centre.float())
    _write_dense(folder / "4_Projection", weight.float(), None)
    (folder / "5_Normalize").mkdir()
    _write_module(folder / "5_Normalize", {})
    modules += [("2_Pooling", f"{kind}Pooling"), ("3_Centre", f"{kind}Dense")]
    modules += [("4_Projection", f"{kind}Dense"), ("5_Normalize", f"{kind}Normalize")]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": name}
        for number, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    assert size == len(weight)


def alone(text: str) -> str:
    """Return the source of `data.canonical` without an import of this package."""
    pair = (
        "from nbhelpers.errors import ConfigError",
        "\nclass ConfigError(ValueError):\n"
        '    """A form that is not known."""\n\n'
        "    def __init__(self, message: str, *, fix: str) -> None:\n"
        '        super().__init__(f"{message} Fix: {fix}")\n',
    )
    assert text.count(pair[0]) == 1, pair[0]
    return text.replace(*pair)


def _write_module(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", config)


def _write_dense(folder: Path, weight: Tensor, bias: Tensor | None) -> None:
    from safetensors.torch import save_file

    size, reads = weight.shape
    values = {"in_features": reads, "out_features": size, "bias": bias is not None}
    _write_module(folder, values | {"activation_function": "torch.nn.modules.linear.Identity"})
    tensors = {"linear.weight": weight.contiguous()}
    tensors |= {} if bias is None else {"linear.bias": bias.contiguous()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# ------------------------------------------------------------------------------------------------
# What the forms say of programs, read back from the folder.


Scores = tuple[np.ndarray, np.ndarray]


@torch.inference_mode()
def whole_scores(folder: Path, loaded: LoadedDetector, codes: Sequence[str]) -> Scores:
    """Return (n,) logits and (n, d) vectors of the modelling file, from our tokens."""
    model = modeling.NbhelpersDetector.from_pretrained(folder).eval()
    table, logits, vectors = loaded.table(codes), [], []
    for start in range(0, len(codes), BATCH):
        rows = np.arange(start, min(start + BATCH, len(codes)))
        bucket = table.bucket(rows, int(table.lengths[rows].max()))
        outputs = model(bucket.ids, _mask(bucket))
        nothing = torch.full((len(rows), 1), float("nan"))
        logits.append(nothing[:, 0] if outputs.logits is None else outputs.logits)
        vectors.append(nothing[:, :0] if outputs.vectors is None else outputs.vectors)
    return torch.cat(logits).numpy(), torch.cat(vectors).numpy()


@torch.inference_mode()
def sentence_vectors(folder: Path, codes: Sequence[str]) -> np.ndarray:
    """Return (n, d) vectors by what the files of the sentence-transformers model say."""
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    encoder = AutoModel.from_pretrained(folder / ENCODER).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / ENCODER)
    rarity = read_json(folder / "1_WordWeights" / "config.json")
    pooling = read_json(folder / "2_Pooling" / "config.json") or {}
    centre = load_file(folder / "3_Centre" / "model.safetensors")
    weight = load_file(folder / "4_Projection" / "model.safetensors")["linear.weight"]
    vectors = []
    for start in range(0, len(codes), BATCH):
        part = list(codes[start : start + BATCH])
        tokens = tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        states = encoder(**tokens).last_hidden_state
        weights = tokens["attention_mask"].float()
        if rarity:
            table = torch.tensor([*rarity["word_weights"].values()])
            weights = weights * table[tokens["input_ids"]]
        total = weights.sum(1, keepdim=True).clamp(min=1e-9)
        mean = (states * weights[..., None]).sum(1) / total
        seen = states[:, 0] if pooling["pooling_mode_cls_token"] else mean
        seen = seen @ centre["linear.weight"].T + centre["linear.bias"]
        vectors.append(torch.nn.functional.normalize(seen @ weight.T, dim=-1))
    return torch.cat(vectors).numpy()


@torch.inference_mode()
def encoder_states(
    folder: Path, loaded: LoadedDetector | LoadedClones, codes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, hidden) last states of our encoder and the plain one, over the largest.

    The plain one reads what its own tokenizer makes of the texts.
    """
    from transformers import AutoModel, AutoTokenizer

    plain = AutoModel.from_pretrained(folder / ENCODER).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / ENCODER)
    texts, table = loaded.texts(codes)
    ours, theirs = [], []
    for start in range(0, len(texts), BATCH):
        rows = np.arange(start, min(start + BATCH, len(texts)))
        bucket = table.bucket(rows, int(table.lengths[rows].max()))
        part = [texts[row] for row in rows]
        tokens = tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        is_token = _mask(bucket).bool()
        if tokens["input_ids"].shape != bucket.ids.shape:
            return np.zeros((1, 0)), np.zeros((0, 0))  # of no equal shape: read otherwise
        ours.append(hidden_states(loaded.model.encoder, bucket)[is_token])
        theirs.append(plain(**tokens).last_hidden_state[is_token])
    table_of_ours = torch.cat(ours)
    size = table_of_ours.abs().max().clamp(min=1.0)
    return (table_of_ours / size).numpy(), (torch.cat(theirs) / size).numpy()


@torch.inference_mode()
def pair_scores(folder: Path, loaded: LoadedClones, codes: Sequence[str], language: str) -> Scores:
    """Return (n * n,) margins of all pairs and (n, hidden) states of the modelling file."""
    model = modeling.NbhelpersClones.from_pretrained(folder).eval()
    table, _ = loaded.table(codes, language)
    states = []
    for start in range(0, len(codes), BATCH):
        rows = np.arange(start, min(start + BATCH, len(codes)))
        states.append(model.encode(*encoder_inputs(table, rows, model.encoder.config)))
    table_of_states = torch.cat(states)
    n = len(codes)
    pairs = torch.cat([table_of_states.repeat_interleave(n, 0), table_of_states.repeat(n, 1)], 1)
    logits = model.classifier(pairs)
    return (logits[:, 1] - logits[:, 0]).numpy(), table_of_states.numpy()


def encoder_inputs(table: Any, rows: np.ndarray, config: Any) -> tuple[Tensor, ...]:
    """Return ids, mask and, with data flow, positions of functions, as the modelling file reads."""
    lengths = table.lengths[rows]
    has_graph = not hasattr(table, "bos_id")
    # A node that sees nothing looks at all padding: so there has to be as much as in training.
    bucket = table.bucket(rows, table.seq_len if has_graph else int(lengths.max()))
    if not isinstance(bucket, GraphBucket):
        return bucket.ids, _mask(bucket)
    return bucket.ids, graph_sees(bucket).long(), graph_positions(bucket, config.pad_token_id)


def _mask(bucket: TextBucket) -> Tensor:
    columns = torch.arange(bucket.ids.shape[1])
    return (columns <= bucket.last[:, None]).long()
