"""Samples as tokens, and micro-batches of them: padded, or packed end to end in one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nbhelpers.data.instructions import Sample


# ------------------------------------------------------------------------------------------------
# Samples as token ids: where the prompt ends, what is supervised, and that an answer has an end.
#
# A prompt and its answer are tokenised apart, so that the border is where generation will start.
# The end token closes every answer that is not cut; without it a model never learns to stop.


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

    def sizes(self, rows: np.ndarray) -> list[list[int]]:
        """Return [tokens, those of the prompt] of each of these samples."""
        return np.stack([self.lengths[rows], self.prompt_lengths[rows]], axis=1).tolist()

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


def pad_token(tokenizer: Any) -> int:
    """Return the id that fills rows; never told from an end token by its number."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


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
    rows = tokenizer(texts, add_special_tokens=special)["input_ids"]
    end, start = tokenizer.eos_token_id, tokenizer.bos_token_id
    if not special or end is None or end == start:
        return rows
    # Some tokenizers close every text; a prompt goes on.
    return [ids[:-1] if len(ids) > 1 and ids[-1] == end else ids for ids in rows]


def _answer_ids(tokenizer: Any, answers: Sequence[str]) -> list[list[int]]:
    """Return the ids of answers; a mark such as `<eos>` in one is text, and ends nothing.

    Code about tokenizers holds such marks: read as tokens, they would teach to stop in the middle.
    """
    rows = _encode(tokenizer, list(answers), False)
    named = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token, *TURN_ENDS)
    marks = {tokenizer.convert_tokens_to_ids(name) for name in named if name is not None}
    marks -= {None, tokenizer.unk_token_id}
    for at, ids in enumerate(rows):
        if not marks.isdisjoint(ids):
            plain = tokenizer(answers[at], add_special_tokens=False, split_special_tokens=True)
            rows[at] = plain["input_ids"]
    return rows


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


def coloured_parts(table: TextTable, index: int, tokenizer: Any) -> list[tuple[str, bool]]:
    """Return a sample as (text, is it supervised) parts: the prompt, then the answer."""
    ids, border = table.ids[index].tolist(), int(table.prompt_lengths[index])
    return [(tokenizer.decode(ids[:border]), False), (tokenizer.decode(ids[border:]), True)]


# ------------------------------------------------------------------------------------------------
# Micro-batches of causal models: padded to the right, or packed end to end into one row.


PADDING = -1  # the segment of padding
BLOCK = 128  # rows of flex_attention's blocks; packed rows are padded to a multiple


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples of a batch lie: (batch, seq_len) numbers; padding is a sample of its own.

    `positions` count from 0 in each sample. `starts` says where the sample of each token begins,
    and stays on the host: what follows from it costs no wait for the GPU.
    """

    segments: Tensor
    positions: Tensor
    starts: np.ndarray | None = None

    def first_tokens(self) -> np.ndarray:
        """Return (batch, seq_len) first tokens of each one's sample, each sample in one piece."""
        if self.starts is not None:
            return self.starts
        segments = self.segments.cpu().numpy()  # a host-device sync
        return first_tokens(segments)


