"""Promise: the smoke language model is a small Gemma-2, the same in every run, made once."""

from __future__ import annotations

import pytest
from contexts import make_context

from nbhelpers.jobs.measure import Clock

pytestmark = pytest.mark.slow

SEED = 7


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    from nbhelpers.jobs.models import smoke_causal

    return smoke_causal


def _make(smoke, steps=2, seed=SEED):
    """Return the base, and how often it reported."""
    calls = []
    model, tokenizer = smoke.smoke_base(
        steps=steps, seed=seed, report=lambda done, total: calls.append((done, total))
    )
    return model, tokenizer, calls


def _same(one, other):
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def test_it_is_a_small_gemma_2_in_fp32_of_the_known_size_and_kept_in_the_cache(smoke):
    from transformers import Gemma2ForCausalLM

    model, tokenizer, calls = _make(smoke)
    shape = smoke.SMOKE_CAUSAL
    assert type(model) is Gemma2ForCausalLM and not model.training and calls == [(1, 2), (2, 2)]
    assert {p.dtype.itemsize for p in model.parameters()} == {4}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    spare = (shape.vocab - len(tokenizer)) * shape.hidden  # words that the sample does not have
    assert spare >= 0 and model.num_parameters() == shape.parameters() - spare
    assert model.config.final_logit_softcapping and model.config.attn_logit_softcapping
    # NF4 keeps blocks of 64 numbers.
    assert all(p.numel() % 64 == 0 for p in model.parameters() if p.dim() == 2)
    again, _, calls = _make(smoke)  # from the cache
    assert calls == [] and _same(model, again) and not again.training
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_other_steps_seeds_and_recipes_are_other_models(smoke, monkeypatch):
    first, _, _ = _make(smoke)
    for steps, seed in ((1, SEED), (2, SEED + 1)):
        other, _, calls = _make(smoke, steps, seed)
        assert len(calls) == steps and not _same(first, other)
    monkeypatch.setattr(smoke, "LEARNING_RATE", 1e-3)
    assert _make(smoke)[2]


def test_a_lost_or_damaged_cache_gives_the_same_model(smoke, tmp_path):
    first, tokenizer, _ = _make(smoke)
    for path in (tmp_path / "smoke").iterdir():
        path.write_bytes(b"damaged")
    again, words, calls = _make(smoke)
    assert calls and _same(first, again) and words.get_vocab() == tokenizer.get_vocab()
    assert _make(smoke)[2] == []


def test_threads_and_random_numbers_are_left_as_they_were(smoke):
    import torch

    before = torch.get_num_threads()
    draws = []
    for _ in range(2):  # trained, then from the cache
        torch.manual_seed(3)
        _make(smoke)
        draws.append(torch.rand(1).item())
    assert draws[0] == draws[1] and torch.get_num_threads() == before


def test_the_tokenizer_ends_starts_and_pads_with_different_tokens(smoke):
    tokenizer = smoke.smoke_tokenizer()
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    assert ids == (0, 1, 2) and len(tokenizer) == smoke.SMOKE_CAUSAL.vocab
    text = "def total_é(x):\n    return x + 120\n\t# ok"
    found = tokenizer(text)["input_ids"]
    assert found[0] == 2 and found.count(2) == 1 and 1 not in found
    assert tokenizer.decode(found, skip_special_tokens=True) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer("120")["input_ids"])[1:] == ["1", "2", "0"]
    assert tokenizer.chat_template is None  # as Gemma's base, which was tuned on no chat


def test_the_tokenizer_survives_being_saved(smoke, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = smoke.smoke_tokenizer()
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    text = "def f(items):\n    return items[:12]"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.all_special_tokens == tokenizer.all_special_tokens


def test_a_module_ends_with_the_end_token_and_batches_come_in_an_order_of_the_seed(smoke):
    tokenizer = smoke.smoke_tokenizer()
    batch = next(smoke._batches(tokenizer, 1))
    assert batch.shape == (smoke.BATCH, smoke.WIDTH)
    assert batch.equal(next(smoke._batches(tokenizer, 1)))
    assert not batch.equal(next(smoke._batches(tokenizer, 2)))
    follows = [row[at + 1].item() for row in batch for at in (row[:-1] == 1).nonzero()]
    assert set(follows) == {tokenizer.bos_token_id}


def test_pretraining_is_a_phase_of_its_own_and_only_where_it_happens():
    events = []

    def emit(kind, **fields):
        events.append((kind, *fields.values()))

    report = make_context(emit_rank=emit, clock=Clock(emit)).pretraining()
    assert events == []  # the cache has the model: nothing is reported
    for done in (1, 2):
        report(done, 2)
    assert events[0] == ("phase", "pretrain") and events[-1] == ("phase", "model")
    assert events[-2] == ("progress", "pretrain", 2, 2)
