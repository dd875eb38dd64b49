"""Samples as token ids: where the prompt ends, what is supervised, and that an answer has an end.

A prompt and its answer are tokenised apart, so that the border is where generation will start. The
end token closes every answer that is not cut; without it a model never learns to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nbhelpers.data.instructions import Sample

# Tokens that close a turn, where a chat template has them; others end with the model's own end.
TURN_ENDS = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>")
CHUNK = 512  # texts at a time


IGNORED = -100  # label of a token that is not supervised


@dataclass(slots=True)
class TextTable:
    """Tokenised samples of one split.

    `ids[i]` holds prompt and answer, `prompt_lengths[i]` says where the answer begins;
    `cut` counts answers that lost their end, `dropped` rows whose prompt left no room for one.
    """

    ids: list[np.ndarray]
    prompt_lengths: np.ndarray
    rows: list[int]
    cut: int = 0
    dropped: int = 0
    full_lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """(samples,) tokens of each sample."""
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    @property
    def supervised(self) -> np.ndarray:
        """(samples,) tokens that are learned."""
        return self.lengths - self.prompt_lengths

    def labels(self, index: int) -> np.ndarray:
        """Return the ids of a sample with `IGNORED` in the place of its prompt."""
        labels = self.ids[index].copy()
        labels[: self.prompt_lengths[index]] = IGNORED
        return labels


def end_token(tokenizer: Any, template: str) -> int:
    """Return the id that ends an answer: the turn's end in a chat, else the tokenizer's own.

    Raises:
        ConfigError: The tokenizer has no end token.
    """
    known = tokenizer.get_vocab()
    if template == "chat":
        for name in TURN_ENDS:
            if name in known:
                return int(known[name])
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "The tokenizer has no end token: a model could not learn to stop.",
            fix="set eos_token in the model's tokenizer_config.json",
        )
    return int(tokenizer.eos_token_id)


def stop_tokens(tokenizer: Any, template: str) -> list[int]:
    """Return the ids at which generation stops: the answer's end, and the tokenizer's own."""
    own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    return list(dict.fromkeys([end_token(tokenizer, template), *own]))


def prompt_ids(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Return the ids of prompts, each with exactly one start token where the model has one."""
    start = tokenizer.bos_token
    plain = [not (start and text.startswith(start)) for text in prompts]
    with_start = _encode(tokenizer, [t for t, p in zip(prompts, plain, strict=True) if p], True)
    without = _encode(tokenizer, [t for t, p in zip(prompts, plain, strict=True) if not p], False)
    first, second = iter(with_start), iter(without)
    return [next(first) if is_plain else next(second) for is_plain in plain]


def _encode(tokenizer: Any, texts: list[str], special: bool) -> list[list[int]]:
    if not texts:
        return []
    found = tokenizer(texts, add_special_tokens=special)["input_ids"]
    end, start = tokenizer.eos_token_id, tokenizer.bos_token_id
    if not special or end is None or end == start:
        return found
    # Some tokenizers close every text; a prompt goes on.
    return [ids[:-1] if len(ids) > 1 and ids[-1] == end else ids for ids in found]


def _answer_ids(tokenizer: Any, answers: Sequence[str]) -> list[list[int]]:
    """Return the ids of answers; a mark such as `<eos>` in one is text, and ends nothing.

    Code about tokenizers holds such marks: read as tokens, they would teach to stop in the middle.
    """
    found = _encode(tokenizer, list(answers), False)
    named = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token, *TURN_ENDS)
    marks = {tokenizer.convert_tokens_to_ids(name) for name in named if name is not None}
    marks -= {None, tokenizer.unk_token_id}
    for at, ids in enumerate(found):
        if not marks.isdisjoint(ids):
            plain = tokenizer(answers[at], add_special_tokens=False, split_special_tokens=True)
            found[at] = plain["input_ids"]
    return found


def tokenise_samples(
    samples: Sequence[Sample],
    tokenizer: Any,
    *,
    seq_len: int,
    template: str,
    report: Callable[[int, int], None] | None = None,
) -> TextTable:
    """Return samples as ids, cut to `seq_len`; a cut answer has no end token.

    Raises:
        DataError: Not one sample has room for an answer.
    """
    end = end_token(tokenizer, template)
    ids: list[np.ndarray] = []
    starts, rows, full, cut = [], [], [], 0
    for begin in range(0, len(samples), CHUNK):
        part = samples[begin : begin + CHUNK]
        prompts = prompt_ids(tokenizer, [sample.prompt for sample in part])
        answers = _answer_ids(tokenizer, [sample.completion for sample in part])
        for offset, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            whole = [*prompt, *answer, end]
            full.append(len(whole))
            if len(prompt) >= seq_len:
                continue
            cut += len(whole) > seq_len
            ids.append(np.array(whole[:seq_len], dtype=np.int64))
            starts.append(max(1, len(prompt)))  # nothing comes before a first token to predict it
            rows.append(begin + offset)
        if report is not None:
            report(min(begin + CHUNK, len(samples)), len(samples))
    if samples and not ids:
        raise DataError(
            f"No sample leaves room for an answer in {seq_len} tokens: the shortest prompt is "
            "longer.",
            fix="raise seq_len",
        )
    return TextTable(
        ids=ids,
        prompt_lengths=np.array(starts, dtype=np.int64),
        rows=rows,
        cut=cut,
        dropped=len(samples) - len(ids),
        full_lengths=np.array(full, dtype=np.int64),
    )


def check_ends(table: TextTable, tokenizer: Any, *, template: str, seq_len: int) -> list[str]:
    """Return what is wrong with the ends and starts of samples: nothing, if training can begin.

    An answer that was not cut must end with a supervised end token, and no sample starts twice.
    """
    end, start, problems = end_token(tokenizer, template), tokenizer.bos_token_id, []
    open_ended = sum(int(ids[-1] != end) for ids in table.ids if len(ids) < seq_len)
    if open_ended:
        problems.append(f"{open_ended} answers lack their end token")
    doubled = sum(len(ids) > 1 and ids[0] == start == ids[1] for ids in table.ids)
    if start is not None and doubled:
        problems.append(f"{doubled} samples begin with two start tokens")
    return problems


def coloured_parts(table: TextTable, index: int, tokenizer: Any) -> list[tuple[str, bool]]:
    """Return a sample as (text, is it supervised) parts: the prompt, then the answer."""
    ids, border = table.ids[index].tolist(), int(table.prompt_lengths[index])
    return [(tokenizer.decode(ids[:border]), False), (tokenizer.decode(ids[border:]), True)]
