"""What was trained, loaded to be used: a base with its adapter, or a detector."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.common.result_files import DetectorFile
from nbhelpers.data.canonical import canonical
from nbhelpers.errors import ConfigError, DataError, HardwareError
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.presets.schema import FinetuneSettings
from nbhelpers.use.trained import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    FACTS_FILE,
    Trained,
    TrainedClones,
)

if TYPE_CHECKING:
    from nbhelpers.jobs.models.clones import CloneModel
    from nbhelpers.jobs.models.detector import DetectorModel
    from nbhelpers.jobs.models.inputs import GraphTable, TokenTable

PROBE = "def add(first, second):\n    return first + second\n\n\nprint(add(1, 2))\n"
_SHOWN = 4  # names in a message
WEIGHTS = "model.safetensors"


def choose_device(wanted: str) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`.

    Raises:
        HardwareError: `cuda` is wanted and torch sees none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise HardwareError(
            f"device='cuda' is asked for, and torch {torch.__version__} sees no GPU.",
            fix="write device='auto' or 'cpu', or check the driver and CUDA_VISIBLE_DEVICES",
        )
    has_gpu = wanted != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")


def set_token(token: str | None) -> None:
    """Let the hub's client of this process use a token; it is in no command line and in no file."""
    if token:
        os.environ["HF_TOKEN"] = token


def require_whole(folder: Path) -> None:
    """Stop where a checkpoint of ours is not as it was written.

    Raises:
        DataError: A file is missing, cut short or changed; names it.
    """
    if (folder / ck.MANIFEST).is_file() and (problem := ck.verify(folder)):
        raise DataError(f"The checkpoint is damaged: {problem}.", fix="name another checkpoint")


# ------------------------------------------------------------------------------------------------
# A base model with an adapter on it, and the proof that the adapter does something.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCheck:
    """What was counted after an adapter was put on its base.

    `zero_b`: LoRA modules whose B is all zero; `logit_difference`: the largest absolute difference
    of a logit with and without the adapter, on a short probe.
    """

    tensors: int
    modules: int
    zero_b: int
    logit_difference: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Loaded:
    """A model that can be asked. `model` is a PEFT model where there is an adapter."""

    model: Any
    tokenizer: Any
    device: torch.device
    precision: str
    check: AdapterCheck | None
    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """What the notebook is told."""
        check = self.check.to_dict() if self.check else None
        cuda = self.device.type == "cuda"
        used = torch.cuda.memory_allocated(self.device) if cuda else None
        name = torch.cuda.get_device_name(self.device) if cuda else "cpu"
        facts = {"device": name, "precision": self.precision, "check": check}
        return facts | {"memory_bytes": used, "base": self.facts}


def choose_precision(settings: FinetuneSettings, device: torch.device) -> str:
    """Return fp32 on a CPU; on a GPU what the run says, else bf16 where it is native, else fp16."""
    if device.type == "cpu":
        return "fp32"
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    if settings.precision != "auto" and (has_bf16 or settings.precision != "bf16"):
        return settings.precision
    return "bf16" if has_bf16 else "fp16"


def _silent(text: str) -> None:
    return


def load_trained(
    trained: Trained,
    *,
    device: torch.device,
    quantised: bool,
    with_adapter: bool = True,
    precision: str | None = None,
    report: Callable[[str], None] = _silent,
) -> Loaded:
    """Load a base once and put the adapter on it.

    Args:
        quantised: Load the base in 4 bits, as a QLoRA run trained on it.
        with_adapter: Without, the base alone.
        precision: Of the base's weights; None: by device and run.

    Raises:
        DataError: The adapter is damaged, does not belong to this base, or does nothing.
        ConfigError: The base cannot be had.
    """
    from nbhelpers.jobs.models.causal import load_base

    settings = _for_inference(trained.settings)
    precision = precision or choose_precision(settings, device)
    own = _own_tokenizer(trained.adapter) if trained.adapter is not None else None
    base = load_base(
        settings,
        precision=precision,
        device=device,
        quantised=quantised,
        tokenizer=own,
        report=lambda done, total: report(f"pre-trains the base: {done} of {total} steps"),
    )
    model, tokenizer, check = base.model, own or base.tokenizer, None
    if with_adapter and trained.adapter is not None:
        model, check = attach(model, trained.adapter, tokenizer)
    model.eval()
    model.requires_grad_(False)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        device=device,
        precision=precision,
        check=check,
        facts=dict(base.facts),
    )


def _for_inference(settings: FinetuneSettings) -> FinetuneSettings:
    """Settings that load the published modules as they are: exact, and nothing is compiled."""
    update = {"attention": "eager", "compile_layers": "off", "gradient_checkpointing": False}
    return settings.model_copy(update=update)


