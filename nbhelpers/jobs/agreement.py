"""How far what is written for others is from what was trained, measured before it gets its name.

Language models: top-1 and KL of next-token distributions on the same texts. Detectors: the largest
differences of logits and vectors of the same programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.errors import RequirementMissed
from nbhelpers.jobs.models.causal_batches import prompt_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ------------------------------------------------------------------------------------------------
# Language models.


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
        divergence = (p.exp() * (p - q)).nan_to_num(nan=math.inf).sum(-1).clamp(min=0)
        same += float((p.argmax(-1) == q.argmax(-1)).sum())
        total += float(divergence.double().sum())
        worst = max(worst, float(divergence.max()))
    count = len(reference)
    return Agreement(top1=same / count, kl=total / count, kl_max=worst, positions=count)


# ------------------------------------------------------------------------------------------------
# Detectors.


PROGRAMS, ORIGIN = 16, "programs of the bundled sample"
# Logits have no unit: p_ai moves by at most a quarter of a difference. Vectors have length 1.
RELOAD_LIMIT = 1e-5  # the same weights through the same code
FORM_LIMIT = 1e-4  # through other libraries' code, in fp32 as well
ONNX_LIMIT = 1e-3  # other kernels, in fp32 as well; half precision would miss it
# What real files hold besides programs: nothing, one word, letters of other scripts.
_ODD = ("", "x\n", "# naïve 三角 Привет\nprint('—')\n")
Scores = tuple["NDArray[np.float32]", "NDArray[np.float32]"]  # (n,) logits, (n, dimensions) vectors


def compare_scores(
    form: str,
    pairs: Iterable[tuple[Scores, Scores]],
    *,
    programs: int,
    limit: float,
    batches: int | None = None,
) -> dict[str, Any]:
    """Return how far an exported form is from the trained model, at most, over all programs.

    Args:
        form: What it is called.
        pairs: Scores of the trained model and of the form, of the same programs.
        programs: How many there are.
        limit: The largest difference that is allowed, of a logit and of a number of a vector.
        batches: In how many they were scored; None: one for each pair.

    Raises:
        RequirementMissed: They differ by more.

    >>> one = (np.array([1.0]), np.array([[1.0, 0.0]]))
    >>> compare_scores("copy", [(one, one)], programs=1, limit=1e-5)["vector"]
    0.0
    """
    gaps = [
        (_largest_gap(trained[0], exported[0]), _largest_gap(trained[1], exported[1]))
        for trained, exported in pairs
    ]
    logit, vector = (max(gap) for gap in zip(*gaps, strict=True))
    if not (logit <= limit and vector <= limit):
        raise RequirementMissed(
            f"The exported {form} does not agree with the trained model: over {programs} programs "
            f"the largest difference of a logit is {logit:.3g}, of a vector {vector:.3g}; "
            f"{limit:g} is allowed. Nothing was written.",
            fix="export again with other versions of torch, transformers or onnxruntime (the run's "
            "are in its report)",
        )
    sizes = {"programs": programs, "batches": batches or len(gaps)}
    return {"form": form, **sizes, "logit": logit, "vector": vector, "limit": limit}


def _largest_gap(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference; infinite where only one is a number or the shapes differ.

    A model without a classifier has no logit: NaN on both sides is no difference.
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape:
        return float("inf")
    gap = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
    return float("inf") if not np.isfinite(gap).all() else float(gap.max(initial=0.0))


def find_programs(language: str = "") -> list[str]:
    """Return programs of the bundled sample to compare on, and a few odd ones.

    They are spread over all lengths, from the shortest to the longest.

    Args:
        language: Of the programs; "": of all.
    """
    of_it = [row for row in load_style_rows() if language in ("", row["language"])]
    rows = sorted({row["code"] for row in of_it}, key=lambda code: (len(code), code))
    chosen = [rows[i] for i in np.linspace(0, len(rows) - 1, min(PROGRAMS, len(rows))).astype(int)]
    return [*_ODD, *dict.fromkeys(chosen), "\n".join(chosen)]


def batches_of(lengths: Sequence[int], longest: int) -> list[tuple[list[int], int]]:
    """Return (rows, width) of batches that cover what a graph has to bear.

    Every program alone without padding, batches of mixed lengths, pairs of like length, and all
    together with padding beyond the longest, where the model can number so many tokens.

    >>> batches_of([5, 9], longest=64)
    [([0], 5), ([1], 9), ([0, 1], 9), ([0, 1], 9), ([0, 1], 12)]
    """
    rows = list(range(len(lengths)))
    by_length = sorted(rows, key=lambda row: lengths[row])
    mixed = [rows[at :: max(1, len(rows) // 4)] for at in range(max(1, len(rows) // 4))]
    pairs = [by_length[at : at + 2] for at in range(0, len(rows), 2)]
    groups = [[row] for row in rows] + mixed + pairs
    widths = [(group, max(lengths[row] for row in group)) for group in groups]
    return [*widths, (rows, min(max(lengths) + 3, longest))]
