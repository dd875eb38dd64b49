"""Encoders with random weights, pre-trained for seconds on the train functions of a run.

With random weights alone an encoder has no idea of code, and with a small one's pair loss it stays
at chance; pre-training gives it something to adapt. No label is used. The result is cached by
everything that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from nbhelpers.common.files import cached
from nbhelpers.errors import DataError
from nbhelpers.jobs.models.encoders import encoder_class, new_encoder
from nbhelpers.jobs.models.encoding import hidden_states
from nbhelpers.jobs.models.inputs import Bucket, GraphTable, TextBucket, TokenTable

HIDDEN_SHARE = 0.15  # of the tokens that a masked language model must guess


def pretrain(
    parameters: Iterable[Tensor],
    losses: Iterator[Tensor],
    *,
    steps: int,
    peak: float,
    warmup: int,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Iterator[Tensor]:
    """Make an optimizer step for each loss: AdamW, warm-up, linear decay; yield the losses.

    Args:
        losses: Each is computed with the parameters as they are when it is asked for.
        peak: Learning rate after `warmup` steps.
    """
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=0.01, betas=betas)
    for step in range(steps):
        rate = min(1.0, (step + 1) / warmup) * (1 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        loss = next(losses)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def _cached(
    folder: str,
    key: Sequence[str],
    table: TokenTable | GraphTable,
    rows: np.ndarray,
    make: Callable[[], Any],
    new: Callable[[], Any],
) -> Any:
    """Return what `make` gives, or `new` with weights that were made before.

    Args:
        key: All that decides the weights, beside the token ids of the rows.
    """

    def load(path: Path) -> Any:
        tensors = load_file(path)  # first of all: nothing is drawn where there is no file
        encoder = new()
        encoder.load_state_dict(tensors)
        return encoder

    def save(path: Path, encoder: Any) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
        save_file(tensors, path)

    ids = (table.ids[table.offsets[row] : table.offsets[row + 1]].tobytes() for row in rows)
    return cached(folder, [*key, *ids], make, load=load, save=save, suffix=".safetensors")


# ------------------------------------------------------------------------------------------------
# The `smoke` encoders of pairs: a small GPT-2 or RoBERTa, as a language model that also recalls.
#
# Beside the next word (RoBERTa: words that are hidden from it), the state that the pair head will
# see learns to recall which words its function holds, rare ones above all.


BATCH, LEARNING_RATE, WARMUP_STEPS = 8, 3e-3, 20
RECALL_RECIPE = 2  # of the cache; raise it when the objective changes
ROWS_SORTED = 8  # so many batches are drawn at once and sorted by length: little is padded


def recalling_encoder(
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
    if not len(rows):
        raise DataError(
            "There are no train functions to pre-train the smoke model on.",
            fix="set pretrain_steps to 0 or give train functions",
        )
    rows = np.asarray(rows)

    def make() -> Any:
        torch.manual_seed(seed)
        encoder = _new_smoke_encoder(config).train()
        words = rare_words(table, rows, config.vocab_size)

        def losses() -> Iterator[Tensor]:
            for picked in _batches_of_rows(table.lengths[rows], np.random.default_rng(seed)):
                width = int(table.lengths[rows[picked]].max())
                bucket = table.bucket(rows[picked], width)
                yield _recall_loss(encoder, bucket, torch.from_numpy(words[picked]))

        how = {"steps": steps, "peak": LEARNING_RATE, "warmup": WARMUP_STEPS}
        for done, _ in enumerate(pretrain(encoder.parameters(), losses(), **how), 1):
            report(done, steps)
        return encoder.eval()

    def new() -> Any:
        build, options = encoder_class(config)
        return build(config, **options)

    hyperparameters = [RECALL_RECIPE, BATCH, LEARNING_RATE, WARMUP_STEPS, ROWS_SORTED]
    facts = json.dumps([*hyperparameters, table.seq_len, steps, seed, torch.__version__])
    return _cached("smoke", [config.to_json_string(), facts], table, rows, make, new)


def _new_smoke_encoder(config: Any) -> Any:
    from transformers import GPT2LMHeadModel

    if config.model_type == "gpt2":
        # Not `GPT2Model`, which draws other first weights: the log's scores come from these.
        return GPT2LMHeadModel(config).transformer
    build, options = encoder_class(config)
    return build(config, **options)


def _recall_loss(model: Any, bucket: Bucket, words: Tensor) -> Tensor:
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


def _batches_of_rows(lengths: np.ndarray, draw: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield positions into `lengths`, BATCH of like length at a time, epoch after epoch."""
    while True:
        order = draw.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), BATCH * ROWS_SORTED):
            group = order[start : start + BATCH * ROWS_SORTED]
            group = group[np.argsort(lengths[group], kind="stable")]
            batches += [group[at : at + BATCH] for at in range(0, len(group), BATCH)]
        for number in draw.permutation(len(batches)):
            yield batches[number]


