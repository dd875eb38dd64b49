"""The `smoke` encoders: a small GPT-2 or RoBERTa, pre-trained for seconds as a language model.

With the pair loss alone such a model stays at chance; pre-training gives it something to adapt.
Beside the next word (RoBERTa: words that are hidden from it), the state that the pair head will see
learns to recall which words its function holds, rare ones above all. No label is used. The result
is cached by everything that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nbhelpers.common.files import cached
from nbhelpers.errors import DataError
from nbhelpers.jobs.models.encoders import encoder_class
from nbhelpers.jobs.models.encoding import hidden_states
from nbhelpers.jobs.models.inputs import Bucket, GraphTable, TextBucket, TokenTable

BATCH, LEARNING_RATE, WARMUP_STEPS = 8, 3e-3, 20
HIDDEN_SHARE = 0.15  # of the tokens that RoBERTa must guess
RECIPE = 2  # of the cache; raise it when the objective changes
SORTED_BATCHES = 8  # so many batches are drawn at once and sorted by length: little is padded


def pretrained_encoder(
    config: Any,
    table: TokenTable | GraphTable,
    rows: Any,
    *,
    steps: int,
    seed: int,
    report: Callable[[int, int], None],
) -> Any:
    """Return an encoder after `steps` language-model steps on the functions in `rows`.

    Args:
        table: Token ids of all functions; only `rows` (the train functions) are read.
        report: Called with (done, total).
    """
    from safetensors.torch import load_file, save_file

    if not len(rows):
        raise DataError(
            "There are no train functions to pre-train the smoke model on.",
            fix="set pretrain_steps to 0 or give train functions",
        )
    rows = np.asarray(rows)

    def make() -> Any:
        return _pretrain(config, table, rows, steps=steps, seed=seed, report=report)

    def load(path: Path) -> Any:
        build, options = encoder_class(config)
        encoder = build(config, **options)
        encoder.load_state_dict(load_file(path))
        return encoder

    def save(path: Path, encoder: Any) -> None:
        save_file({k: v.contiguous() for k, v in encoder.state_dict().items()}, path)

    hyperparameters = [RECIPE, BATCH, LEARNING_RATE, WARMUP_STEPS, SORTED_BATCHES]
    facts = json.dumps([*hyperparameters, table.seq_len, steps, seed, torch.__version__])
    ids = (table.ids[table.offsets[row] : table.offsets[row + 1]].tobytes() for row in rows)
    key = [config.to_json_string(), facts, *ids]
    return cached("smoke", key, make, load=load, save=save, suffix=".safetensors")


def _pretrain(
    config: Any,
    table: TokenTable | GraphTable,
    rows: np.ndarray,
    *,
    steps: int,
    seed: int,
    report: Callable[[int, int], None],
) -> Any:
    torch.manual_seed(seed)
    model = _new_encoder(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    words = rare_words(table, rows, config.vocab_size)
    batches = _batches(table.lengths[rows], np.random.default_rng(seed))
    for step in range(steps):
        picked = next(batches)
        lengths = table.lengths[rows[picked]]
        bucket = table.bucket(rows[picked], int(lengths.max()))
        rate = min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        _loss(model, bucket, torch.from_numpy(words[picked])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step + 1, steps)
    return model.eval()


def _new_encoder(config: Any) -> Any:
    from transformers import GPT2LMHeadModel

    if config.model_type == "gpt2":
        # Not `GPT2Model`, which draws other first weights: the log's scores come from these.
        return GPT2LMHeadModel(config).transformer
    build, options = encoder_class(config)
    return build(config, **options)


def _loss(model: Any, bucket: Bucket, words: Tensor) -> Tensor:
    """Return the loss of the next (or hidden) words, plus that of the recall.

    Args:
        words: (rows, vocab) what each function holds, weighted; see `rare_words`.
    """
    table = model.get_input_embeddings().weight  # words are read and told with the same table
    ids, rows = bucket.ids, torch.arange(bucket.rows)
    if model.config.model_type == "gpt2":
        states = hidden_states(model, bucket)
        at = torch.arange(ids.shape[1] - 1) < bucket.last[:, None]
        token_states, wanted = states[:, :-1][at], ids[:, 1:][at]
        recalled = states[rows, bucket.last]
    else:
        at = (torch.rand(ids.shape) < HIDDEN_SHARE) & (torch.arange(ids.shape[1]) > 0)
        at &= torch.arange(ids.shape[1]) < (_code_end(bucket) - 1)[:, None]
        states = hidden_states(
            model, replace(bucket, ids=ids.masked_fill(at, model.config.eos_token_id))
        )
        token_states, wanted, recalled = states[at], ids[at], states[:, 0]
    return cross_entropy(token_states @ table.T, wanted) + cross_entropy(recalled @ table.T, words)


def _code_end(bucket: Bucket) -> Tensor:
    """Return (rows,) the column after each function's last token of code."""
    return bucket.last + 1 if isinstance(bucket, TextBucket) else bucket.code


def rare_words(table: TokenTable | GraphTable, rows: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return (len(rows), vocab_size): the words of each row, weighted by rarity, summing to 1.

    The weight is the logarithm of the rows per row that holds the word.
    """
    has = np.zeros((len(rows), vocab_size), dtype=np.float32)
    for line, row in enumerate(rows):
        has[line, table.ids[table.offsets[row] : table.offsets[row + 1]]] = 1
    has *= np.log(len(rows) / np.maximum(has.sum(axis=0), 1))
    return has / np.maximum(has.sum(axis=1, keepdims=True), 1e-9)


def _batches(lengths: np.ndarray, draw: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield positions into `lengths`, BATCH of like length at a time, epoch after epoch."""
    while True:
        order = draw.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), BATCH * SORTED_BATCHES):
            group = order[start : start + BATCH * SORTED_BATCHES]
            group = group[np.argsort(lengths[group], kind="stable")]
            batches += [group[at : at + BATCH] for at in range(0, len(group), BATCH)]
        for number in draw.permutation(len(batches)):
            yield batches[number]
