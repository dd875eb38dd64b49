"""Text to token ids, once per distinct function, and ids to padded batches.

Shapes: `n` functions, `batch` rows, `length` tokens. Ids are int32 on disk and int64 on the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from nbhelpers.cache import cache_dir, save_in_cache
from nbhelpers.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.models.buckets import TextBucket

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
CACHE_FORMAT = 1


def collapse_whitespace(code: str) -> str:
    """Return the code with every run of whitespace as one blank, as CodeXGLUE feeds it.

    >>> collapse_whitespace("int  f() {\\n\\treturn 1; }")
    'int f() { return 1; }'
    """
    return " ".join(code.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """Token ids of many functions in one flat array, without special tokens.

    Args:
        ids: (total_tokens,) int32.
        offsets: (n + 1,) int64; function i is `ids[offsets[i]:offsets[i + 1]]`.
        bos_id: Put before each function, or None.
        eos_id: Put after each function.
        pad_id: Fills a batch on the right.
        seq_len: Tokens per function at most, `bos` and `eos` included.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    bos_id: int | None
    eos_id: int
    pad_id: int
    seq_len: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) tokens of each function after truncation, special tokens included."""
        special = 1 + (self.bos_id is not None)
        return np.minimum(np.diff(self.offsets) + special, self.seq_len)

    @property
    def truncated(self) -> int:
        """Number of functions longer than `seq_len`."""
        special = 1 + (self.bos_id is not None)
        return int((np.diff(self.offsets) + special > self.seq_len).sum())

    def bucket(self, rows: NDArray[Any], width: int) -> TextBucket:
        """Return these functions as tensors of `width` columns, on the CPU."""
        import torch

        from nbhelpers.models.buckets import TextBucket, packed_slots

        lengths = self.lengths[rows]
        return TextBucket(
            ids=torch.from_numpy(self.pad(rows, width)),
            last=torch.from_numpy(lengths - 1),
            slots=packed_slots(lengths, width),
        )

    @property
    def used(self) -> NDArray[np.int64]:
        """(n,) tokens that are not padding."""
        return self.lengths

    def pad(self, rows: Sequence[int] | NDArray[Any], width: int) -> NDArray[np.int64]:
        """Return (len(rows), width) ids, padded on the right."""
        out = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        first = self.bos_id is not None
        room = self.seq_len - 1 - first
        for line, row in enumerate(rows):
            body = self.ids[self.offsets[row] : self.offsets[row + 1]][:room]
            if first:
                out[line, 0] = self.bos_id
            out[line, first : first + len(body)] = body
            out[line, first + len(body)] = self.eos_id
        return out


def train_bpe(
    texts: Sequence[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    collapse: bool = True,
) -> Any:
    """Return a byte-level BPE tokenizer trained on the texts.

    Args:
        special_tokens: `<pad>`, `<s>`, `</s>` and `<unk>`, in the order of their ids.
        collapse: Read any white space as one blank.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(map(collapse_whitespace, texts) if collapse else texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
    )