# ------------------------------------------------------------------------------------------------
# Encoders of the detector: a masked language model.
#
# Source: Devlin et al. 2019, section 3.1 (15 % of the tokens, of which 80 % are masked, 10 % are
# random and 10 % stay).


MASKED_RECIPE = 1  # of the cache; raise it when the objective changes
WARMUP_SHARE = 0.06
LARGE, SMALL = 3e-4, 3e-3  # peak rates: of models with at least 512 hidden units, and of others
BATCH_TOKENS = {"cuda": 32_768, "cpu": 2_048}
BATCHES_SORTED = 16  # so many batches are drawn at once and sorted by length


def masked_encoder(
    config: Any,
    table: TokenTable,
    rows: np.ndarray,
    *,
    steps: int,
    seed: int,
    accelerator: Any,
    report: Callable[[int, int], None],
    tell: Callable[[int, float], None],
) -> Any:
    """Return an encoder after `steps` masked-language-model steps, in fp32 on the CPU.

    Args:
        rows: Of the table, that are read.
        report: Called with (done, total).
        tell: Called with the first and the last step and their losses.
    """
    device = accelerator.device
    facts = [MASKED_RECIPE, steps, seed, table.seq_len, device.type, torch.__version__]

    def make() -> Any:
        encoder = new_encoder(config).to(device)
        torch.manual_seed(seed)
        encoder.train()
        head = MaskedHead(config.hidden_size).to(device)

        def losses() -> Iterator[Tensor]:
            for picked in _batches_of_tokens(table.lengths[rows], BATCH_TOKENS[device.type], seed):
                part = rows[picked]
                bucket = table.bucket(part, int(table.lengths[part].max()))
                bucket = bucket.on(device)
                with accelerator.autocast():
                    loss = _masked_loss(encoder, head, bucket)
                yield loss

        how = {"steps": steps, "peak": LARGE if config.hidden_size >= 512 else SMALL}
        how |= {"warmup": max(1, int(WARMUP_SHARE * steps)), "betas": (0.9, 0.98)}
        parameters = [*encoder.parameters(), *head.parameters()]
        for done, loss in enumerate(pretrain(parameters, losses(), **how), 1):
            report(done, steps)
            if done in (1, steps):
                tell(done, float(loss))
        if device.type == "cuda":
            encoder.to("cpu")
            torch.cuda.reset_peak_memory_stats(device)  # this is no part of loading the model
        return encoder.eval()

    key = [config.to_json_string(), json.dumps(facts)]
    return _cached("detector", key, table, rows, make, partial(new_encoder, config))


class MaskedHead(torch.nn.Module):
    """From states to states of words; the words' table is the encoder's."""

    def __init__(self, hidden: int) -> None:
        """Make it for states of size `hidden`."""
        super().__init__()
        self.dense = torch.nn.Linear(hidden, hidden)
        self.norm = torch.nn.LayerNorm(hidden)

    def forward(self, states: Tensor) -> Tensor:
        """Map (n, hidden) to (n, hidden)."""
        return self.norm(torch.nn.functional.gelu(self.dense(states)))


def _masked_loss(encoder: Any, head: MaskedHead, bucket: TextBucket) -> Tensor:
    ids = bucket.ids
    column = torch.arange(ids.shape[1], device=ids.device)
    inside = (column > 0) & (column < bucket.last[:, None])
    draw = torch.rand(ids.shape, device=ids.device)
    hidden = inside & (draw < HIDDEN_SHARE)
    mask_id = encoder.config.eos_token_id if encoder.config.eos_token_id is not None else 0
    vocab = encoder.config.vocab_size
    other = torch.randint(vocab, ids.shape, device=ids.device)
    seen = torch.where(hidden & (draw < 0.8 * HIDDEN_SHARE), mask_id, ids)
    seen = torch.where(hidden & (draw >= 0.9 * HIDDEN_SHARE), other, seen)
    masked = TextBucket(ids=seen, last=bucket.last, slots=bucket.slots)
    states = head(hidden_states(encoder, masked)[hidden])
    table = encoder.get_input_embeddings().weight
    return cross_entropy((states @ table.T.to(states.dtype)).float(), ids[hidden])


def _batches_of_tokens(lengths: np.ndarray, tokens: int, seed: int) -> Iterator[np.ndarray]:
    """Yield positions into `lengths`: as many rows of like length as hold so many tokens."""
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(len(lengths))
        rows = max(1, BATCHES_SORTED * tokens // max(1, int(lengths.mean())))
        batches: list[np.ndarray] = []
        for start in range(0, len(order), rows):
            group = order[start : start + rows]
            group = group[np.argsort(-lengths[group], kind="stable")]
            first = 0
            while first < len(group):
                count = max(1, tokens // int(lengths[group[first]]))
                batches.append(group[first : first + count])
                first += count
        for number in draw.permutation(len(batches)):
            yield batches[number]
