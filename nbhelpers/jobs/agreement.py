"""How far two models agree: top-1 and KL of their next-token distributions on the same texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nbhelpers.jobs.models.causal_batches import prompt_ids

MAX_TEXTS = 64
# All distributions of one model are held on the CPU as fp32: at most this many numbers (512 MiB).
MAX_NUMBERS = 2**27
MAX_POSITIONS = 4096


class Text(NamedTuple):
    """A dressed prompt and what follows it; distributions are compared over what follows."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """`top1`: share of positions with the same most likely token; `kl`: mean, in nats."""

    top1: float
    kl: float
    kl_max: float
    positions: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Token ids of one text, (1, tokens), and the positions whose next token is looked at."""

    ids: Tensor
    positions: Tensor


def prepare(texts: Sequence[Text], tokenizer: Any, *, seq_len: int, vocabulary: int) -> list[Rows]:
    """Tokenise texts and choose positions: from the prompt's last token to the one before the end.

    Where there would be too many, they are taken at even distances in each text.
    """
    texts = list(texts)[:MAX_TEXTS]
    budget = max(1, min(MAX_POSITIONS, MAX_NUMBERS // vocabulary) // max(1, len(texts)))
    rows = []
    for text in texts:
        first = prompt_ids(tokenizer, [text.prompt])[0]
        after = tokenizer(text.answer, add_special_tokens=False)["input_ids"] if text.answer else []
        ids = torch.tensor([[*first, *after][:seq_len]])
        start = min(len(first) - 1, ids.shape[1] - 1)
        count = min(budget, ids.shape[1] - start)
        chosen = torch.linspace(start, ids.shape[1] - 1, count).round().long()
        rows.append(Rows(ids, chosen))
    return rows


@torch.inference_mode()
def distributions(model: Any, rows: Sequence[Rows]) -> Tensor:
    """Return log-probabilities of the next token: fp32 on the CPU, (positions, vocabulary)."""
    device = next(model.parameters()).device
    parts = []
    for row in rows:
        logit_positions = row.positions.to(device)  # logits of these positions only
        out = model(input_ids=row.ids.to(device), use_cache=False, logits_to_keep=logit_positions)
        parts.append(out.logits[0].float().log_softmax(-1).cpu())
    return torch.cat(parts)


def agreement(reference: Tensor, other: Tensor) -> Agreement:
    """Compare log-probabilities, (positions, vocabulary) each; KL(reference || other) in nats.

    Source: Kullback and Leibler 1951; sum over p log(p / q), which rounding may leave a hair
    below zero.

    >>> a = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    >>> agreement(a, a).top1, agreement(a, a).kl
    (1.0, 0.0)
    >>> b = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log()
    >>> agreement(a, b).top1, round(agreement(a, b).kl, 4) == round(0.4 * math.log(9), 4)
    (0.5, True)
    """
    same = total = 0.0
    worst = 0.0
    for p, q in zip(reference.split(64), other.split(64), strict=True):
        each = (p.exp() * (p - q)).nan_to_num(nan=math.inf).sum(-1).clamp(min=0)
        same += float((p.argmax(-1) == q.argmax(-1)).sum())
        total += float(each.double().sum())
        worst = max(worst, float(each.max()))
    count = len(reference)
    return Agreement(top1=same / count, kl=total / count, kl_max=worst, positions=count)
