"""The `smoke` encoder: a small GPT-2, pre-trained for seconds as a language model.

With the pair loss alone such a model stays at chance; pre-training gives it something to adapt. The
result is cached by everything that it depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nbhelpers.errors import DataError
from nbhelpers.models.inputs import TokenTable, cache_dir, save_in_cache

BATCH, CONTEXT, LEARNING_RATE = 16, 96, 3e-3


def pretrained_encoder(
    config: Any,
    table: TokenTable,
    rows: Any,
    *,
    steps: int,
    seed: int,
    report: Callable[[int, int], None],
) -> Any:
    """Return a GPT-2 encoder after `steps` language-model steps on the functions in `rows`.

    Args:
        table: Token ids of all functions; only `rows` (the train functions) are read.
        report: Called with (done, total).
    """
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Model

    stream = _stream(table, rows)
    path = cache_dir() / "smoke" / f"{_key(config, stream, steps, seed)}.safetensors"
    if path.is_file():
        encoder = GPT2Model(config)
        encoder.load_state_dict(load_file(path))
        return encoder
    encoder = _pretrain(config, stream, steps=steps, seed=seed, report=report)
    tensors = {k: v.contiguous() for k, v in encoder.state_dict().items()}
    save_in_cache(path, lambda part: save_file(tensors, part))
    return encoder


def _stream(table: TokenTable, rows: Any) -> np.ndarray:
    """Return all tokens of the rows, one function after the other, each with its end token."""
    parts = [
        np.append(table.ids[table.offsets[r] : table.offsets[r + 1]], table.eos_id) for r in rows
    ]
    stream = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
    if len(stream) <= CONTEXT + 1:
        raise DataError(
            f"The train functions hold {len(stream)} tokens, too few to pre-train the smoke model.",
            fix="set pretrain_steps to 0 or give more train functions",
        )
    return stream


def _key(config: Any, stream: np.ndarray, steps: int, seed: int) -> str:
    facts = config.to_json_string() + json.dumps([BATCH, CONTEXT, LEARNING_RATE, steps, seed])
    digest = hashlib.sha256(facts.encode() + torch.__version__.encode())
    digest.update(stream.tobytes())
    return digest.hexdigest()[:32]


def _pretrain(
    config: Any, stream: np.ndarray, *, steps: int, seed: int, report: Callable[[int, int], None]
) -> Any:
    from transformers import GPT2LMHeadModel

    torch.manual_seed(seed)
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    draw = np.random.default_rng(seed)
    for step in range(steps):
        starts = draw.integers(0, len(stream) - CONTEXT - 1, BATCH)
        ids = torch.from_numpy(np.stack([stream[s : s + CONTEXT] for s in starts]))
        rate = min(1.0, (step + 1) / 20) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step + 1, steps)
    return model.transformer.eval()
