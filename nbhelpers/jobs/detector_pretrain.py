"""Random weights made useful: a masked language model on the train programs, cached.

No label is read. What a run with pretrained weights brings along, a run without a hub has to learn
first; with random weights alone the encoder has no idea of code.

Source: Devlin et al. 2019, section 3.1 (15 % of the tokens, of which 80 % are masked, 10 % are
random and 10 % stay).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nbhelpers.jobs.context import RunContext
from nbhelpers.models.buckets import TextBucket
from nbhelpers.models.encoders import new_encoder
from nbhelpers.models.encoding import hidden_states
from nbhelpers.models.inputs import TokenTable, cache_dir, save_in_cache

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_inputs import Inputs

RECIPE = 1  # of the cache; raise it when the objective changes
HIDDEN_SHARE, WARMUP_SHARE = 0.15, 0.06
LARGE, SMALL = 3e-4, 3e-3  # peak rates: of models with at least 512 hidden units, and of others
BATCH_TOKENS = {"cuda": 32_768, "cpu": 2_048}
SORTED_BATCHES = 16  # so many batches are drawn at once and sorted by length: little is padded


def pretrained(context: RunContext, inputs: Inputs, config: Any) -> Any:
    """Return an encoder after `pretrain_steps` masked-language-model steps, in fp32 on the CPU."""
    from safetensors.torch import load_file, save_file

    s, device = context.settings, context.accelerator.device
    rows = _distinct(inputs)
    path = cache_dir() / "detector" / f"{_key(context, inputs.table, rows, config)}.safetensors"
    encoder = new_encoder(config)
    if path.is_file():
        encoder.load_state_dict(load_file(path))
        return encoder
    context.clock.phase("pretrain")
    report = context.progress("pretrain")
    for done, loss in enumerate(_steps(context, encoder.to(device), inputs.table, rows), 1):
        report(done, s.pretrain_steps)
        if done in (1, s.pretrain_steps):
            context.emit("pretrain", step=done, loss=float(loss))
    encoder.to("cpu").eval()
    if context.is_main:
        tensors = {k: v.contiguous() for k, v in encoder.state_dict().items()}
        save_in_cache(path, lambda part: save_file(tensors, part))
    context.clock.phase("model")
    return encoder


def _distinct(inputs: Inputs) -> np.ndarray:
    """Return table rows of the train programs, in every form that training may read."""
    train = inputs.rows[inputs.data.splits["train"]]
    found = np.concatenate([train, *inputs.forms.values()])
    return np.unique(found[found >= 0])


def _key(context: RunContext, table: TokenTable, rows: np.ndarray, config: Any) -> str:
    s = context.settings
    device = context.accelerator.device.type
    facts = [RECIPE, s.pretrain_steps, s.seed, table.seq_len, device, torch.__version__]
    digest = hashlib.sha256(f"{config.to_json_string()}{json.dumps(facts)}".encode())
    for row in rows:
        digest.update(table.ids[table.offsets[row] : table.offsets[row + 1]].tobytes() + b";")
    return digest.hexdigest()[:32]


def _steps(
    context: RunContext, encoder: Any, table: TokenTable, rows: np.ndarray
) -> Iterator[Tensor]:
    """Train; yield the loss of each step, on the device."""
    s, device = context.settings, context.accelerator.device
    torch.manual_seed(s.seed)
    encoder.train()
    head = MaskedHead(encoder.config.hidden_size).to(device)
    peak = LARGE if encoder.config.hidden_size >= 512 else SMALL
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=0.01, betas=(0.9, 0.98))
    batches = _batches(table.lengths[rows], BATCH_TOKENS[device.type], s.seed)
    warmup = max(1, int(WARMUP_SHARE * s.pretrain_steps))
    for step in range(s.pretrain_steps):
        picked = rows[next(batches)]
        rate = min(1.0, (step + 1) / warmup) * (1 - step / s.pretrain_steps)
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        width = int(table.lengths[picked].max())
        bucket = table.bucket(picked, width).to(lambda x: x.to(device, non_blocking=True))
        with context.accelerator.autocast():
            loss = _loss(encoder, head, bucket)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


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


def _loss(encoder: Any, head: MaskedHead, bucket: TextBucket) -> Tensor:
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


def _batches(lengths: np.ndarray, tokens: int, seed: int) -> Iterator[np.ndarray]:
    """Yield positions into `lengths`: as many rows of like length as hold so many tokens."""
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(len(lengths))
        rows = max(1, SORTED_BATCHES * tokens // max(1, int(lengths.mean())))
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
