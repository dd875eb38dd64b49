"""Promise: an answer is what greedy decoding of its prompt alone gives, and says how it ended."""

from __future__ import annotations

from typing import Any

import finetune_probe as probe
import pytest
import torch
from causal_tiny import END, PAD, VOCAB, tiny_gemma
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from nbhelpers.errors import ConfigError, Stopped
from nbhelpers.jobs.generate import Answer, _answer, generate_answers
from nbhelpers.jobs.models.causal_batches import prompt_ids, stop_tokens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]
NEW = 12
# From one word to more than the sliding window of 16.
PROMPTS = [" ".join(f"w{3 + (7 * i + j * j) % 290}" for j in range(n)) for i, n in
           enumerate([5, 1, 24, 9, 40, 2])]  # fmt: skip


def tiny_llama() -> Any:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=END,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "proj" in name:
            parameter.data.mul_(3.0)
    return model.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def gemma() -> Any:
    return tiny_gemma(scale=3.0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return probe.tiny_tokenizer()


@pytest.fixture(scope="module")
def alone(gemma: Any, tokenizer: Any) -> list[list[int]]:
    """What the model writes after each prompt."""
    return by_hand(gemma, tokenizer)


@torch.no_grad()
def by_hand(model: Any, tokenizer: Any, count: int = NEW) -> list[list[int]]:
    """Greedy decoding without padding, cache or library: the whole text anew for each token."""
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        begin = len(ids)
        for _ in range(count):
            ids = [*ids, int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())]
        found.append(ids[begin:])
    return found


def generate(model: Any, tokenizer: Any, **changes: Any) -> list[Answer]:
    options = {"stop_ids": [END], "pad_id": PAD, "max_new_tokens": NEW, "batch_size": 4}
    options |= {"prompts": PROMPTS, "precision": "fp32"} | changes
    return generate_answers(model, tokenizer, options.pop("prompts"), **options)


@pytest.mark.parametrize("family", ["gemma", "llama"])
@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_a_batch_answers_as_each_prompt_alone(family: str, batch_size: int, gemma: Any, tokenizer):
    model = gemma if family == "gemma" else tiny_llama()
    wanted = [tokenizer.decode(ids) for ids in by_hand(model, tokenizer)]
    assert len(set(wanted)) == len(PROMPTS), "the prompts do not matter to this model"
    found = generate(model, tokenizer, batch_size=batch_size)
    assert [answer.text for answer in found] == wanted
    assert all(answer.new_tokens == NEW and not answer.stopped for answer in found)


def test_answers_are_handed_on_as_they_are_made(gemma: Any, tokenizer: Any):
    told, reported = [], []
    found = generate(
        gemma,
        tokenizer,
        told=lambda number, answer: told.append((number, answer)),
        report=lambda done, total: reported.append((done, total)),
    )
    assert sorted(told) == list(enumerate(found))
    assert [number for number, _ in told] == [4, 2, 3, 0, 5, 1], "the longest prompts go first"
    assert reported == [(4, 6), (6, 6)]


def test_an_answer_ends_at_its_end_token(gemma: Any, tokenizer: Any, alone: list[list[int]]):
    for pad in (PAD, alone[0][5]):  # a model without padding fills with its end token
        stop = alone[0][5]
        found = generate(gemma, tokenizer, stop_ids=[stop], pad_id=pad)
        for answer, ids in zip(found, alone, strict=True):
            at = ids.index(stop) if stop in ids else None
            assert answer.stopped == (at is not None)
            assert answer.new_tokens == (NEW if at is None else at + 1)
            assert answer.text == tokenizer.decode(ids[:at])
    assert found[0].stopped and not all(answer.stopped for answer in found)


def test_any_of_several_tokens_ends_an_answer(gemma: Any, tokenizer: Any, alone: list[list[int]]):
    stops = [alone[0][5], alone[1][3]]
    found = generate(gemma, tokenizer, stop_ids=stops)
    assert found[0].stopped and found[1].stopped
    assert found[1].new_tokens == 1 + min(alone[1].index(s) for s in stops if s in alone[1])