def _own_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    has_one = (folder / "tokenizer_config.json").is_file()
    return AutoTokenizer.from_pretrained(folder) if has_one else None


def attach(base: Any, folder: Path, tokenizer: Any) -> tuple[Any, AdapterCheck]:
    """Put an adapter on a base; return the PEFT model and what was checked.

    Raises:
        DataError: The files are damaged, or a tensor has no place, or a place no tensor, or the
            adapter changes nothing.
    """
    from peft import LoraConfig, PeftModel
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    require_whole(folder)
    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        config = LoraConfig.from_pretrained(folder)
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        text = f"{folder} cannot be read as an adapter: {str(error).splitlines()[0][:300]}."
        raise DataError(text, fix="copy the folder again") from error
    wrong = [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if wrong:
        raise DataError(
            f"The adapter in {folder} holds NaN or infinity in {len(wrong)} tensors "
            f"({_some(wrong)}).",
            fix="name an earlier checkpoint",
        )
    config.inference_mode = True
    try:
        model = PeftModel(base, config)
    except ValueError as error:
        raise DataError(
            f"{ADAPTER_CONFIG} in {folder} does not fit the model: {str(error)[:300]}.",
            fix="load it on the base that it was trained on",
        ) from error
    loaded = _fill(model, tensors, folder)
    return model, _checked(model, loaded, folder, tokenizer)


def _fill(model: Any, tensors: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Copy the tensors of a file into the modules, each into its own, and return what lies there.

    peft skips a tensor that has no place without a word: so the names are compared first, and the
    values after.
    """
    from nbhelpers.jobs.models.causal import adapter_tensors, load_adapter_tensors

    places = adapter_tensors(model)
    homeless, empty = sorted(set(tensors) - set(places)), sorted(set(places) - set(tensors))
    shared = set(tensors) & set(places)
    misfit = sorted(name for name in shared if tensors[name].shape != places[name].shape)
    if homeless or empty or misfit:
        parts = (("without a place", homeless), ("missing", empty), ("of another shape", misfit))
        mismatches = "; ".join(f"{len(n)} {what} ({_some(n)})" for what, n in parts if n)
        raise DataError(
            f"The adapter in {folder} does not fit its base: of {len(tensors)} tensors in the "
            f"file, {len(shared) - len(misfit)} have a place: {mismatches}.",
            fix="load it on the base that it was trained on, with the adapter_config.json that was "
            "saved with it",
        )
    load_adapter_tensors(model, tensors)
    loaded = adapter_tensors(model)
    changed = [
        n for n, t in tensors.items() if not torch.equal(loaded[n].cpu(), t.to(loaded[n]).cpu())
    ]
    if changed:
        raise DataError(
            f"{len(changed)} tensors of {folder} were not loaded ({_some(changed)}).",
            fix="update peft: it put other values there",
        )
    return loaded


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _checked(model: Any, loaded: dict[str, Any], folder: Path, tokenizer: Any) -> AdapterCheck:
    """Raises DataError where the adapter changes nothing."""
    second = {
        name: t for name, t in loaded.items() if ".lora_B" in name or ".lora_embedding_B" in name
    }
    zero = sum(not bool(t.count_nonzero()) for t in second.values())
    difference = 0.0 if zero == len(second) else logit_difference(model, tokenizer)
    if difference == 0.0:
        why = (
            f"all {len(second)} of its B matrices are zero"
            if zero == len(second)
            else "the logits with and without it are equal on a probe"
        )
        raise DataError(
            f"The adapter in {folder} does nothing: {why}.",
            fix="it was saved before its first optimizer step, or is not the one that was trained: "
            "name another checkpoint",
        )
    modules = len({name.rpartition(".lora_")[0] for name in loaded})
    return AdapterCheck(
        tensors=len(loaded), modules=modules, zero_b=zero, logit_difference=difference
    )


@torch.inference_mode()
def logit_difference(model: Any, tokenizer: Any) -> float:
    """Return the largest absolute difference of a logit that the adapter makes on the probe."""
    was_training = model.training
    model.eval()
    enc = tokenizer(PROBE, return_tensors="pt", return_token_type_ids=False).to(model.device)
    with_it = model(**enc, use_cache=False).logits.float()
    with model.disable_adapter():
        without = model(**enc, use_cache=False).logits.float()
    model.train(was_training)
    return float((with_it - without).abs().max())


def require_context(tokens: int, new_tokens: int, config: Any) -> None:
    """Stop where prompt and answer exceed what the model has positions for.

    Raises:
        ConfigError: They do.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if limit and tokens + new_tokens > limit:
        raise ConfigError(
            f"The prompt has {tokens} tokens and the answer may have {new_tokens}, more than the "
            f"model's {limit} positions.",
            fix=f"shorten the prompt, or set max_new_tokens to at most {max(1, limit - tokens)}",
        )


# ------------------------------------------------------------------------------------------------
# A detector.


@dataclass(slots=True, kw_only=True)
class LoadedDetector:
    """A detector with its tokenizer; it reads programs and gives logits and unit vectors."""

    model: DetectorModel
    tokenizer: Any
    facts: DetectorFile
    device: torch.device

    def table(self, codes: Sequence[str]) -> TokenTable:
        """Return the programs as token ids, in the form that the model was trained on."""
        return self.texts(codes)[1]

    def texts(self, codes: Sequence[str]) -> tuple[list[str], TokenTable]:
        """Return the programs in the form that the model was trained on, and as token ids."""
        from nbhelpers.jobs.models.inputs import tokenise

        texts = [canonical(code, self.facts.canonical) for code in codes]
        return texts, tokenise(
            texts,
            self.tokenizer,
            seq_len=self.facts.seq_len,
            vocab_size=self.model.encoder.config.vocab_size,
            collapse=self.facts.canonical == "flat",  # a form with marks has its own blanks
            is_cached=False,
        )

    def score(
        self,
        codes: Sequence[str],
        *,
        batch_size: int = 32,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) logits, NaN without a classifier, and (n, d) unit vectors.

        Programs of like length are computed together; a program's numbers do not depend on the
        others but for rounding.
        """
        if not len(codes):
            return np.zeros(0), np.zeros((0, self.facts.projection_size))
        table = self.table(codes)
        order = np.argsort(-table.lengths, kind="stable")
        logits, vectors = np.full(len(codes), np.nan), [np.zeros(0)] * len(codes)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            one, many = self._scored(table, rows)
            logits[rows] = one
            for row, vector in zip(rows, many, strict=True):
                vectors[row] = vector
            report(min(start + batch_size, len(order)), len(order))
        return logits, np.stack(vectors)

    def _scored(self, table: TokenTable, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bucket = table.bucket(rows, int(table.lengths[rows].max()))
        with torch.inference_mode():
            states = self.model.states([bucket.on(self.device)])
            logits, vectors = self.model.logits(states), self.model.project(states)
        row_logits = np.full(len(rows), np.nan) if logits is None else logits.cpu().numpy()
        return row_logits, vectors.cpu().numpy()


def load_detector(folder: Path, *, device: str | torch.device = "cpu") -> LoadedDetector:
    """Load a checkpoint folder, or an exported one; nothing is unpickled.

    Raises:
        DataError: `detector.json` is missing or damaged.
        ConfigError: The parts of the folder do not belong together.
    """
    from nbhelpers.jobs.models.clones import head_dropout
    from nbhelpers.jobs.models.detector import DetectorModel
    from nbhelpers.jobs.models.encoders import new_encoder

    facts = DetectorFile.read(folder / FACTS_FILE)
    if facts is None:
        raise DataError(f"{folder} has no {FACTS_FILE}.", fix=DetectorFile.FIX)
    config, tokenizer = _read_parts(folder)
    model = DetectorModel(
        new_encoder(config),
        dropout=head_dropout(config),
        projection_size=facts.projection_size,
        pooling=facts.pooling,
        similarity_pooling=facts.similarity_pooling,
        objective=facts.objective,
    )
    place = torch.device(device)
    _fill_whole(model, folder)
    return LoadedDetector(
        model=model.to(place).eval(), tokenizer=tokenizer, facts=facts, device=place
    )


def _read_parts(folder: Path) -> tuple[Any, Any]:
    """Return the encoder's configuration, and the tokenizer."""
    from transformers import AutoTokenizer

    from nbhelpers.jobs.models.encoders import name_ends, read_config

    try:
        config = read_config(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config)
    except Exception as error:  # tokenizers raise bare ones of their own
        raise ConfigError(
            f"{folder} holds no readable configuration or tokenizer: {str(error)[:200]}",
            fix="export the run again, or name another checkpoint",
        ) from error
    if config.model_type != "roberta":
        name_ends(tokenizer, config.model_type)
    config._attn_implementation = "sdpa"
    return config, tokenizer


def _fill_whole(model: torch.nn.Module, folder: Path) -> None:
    from nbhelpers.jobs.models.weights import raise_unlike, read_state_dict

    state = read_state_dict(folder / WEIGHTS)
    raise_unlike(model, state, str(folder))
    model.load_state_dict(state)


# ------------------------------------------------------------------------------------------------
# A clone model.


@dataclass(slots=True, kw_only=True)
class LoadedClones:
    """A clone model with its tokenizer; it encodes functions, and scores pairs of their states."""

    model: CloneModel
    tokenizer: Any
    trained: TrainedClones
    device: torch.device

    def table(
        self, codes: Sequence[str], language: str
    ) -> tuple[TokenTable | GraphTable, list[str]]:
        """Return functions of one language as the model reads them, and a note on each, or ""."""
        from nbhelpers.data.dataflow import extract_corpus
        from nbhelpers.jobs.models.inputs import graph_table

        trained, config = self.trained, self.model.encoder.config
        if trained.data_flow_length is None:
            _, table = self.texts(codes)
            return table, [_CUT if is_cut else "" for is_cut in table.is_cut]
        flows = extract_corpus(codes, language, grammar_compat=trained.grammar_compat)
        graphs = graph_table(
            flows,
            self.tokenizer,
            data_flow_length=trained.data_flow_length,
            positions=config.max_position_embeddings,
            seq_len=trained.seq_len,
            vocab_size=config.vocab_size,
        )
        notes = [_CUT if is_cut else "" for is_cut in graphs.is_cut]
        for row, problem in flows.problems.items():
            notes[row] = f"data flow: {problem.rstrip('.')}"
        return graphs, notes

    def texts(self, codes: Sequence[str]) -> tuple[list[str], TokenTable]:
        """Return functions with any white space as one blank, and as token ids of plain text."""
        from nbhelpers.jobs.models.inputs import collapse_whitespace, tokenise

        texts = [collapse_whitespace(code) for code in codes]
        return texts, tokenise(
            texts,
            self.tokenizer,
            seq_len=self.trained.seq_len,
            vocab_size=self.model.encoder.config.vocab_size,
            is_cached=False,
        )

    @torch.inference_mode()
    def encode(
        self,
        codes: Sequence[str],
        languages: Sequence[str],
        *,
        batch_size: int = 32,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[torch.Tensor, list[str]]:
        """Return (n, hidden) fp32 states of functions, and a note on each, or ""."""
        hidden = self.model.classifier.out_proj.in_features
        states = torch.zeros(len(codes), hidden, device=self.device)
        notes = [""] * len(codes)
        for language in sorted(set(languages)):
            rows = np.flatnonzero([each == language for each in languages])
            table, told = self.table([codes[row] for row in rows], language)
            order = np.argsort(-table.lengths, kind="stable")
            for start in range(0, len(order), batch_size):
                part = order[start : start + batch_size]
                bucket = table.bucket(part, int(table.lengths[part].max()))
                states[rows[part]] = self.model.encode(bucket.on(self.device))
                report(min(start + batch_size, len(order)), len(order))
            for row, note in zip(rows, told, strict=True):
                notes[row] = note
        return states, notes

    @torch.inference_mode()
    def probabilities(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return (left, right) P(clone) of all pairs of (left, hidden) and (right, hidden) states.

        The head's first layer is linear in each of the two states: it is applied to each once.
        """
        head, size = self.model.classifier, left.shape[1]
        first, second = head.dense.weight.split(size, dim=1)
        ones, others = left @ first.T + head.dense.bias, right @ second.T
        margin = head.out_proj.weight[1] - head.out_proj.weight[0]
        bias = head.out_proj.bias[1] - head.out_proj.bias[0]
        step = max(1, _NUMBERS // max(1, others.numel()))
        rows = [
            torch.tanh(part[:, None] + others[None]) @ margin + bias for part in ones.split(step)
        ]
        return torch.cat(rows).sigmoid()


_CUT = "longer than the model reads: its end was cut off"
_NUMBERS = 2**24  # of fp32 at once: 64 MiB


def load_clones(trained: TrainedClones, *, device: str | torch.device = "cpu") -> LoadedClones:
    """Load the folder of a clone model; nothing is unpickled.

    Raises:
        DataError: A file is missing or damaged.
        ConfigError: The parts of the folder do not belong together.
    """
    from nbhelpers.jobs.models.clones import CloneModel, head_dropout
    from nbhelpers.jobs.models.encoders import new_encoder

    config, tokenizer = _read_parts(trained.folder)
    model = CloneModel(new_encoder(config), head_dropout(config))
    _fill_whole(model, trained.folder)
    place = torch.device(device)
    return LoadedClones(
        model=model.to(place).eval(), tokenizer=tokenizer, trained=trained, device=place
    )
