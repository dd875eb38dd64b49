"""The `smoke` language model: a small Gemma-2, pre-trained for seconds on plain code of the sample.

An adapter on random weights has nothing to adapt. After pre-training the model writes functions of
the sample's kinds, but it follows no instruction: it has never seen one. The result is cached by
everything that it depends on, the tokenizer with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nbhelpers.budget.shapes import SMOKE_CAUSAL
from nbhelpers.common.files import cached
from nbhelpers.data.samples.instructions import load_instruction_rows, plain_code
from nbhelpers.data.templates import alpaca
from nbhelpers.jobs.models.inputs import train_words
from nbhelpers.jobs.pretraining import pretrain

BATCH, WIDTH, LEARNING_RATE, WARMUP_STEPS = 8, 128, 5e-3, 30
RECIPE = 1  # of the cache; raise it when the training below changes
# Source: Gemma's tokenizer.json begins with these four.
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")


def smoke_base(*, steps: int, seed: int, report: Callable[[int, int], None]) -> tuple[Any, Any]:
    """Return the pre-trained model (fp32, in evaluation mode) and its tokenizer.

    Args:
        steps: Optimizer steps of pre-training; 0: random weights.
        seed: Of the weights and the order; one for all runs of a study, so that they share a base.
        report: Called with (done, total) while it trains; not at all if the cache has the model.
    """
    from safetensors.torch import save_file

    tokenizer = smoke_tokenizer()
    config = smoke_config(tokenizer)

    def make() -> Any:
        with _one_thread():
            return _pretrain(config, tokenizer, steps=steps, seed=seed, report=report)

    def save(path: Path, model: Any) -> None:
        tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
        tensors.pop("lm_head.weight", None)  # tied to the embedding
        save_file(tensors, path)

    key = [_facts(tokenizer, config, steps, seed), *plain_code()]
    load = partial(_load, config=config)
    with torch.random.fork_rng(devices=[]):  # what is drawn later is one thing with and without
        model = cached("smoke", key, make, load=load, save=save, suffix=".safetensors")
    return model, tokenizer


def smoke_tokenizer() -> Any:
    """Return the tokenizer of the smoke model, trained on the sample; cached."""
    from tokenizers import Tokenizer, __version__

    texts = _tokenizer_texts()
    facts = json.dumps([RECIPE, __version__, SMOKE_CAUSAL.vocab, SPECIAL_TOKENS, texts])
    bpe = cached(
        "smoke",
        [facts],
        lambda: train_words(texts, SMOKE_CAUSAL.vocab, SPECIAL_TOKENS, splits_digits=True),
        load=lambda path: Tokenizer.from_file(str(path)),
        save=lambda path, bpe: bpe.save(str(path)),
        suffix=".json",
    )
    return wrap_words(bpe)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core, so that the weights are the same wherever the versions are.

    So small a model hardly gains from a second thread, and where other programs keep the cores
    busy, two that wait for each other took up to ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def smoke_config(tokenizer: Any) -> Any:
    """Return the Gemma-2 configuration in the sizes of `SMOKE_CAUSAL`."""
    from transformers import Gemma2Config

    shape = SMOKE_CAUSAL
    return Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        query_pre_attn_scalar=shape.head_dim,
        max_position_embeddings=shape.positions,
        sliding_window=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        # Gemma's 0.02 suits 2,304 features; with so few, copying from the prompt is learned late.
        initializer_range=shape.hidden**-0.5,
        attn_implementation="eager",  # SDPA drops Gemma-2's soft-cap
    )


def train_tokenizer(texts: Sequence[str], vocab_size: int = SMOKE_CAUSAL.vocab) -> Any:
    """Return a tokenizer trained on the texts, which puts `<bos>` first, as Gemma's."""
    return wrap_words(train_words(texts, vocab_size, SPECIAL_TOKENS, splits_digits=True))


def wrap_words(bpe: Any) -> Any:
    """Return the tokenizer of transformers; it puts `<bos>` first, as Gemma's."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    bos = SPECIAL_TOKENS[2]
    bpe.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 2)])
    names = ("pad_token", "eos_token", "bos_token", "unk_token")
    named = dict(zip(names, SPECIAL_TOKENS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, padding_side="right", **named)


def _tokenizer_texts() -> list[str]:
    rows = load_instruction_rows()["train"]
    asked = [alpaca(row["instruction"], row["input"]) + row["output"] for row in rows]
    return [*asked, *plain_code()]


def _facts(tokenizer: Any, config: Any, steps: int, seed: int) -> str:
    """Return all but the code that the weights depend on as one text."""
    from transformers import __version__

    hyperparameters = [RECIPE, BATCH, WIDTH, LEARNING_RATE, WARMUP_STEPS, steps, seed]
    words = tokenizer.backend_tokenizer.to_str()
    versions = [str(torch.__version__), __version__]
    return json.dumps([hyperparameters, versions, words, config.to_json_string()])


def _load(path: Path, config: Any) -> Any:
    from safetensors.torch import load_file
    from transformers import Gemma2ForCausalLM

    model = Gemma2ForCausalLM(config)
    model.load_state_dict(load_file(path), strict=False)  # the head is the embedding
    model.tie_weights()
    return model.eval()


def _pretrain(
    config: Any, tokenizer: Any, *, steps: int, seed: int, report: Callable[[int, int], None]
) -> Any:
    from transformers import Gemma2ForCausalLM

    torch.manual_seed(seed)
    model = Gemma2ForCausalLM(config).train()

    def losses() -> Iterator[Tensor]:
        for ids in _batches(tokenizer, seed):
            logits = model(input_ids=ids, use_cache=False).logits
            yield cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    how = {"steps": steps, "peak": LEARNING_RATE, "warmup": WARMUP_STEPS, "betas": (0.9, 0.98)}
    for done, _ in enumerate(pretrain(model.parameters(), losses(), **how), 1):
        report(done, steps)
    return model.eval()


def _batches(tokenizer: Any, seed: int) -> Iterator[Tensor]:
    """Yield (BATCH, WIDTH) ids: modules laid end to end, each between `<bos>` and `<eos>`."""
    flat: list[int] = []
    for ids in tokenizer(list(plain_code()))["input_ids"]:
        flat += [*ids, tokenizer.eos_token_id]
    rows = torch.tensor(flat[: len(flat) // WIDTH * WIDTH]).view(-1, WIDTH)
    draw = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=draw)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            yield rows[order[start : start + BATCH]]