def test_an_end_on_the_last_token_counts_as_stopped(gemma: Any, tokenizer: Any, alone):
    place = next(i for i in range(2, NEW) if alone[0][i] not in alone[0][:i])
    (found,) = generate(
        gemma,
        tokenizer,
        prompts=PROMPTS[:1],
        stop_ids=[alone[0][place]],
        max_new_tokens=place + 1,
    )
    assert found.stopped and found.new_tokens == place + 1
    (cut,) = generate(gemma, tokenizer, prompts=PROMPTS[:1], max_new_tokens=place)
    assert not cut.stopped and cut.new_tokens == place
    assert cut.text == found.text == tokenizer.decode(alone[0][:place])


def test_special_tokens_are_no_text(tokenizer: Any):
    assert _answer(tokenizer, [1, 7, PAD, 9, END, 5], [END]) == Answer("w7 w9", 5, True)
    assert _answer(tokenizer, [END, 5], [END]) == Answer("", 1, True)
    assert _answer(tokenizer, [7, 9], [END]) == Answer("w7 w9", 2, False)


DEFAULTS = {
    "sampling": {"do_sample": True, "temperature": 5.0, "top_k": 3, "top_p": 0.5},
    "beams": {"num_beams": 3, "length_penalty": 2.0},
    "penalties": {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1},
    "lengths": {"max_length": 3, "min_new_tokens": 11, "eos_token_id": 7},
    "outputs": {"return_dict_in_generate": True, "output_scores": True},
    "words": {"suppress_tokens": list(range(3, 200)), "bad_words_ids": [[5], [6]]},
}


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_models_own_defaults_do_not_matter(kind: str, adapters: bool, tokenizer: Any):
    model = probe.adapted(probe.settings()).model if adapters else tiny_gemma(scale=3.0)
    stop = tokenizer(generate(model, tokenizer)[0].text)["input_ids"][5]
    wanted = generate(model, tokenizer, stop_ids=[stop])
    assert wanted[0].stopped and wanted[0].new_tokens < NEW - 1
    bare = model.get_base_model() if adapters else model
    bare.generation_config = own = GenerationConfig(**DEFAULTS[kind])
    torch.manual_seed(5)
    assert generate(model, tokenizer, stop_ids=[stop]) == wanted
    assert bare.generation_config is own, "the model keeps its defaults for others"


def test_without_its_adapters_a_model_answers_as_its_base(tokenizer: Any):
    base = generate(tiny_gemma(scale=3.0), tokenizer)
    model = probe.adapted(probe.settings()).model.eval()
    tuned = generate(model, tokenizer)
    with model.disable_adapter():
        assert generate(model, tokenizer) == base
    assert tuned != base and generate(model, tokenizer) == tuned


def test_a_prompt_beyond_the_positions_is_refused_before_anything_is_made(gemma: Any, tokenizer):
    told: list[int] = []
    prompts = [*PROMPTS, "w5 " * 250]  # with its start token 251 of 256 positions
    with pytest.raises(ConfigError, match=r"251 tokens and the answer may have 12.* 256 positions"):
        generate(gemma, tokenizer, prompts=prompts, told=lambda number, _: told.append(number))
    assert told == []
    assert len(generate(gemma, tokenizer, prompts=prompts[-1:], max_new_tokens=5)) == 1


def test_no_prompts_give_no_answers(gemma: Any, tokenizer: Any):
    assert generate(gemma, tokenizer, prompts=[]) == []


def test_a_stop_leaves_the_model_as_it_was(gemma: Any, tokenizer: Any):
    def stop(done: int, total: int) -> None:
        raise Stopped("Stopped.", fix="go on")

    kernel, own = gemma.config._attn_implementation, gemma.generation_config
    with pytest.raises(Stopped):
        generate(gemma, tokenizer, report=stop)
    assert gemma.config._attn_implementation == kernel and gemma.generation_config is own


def test_a_prompt_begins_with_one_start_token(tokenizer: Any):
    assert prompt_ids(tokenizer, ["w5 w6", "<bos> w5 w6"]) == [[1, 5, 6], [1, 5, 6]]
    assert stop_tokens(tokenizer, "plain") == [END]
