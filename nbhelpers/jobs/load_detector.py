"""A trained detector as something to use: it reads programs and gives logits and unit vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbhelpers.data.canonical import FORMS, MARKS, WORDS, canonical
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.clones import head_dropout
from nbhelpers.jobs.models.detector import CLASSIFIER_POOLINGS, FACTS_FILE, HEADS, DetectorModel
from nbhelpers.jobs.models.encoders import name_ends, new_encoder
from nbhelpers.jobs.models.inputs import TokenTable, tokenise
from nbhelpers.jobs.models.weights import raise_unlike, read_state_dict
from nbhelpers.use.weight_files import weights_file

NEEDED = ("pooling", "canonical", "seq_len", "projection_size", "objective")
READING_FORMS = tuple(f"{form}{end}" for form in FORMS for end in ("", MARKS, WORDS))
KNOWN: dict[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value in tuple(CLASSIFIER_POOLINGS),
    "canonical": lambda value: value in READING_FORMS,
    "seq_len": lambda value: type(value) is int and value > 2,
    "projection_size": lambda value: type(value) is int and value > 0,
    "objective": lambda value: value in tuple(HEADS),
}


@dataclass(slots=True, kw_only=True)
class Loaded:
    """A model with its tokenizer; `settings` is what its folder tells (`detector.json`)."""

    model: DetectorModel
    tokenizer: Any
    settings: dict[str, Any]
    device: torch.device

    def table(self, codes: Sequence[str]) -> TokenTable:
        """Return the programs as token ids, in the form that the model was trained on."""
        s = self.settings
        return tokenise(
            [canonical(code, s["canonical"]) for code in codes],
            self.tokenizer,
            seq_len=s["seq_len"],
            vocab_size=self.model.encoder.config.vocab_size,
            collapse=s["canonical"] == "flat",  # a form with marks has its own blanks
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
            return np.zeros(0), np.zeros((0, self.settings["projection_size"]))
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
            states = self.model.states([bucket.to(lambda x: x.to(self.device))])
            logits, vectors = self.model.logits(states), self.model.project(states)
        row_logits = np.full(len(rows), np.nan) if logits is None else logits.cpu().numpy()
        return row_logits, vectors.cpu().numpy()


def load_detector(folder: Path, *, device: str | torch.device = "cpu") -> Loaded:
    """Load a checkpoint folder, or an exported one; nothing is unpickled.

    Raises:
        ConfigError: The folder holds no detector, or its parts do not belong together.
    """
    from transformers import AutoConfig, AutoTokenizer

    settings = read_facts(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raise bare ones of their own
        raise ConfigError(
            f"{folder} holds no readable configuration or tokenizer: {str(error)[:200]}",
            fix="export the run again",
        ) from error
    if config.model_type != "roberta":
        name_ends(tokenizer, config.model_type)
    config._attn_implementation = "sdpa"
    model = DetectorModel(
        new_encoder(config),
        dropout=head_dropout(config),
        projection_size=settings["projection_size"],
        pooling=settings["pooling"],
        similarity_pooling=settings.get("similarity_pooling", "same"),
        objective=settings["objective"],
    )
    path = weights_file(folder)
    state = read_state_dict(path / "model.safetensors" if path.is_dir() else path)
    raise_unlike(model, state, str(folder))
    model.load_state_dict(state)
    place = torch.device(device)
    return Loaded(
        model=model.to(place).eval(), tokenizer=tokenizer, settings=settings, device=place
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what `detector.json` tells.

    Raises:
        ConfigError: It is missing, or not one of ours.
    """
    path = Path(folder) / FACTS_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is no detector: {FACTS_FILE} is missing or cannot be read.",
            fix="name a run of the job detector, its checkpoint, or an exported folder",
        ) from error
    if not isinstance(facts, dict) or any(name not in facts for name in NEEDED):
        raise ConfigError(f"{path} lacks one of {', '.join(NEEDED)}.", fix="export the run again")
    for name, is_known in KNOWN.items():
        if not is_known(facts[name]):
            raise ConfigError(
                f"{path}: {name} is {str(facts[name])[:80]!r}, which this version does not know.",
                fix="copy the folder again, or use the version of nbhelpers that wrote it",
            )
    return facts
