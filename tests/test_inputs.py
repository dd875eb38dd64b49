"""Promise: source text becomes the tokens that CodeXGLUE's script feeds, never special ones."""

from __future__ import annotations

import numpy as np
import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models import inputs
from nbhelpers.jobs.models.inputs import tokenise, train_bpe

TEXTS = ["int f(int a) { return a + 1; }", "int  f(int a)\n{\treturn a + 1; }", "void g() { }"]


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TEXTS * 4, 400)


def table(texts, bpe, seq_len=64, vocab_size=None):
    return tokenise(texts, bpe, seq_len=seq_len, vocab_size=vocab_size or len(bpe))


def test_whitespace_does_not_change_the_tokens(bpe) -> None:
    spans = table(["int f() { return 1; }", "int\n\tf()  { return 1; }  "], bpe)
    first, second = spans.pad([0, 1], int(spans.lengths.max()))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("special", ["<s>", "</s>", "<pad>", "<unk>"])
def test_text_that_looks_like_a_special_token_stays_text(bpe, special: str) -> None:
    code = f'String s = "{special}";'
    spans = table([code], bpe)
    body = spans.ids.tolist()
    assert not set(body) & {bpe.bos_token_id, bpe.eos_token_id, bpe.pad_token_id, bpe.unk_token_id}
    assert bpe.decode(body) == code


def test_a_long_function_keeps_its_start_and_its_end_token(bpe) -> None:
    spans = table(["a b c d e f g h"], bpe, seq_len=8)
    (row,) = spans.pad([0], 8)
    assert spans.truncated == 1 and spans.lengths.tolist() == [8]
    assert row[0] == bpe.bos_token_id and row[-1] == bpe.eos_token_id
    assert row[1:-1].tolist() == spans.ids[:6].tolist()


def test_the_last_position_is_the_end_token_and_the_rest_padding(bpe) -> None:
    spans = table(TEXTS, bpe)
    for i, row in enumerate(spans.pad([0, 1, 2], 50)):
        assert row[spans.lengths[i] - 1] == bpe.eos_token_id
        assert (row[spans.lengths[i] :] == bpe.pad_token_id).all()


def test_each_distinct_text_is_tokenised_once_and_the_second_time_comes_from_the_cache(
    bpe, monkeypatch
) -> None:
    seen = []
    real = inputs._encode

    def watched(texts, *args, **options):
        seen.append(list(texts))
        return real(texts, *args, **options)

    monkeypatch.setattr(inputs, "_encode", watched)
    first = table([*TEXTS, TEXTS[0]], bpe)
    again = table([*TEXTS, TEXTS[0]], bpe)
    assert seen == [TEXTS]
    assert np.array_equal(first.pad(range(4), 40), again.pad(range(4), 40))
    assert first.pad([0], 40).tolist() == first.pad([3], 40).tolist()


@pytest.mark.parametrize("damage", [b"", b"junk", b"PK\x03\x04junk"])
def test_a_damaged_cache_is_made_again(bpe, tmp_path, damage: bytes) -> None:
    first = table(TEXTS, bpe)
    (file,) = (tmp_path / "cache" / "tokens").iterdir()
    file.write_bytes(damage)
    assert np.array_equal(table(TEXTS, bpe).ids, first.ids)


def test_an_unwritable_cache_is_only_slower(bpe, tmp_path, monkeypatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("NBHELPERS_CACHE", str(blocker))
    assert table(TEXTS, bpe).lengths.min() > 2


def test_a_tokenizer_of_another_model_is_an_error_not_a_crash(bpe) -> None:
    with pytest.raises(ConfigError, match="embedding has 50 rows"):
        table(TEXTS, bpe, vocab_size=50)


def test_an_empty_list_gives_an_empty_table(bpe) -> None:
    assert table([], bpe).lengths.tolist() == []