def first_tokens(segments: np.ndarray) -> np.ndarray:
    """Return (batch, seq_len) where the run of equal numbers begins that each token is in.

    >>> first_tokens(np.array([[4, 4, 7, -1, -1]])).tolist()
    [[0, 0, 2, 3, 3]]
    """
    places = np.broadcast_to(np.arange(segments.shape[1]), segments.shape)
    begins = np.ones(segments.shape, dtype=bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return np.maximum.accumulate(np.where(begins, places, 0), axis=1)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host's tensor on a device; to a GPU, without waiting for what it is doing."""
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def supervised(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the next token is supervised, and those tokens.

    Args:
        labels: (batch, seq_len), `IGNORED` where nothing is to be learned.

    Returns:
        positions (n,) into the flattened (batch x seq_len) hidden states, targets (n,).
    """
    following = torch.full_like(labels, IGNORED)
    following[:, :-1] = labels[:, 1:]
    following = following.reshape(-1)
    positions = (following != IGNORED).nonzero().squeeze(1)
    return positions, following[positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-step's samples: (rows, width) each; `padded` packed rows count their padding.

    `learned` is what `supervised` finds in the labels. It is looked for when the batch is made,
    as a GPU would have to finish all it is doing to tell how many tokens there are; `labels` stay
    where they were made.
    """

    ids: Tensor
    labels: Tensor
    learned: tuple[Tensor, Tensor]
    layout: Layout
    samples: int
    useful_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Positions that are computed."""
        return self.ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return the batch on a device, without waiting for what a GPU is doing."""
        at, targets = self.learned
        layout = self.layout
        return MicroBatch(
            ids=send(self.ids, device),
            labels=self.labels,
            learned=(send(at, device), send(targets, device)),
            layout=Layout(
                send(layout.segments, device), send(layout.positions, device), layout.starts
            ),
            samples=self.samples,
            useful_tokens=self.useful_tokens,
        )


def make_batch(
    table: TextTable,
    rows: np.ndarray,
    *,
    pad_id: int,
    packed: bool,
    width: int | None = None,
    multiple: int = 8,
    is_graphed: bool = False,
) -> MicroBatch:
    """Return samples as one micro-batch.

    Args:
        rows: Of `table`; none: a stand-in of two tokens that nothing is learned from.
        packed: All samples in one row, padded to a multiple of `multiple`.
        width: Pad each row to this (not when packed); None: to the longest.
        multiple: Of the width; flex_attention wants its block.
        is_graphed: Few widths; see `padded_width`.
    """
    if not len(rows):
        return _stand_in(pad_id, padded_width(2, multiple, is_graphed=is_graphed))
    lengths = [len(table.ids[row]) for row in rows]
    places = _packed_places(lengths) if packed else [(row, 0) for row in range(len(rows))]
    longest = sum(lengths) if packed else max(lengths)
    wide = width
    if width is None or packed:
        wide = padded_width(longest, multiple, is_graphed=is_graphed)
    shape = (1 if packed else len(rows), wide)
    ids, labels = np.full(shape, pad_id), np.full(shape, IGNORED)
    segments, positions = np.full(shape, PADDING), np.zeros(shape, dtype=np.int64)
    for number, (row, (line, at)) in enumerate(zip(rows, places, strict=True)):
        span = slice(at, at + lengths[number])
        ids[line, span], labels[line, span] = table.ids[row], table.labels(row)
        segments[line, span], positions[line, span] = number, np.arange(lengths[number])
    return MicroBatch(
        ids=torch.from_numpy(ids),
        labels=torch.from_numpy(labels),
        learned=supervised(torch.from_numpy(labels)),
        layout=Layout(
            torch.from_numpy(segments), torch.from_numpy(positions), first_tokens(segments)
        ),
        samples=len(rows),
        useful_tokens=sum(lengths),
    )


def _packed_places(lengths: list[int]) -> list[tuple[int, int]]:
    starts = np.cumsum([0, *lengths[:-1]])
    return [(0, int(start)) for start in starts]


def _stand_in(pad_id: int, width: int) -> MicroBatch:
    blank = torch.full((1, width), PADDING)
    labels = torch.full((1, width), IGNORED)
    return MicroBatch(
        ids=torch.full((1, width), pad_id),
        labels=labels,
        learned=supervised(labels),
        layout=Layout(blank, torch.zeros_like(blank)),
        samples=0,
        useful_tokens=0,
    )


def padded_width(longest: int, multiple: int, *, is_graphed: bool = False) -> int:
    """Return the width of rows whose longest has so many tokens.

    Rows in blocks have two at least: torch.compile takes a single one for a case of its own.

    Args:
        is_graphed: Of a micro-batch whose computation is captured: few widths, each at most a
            sixteenth of padding or 255 tokens.

    >>> padded_width(5, 8), padded_width(300, 128), padded_width(100, 128)
    (8, 384, 256)
    >>> [padded_width(longest, 128, is_graphed=True) for longest in (2100, 5000, 9000)]
    [2304, 5120, 9216]
    """
    if is_graphed:
        multiple = max(2 * BLOCK, 2 ** (longest.bit_length() - 1) // 16)
    width = -(-longest // multiple) * multiple
    return max(width, 2 * BLOCK) if multiple == BLOCK else width


def row_multiple(kernel: str, packed: bool) -> int:
    """Return what the width of a row must be a multiple of."""
    return BLOCK if kernel == "flex" else 8 if packed else 1
