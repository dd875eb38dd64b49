"""Promise: odd models, odd answers and edited folders are told where they are read or written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained_on_disk import STEP, point_to, settings, write_adapter_files, write_run

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use.trained import Trained, find_trained

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    run = write_run(tmp_path / "runs" / "finetune-r4-1", settings("gemma-2-2b"))
    write_adapter_files(run / "checkpoints" / STEP)
    point_to(run)
    return find_trained(run)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trained_on_disk import make_base

    return make_base(tmp_path_factory.mktemp("models") / "gemma", hidden=32)


def odd_copy(model: Path, folder: Path, name: str, change: Any) -> Any:
    """Settings of a copy of a model's folder with other values in one of its JSON files."""
    target = folder / "model"
    shutil.copytree(model, target)
    if isinstance(change, dict):
        change = json.dumps(json.loads((target / name).read_text()) | change)
    (target / name).write_text(change)
    return settings(str(target))


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": "x"},
        {"hidden_size": 33},
        {"num_hidden_layers": 0},
        {"num_attention_heads": 0},
        {"dtype": "nope"},
        {"vocab_size": 0},
        {"pad_token_id": 5000},
        {"hidden_activation": "nope"},
        "5",
    ],
)
def test_a_configuration_that_cannot_be_is_told(gemma: Path, tmp_path: Path, change: Any) -> None:
    from nbhelpers.jobs.models.causal import load_base, load_tokenizer

    used = odd_copy(gemma, tmp_path, "config.json", change)
    used = used.model_copy(update={"random_weights": True})
    with pytest.raises(ConfigError, match=r"cannot be (read|built): \S") as error:
        words = load_tokenizer(used)
        load_base(used, precision="fp32", device="cpu", quantised=False, tokenizer=words)
    assert str(tmp_path / "model") in error.value.message and error.value.fix


@pytest.mark.parametrize(
    "change", ["[]", "5", "{}", {"tokenizer_class": 5}, {"model_max_length": "x"}, {"eos_token": 5}]
)
def test_a_tokenizer_that_cannot_be_used_is_told(gemma: Path, tmp_path: Path, change: Any) -> None:
    from nbhelpers.jobs.models.causal import load_tokenizer

    with pytest.raises(ConfigError, match=r"The tokenizer of .* cannot be read: \S"):
        load_tokenizer(odd_copy(gemma, tmp_path, "tokenizer_config.json", change))


def test_weights_that_are_not_there_are_not_made_up(gemma: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from nbhelpers.jobs.models.causal import load_base

    used = odd_copy(gemma, tmp_path, "config.json", {})
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    options = {"precision": "fp32", "device": "cpu", "quantised": False}
    assert load_base(used, **options)
    for name in ("model.layers.1.self_attn.q_proj.weight", "lm_head.weight"):
        left = {key: value for key, value in weights.items() if key != name}
        save_file(left, file, metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=f"1 are not there, {name} first"):
            load_base(used, **options)
    tied = {"tie_word_embeddings": True}
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | tied
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert load_base(used, **options)  # its head is its embedding


def test_a_mark_in_an_answer_is_text_and_ends_nothing(gemma: Path) -> None:
    from transformers import AutoTokenizer

    from nbhelpers.data.instructions import Sample
    from nbhelpers.jobs.models.causal_batches import tokenise_samples

    words = AutoTokenizer.from_pretrained(gemma)
    texts = ["split('<eos>')", "a <bos> b <pad>", "return a + b"]
    samples = [Sample(str(at), "ask", text) for at, text in enumerate(texts)]
    table = tokenise_samples(samples, words, seq_len=64, template="alpaca")
    marks = {words.eos_token_id, words.bos_token_id, words.pad_token_id}
    for ids, border, text in zip(table.ids, table.prompt_lengths, texts, strict=True):
        answer = ids[border:].tolist()
        assert answer[-1] == words.eos_token_id and marks.isdisjoint(answer[:-1])
        assert words.decode(answer[:-1]) == text
    alone = words("return a + b", add_special_tokens=False)["input_ids"]
    assert table.ids[2][table.prompt_lengths[2] : -1].tolist() == alone


def test_torn_generations_stop_a_merge_with_their_line(trained: Trained) -> None:
    from nbhelpers.jobs.merge import _generated

    assert _generated(trained)
    file = trained.run / "generations.jsonl"
    lines = file.read_bytes().count(b"\n")
    file.write_bytes(file.read_bytes() + b'{"split": "te')
    with pytest.raises(DataError, match=rf"generations\.jsonl, line {lines + 1}: is no JSON"):
        _generated(trained)