def _fingerprint(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(
    texts: Sequence[str], tokenizer: Any, report: Callable[[int, int], None], *, collapse: bool
) -> list[Any]:
    """Tokenise in blocks; text that looks like a special token stays text."""
    rows: list[Any] = []
    for start in range(0, len(texts), 1000):
        block = list(texts[start : start + 1000])
        block = [collapse_whitespace(text) for text in block] if collapse else block
        encoded = tokenizer(
            block, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        rows += [np.asarray(ids, dtype=np.int32) for ids in encoded["input_ids"]]
        report(len(rows), len(texts))
    return rows


def _load_cached(path: Path, count: int) -> tuple[Any, Any] | None:
    """Return (ids, offsets) from the cache, or None when there is none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            ids, offsets = saved["ids"], saved["offsets"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return (ids, offsets) if len(offsets) == count + 1 and offsets[-1] == len(ids) else None


def tokenise(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    seq_len: int,
    vocab_size: int,
    collapse: bool = True,
    is_cached: bool = True,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> TokenTable:
    """Tokenise each distinct text once, from the cache when these texts were seen before.

    Args:
        texts: Source code, one string per function.
        tokenizer: A Hugging Face tokenizer.
        seq_len: Tokens per function at most, special tokens included.
        vocab_size: Rows of the model's embedding; an id beyond it is an error, not a GPU crash.
        collapse: Read any white space as one blank.
        is_cached: Keep the ids on disk for the next time.
        report: Called with (done, total) as blocks are tokenised.

    Raises:
        ConfigError: The tokenizer does not belong to the model.
    """
    distinct: dict[str, int] = {}
    place = np.array([distinct.setdefault(text, len(distinct)) for text in texts], dtype=np.int64)
    form = "" if collapse else "layout"
    digest = hashlib.sha256(f"{CACHE_FORMAT}{form}{_fingerprint(tokenizer)}".encode())
    for text in distinct:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    path = cache_dir() / "tokens" / f"{digest.hexdigest()[:40]}.npz"
    cached = _load_cached(path, len(distinct)) if is_cached else None
    if cached is None:
        rows = _encode(list(distinct), tokenizer, report, collapse=collapse)
        ids = np.concatenate([*rows, np.zeros(0, dtype=np.int32)])
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        if is_cached:
            save_in_cache(path, lambda part: np.savez(part, ids=ids, offsets=offsets))
    else:
        ids, offsets = cached
    return _table(ids, offsets, place, tokenizer, seq_len=seq_len, vocab_size=vocab_size)


def _table(
    ids: Any, offsets: Any, place: Any, tokenizer: Any, *, seq_len: int, vocab_size: int
) -> TokenTable:
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ConfigError(
            "The tokenizer has no end token, and the clone model pools the end token.",
            fix="use a tokenizer with eos_token set",
        )
    bos, pad = tokenizer.bos_token_id, tokenizer.pad_token_id
    pad = eos if pad is None or pad >= vocab_size else pad
    highest = max(int(ids.max(initial=0)), eos, bos or 0)
    if highest >= vocab_size:
        raise ConfigError(
            f"The tokenizer gives id {highest}, but the model's embedding has {vocab_size} rows.",
            fix="take tokenizer and model from the same folder or hub id",
        )
    if len(place) == len(offsets) - 1:
        return TokenTable(
            ids=ids, offsets=offsets, bos_id=bos, eos_id=eos, pad_id=pad, seq_len=seq_len
        )
    spans = [ids[offsets[i] : offsets[i + 1]] for i in place]
    flat = np.concatenate([*spans, np.zeros(0, dtype=np.int32)])
    ends = np.concatenate([[0], np.cumsum([len(span) for span in spans])]).astype(np.int64)
    return TokenTable(ids=flat, offsets=ends, bos_id=bos, eos_id=eos, pad_id=pad, seq_len=seq_len)


def length_buckets(
    lengths: NDArray[np.int64], *, ratio: float, min_tokens: int
) -> list[NDArray[np.int64]]:
    """Split rows into groups of like length, longest first, so that little is padded.

    A group ends where a row is shorter than `ratio` of the group's longest row, once the group
    holds `min_tokens` padded tokens (small groups leave a GPU waiting for kernel launches).

    >>> [g.tolist() for g in length_buckets(np.array([9, 100, 90]), ratio=0.7, min_tokens=0)]
    [[1, 2], [0]]
    """
    order = np.argsort(-lengths, kind="stable")
    groups, start = [], 0
    for end in range(1, len(order) + 1):
        head = lengths[order[start]]
        closes = end == len(order) or (
            lengths[order[end]] < ratio * head and (end - start) * head >= min_tokens
        )
        if closes:
            groups.append(order[start:end])
            start = end
    return groups
