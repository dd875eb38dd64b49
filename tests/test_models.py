"""Promise: our clone model computes what CodeXGLUE's script computes, from the same state dict."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2Model

from nbhelpers.data.pairs import ClonePairs
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs.clones import PairTask, load_weights
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.inputs import TokenTable, length_buckets
from nbhelpers.jobs.models.weights import read_state_dict
from nbhelpers.jobs.schedule import epoch_windows, shared_windows

BLOCK, VOCAB = 24, 60


def tiny(attention: str = "sdpa") -> CloneModel:
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    config._attn_implementation = attention
    return CloneModel(GPT2Model(config), dropout=0.1).eval()


def table() -> TokenTable:
    draw = np.random.default_rng(0)
    lengths = np.array([1, 5, 40, 12, 22, 23, 3])  # some beyond the block
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(4, VOCAB, offsets[-1]).astype(np.int32)
    return TokenTable(ids=ids, offsets=offsets, bos_id=1, eos_id=2, pad_id=0, seq_len=BLOCK)


def published_form(state: dict, ids: torch.Tensor) -> torch.Tensor:
    """P(clone) as the published script defines it: fixed block, mask, last unpadded token.

    Args:
        ids: (2 * pairs, BLOCK), left and right in turn.
    """
    config = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    config._attn_implementation = "eager"
    encoder = GPT2Model(config).eval()
    encoder.load_state_dict({k[8:]: v for k, v in state.items() if k.startswith("encoder.")})
    mask = ids.ne(0)
    states = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    pooled = states[range(len(ids)), mask.sum(-1) - 1].reshape(-1, 32)
    dense = torch.tanh(pooled @ state["classifier.dense.weight"].T + state["classifier.dense.bias"])
    logits = dense @ state["classifier.out_proj.weight"].T + state["classifier.out_proj.bias"]
    return logits.softmax(-1)[:, 1]


def settings(**changes: object) -> SimpleNamespace:
    plain = {"padding": "dynamic", "per_device_eval_batch_size": 2}
    plain |= {"max_eval_pairs": None, "seed": 1, "pair_order": "random"}
    return SimpleNamespace(**plain | changes)


def task(model: CloneModel, **changes: object) -> PairTask:
    left, right = np.array([0, 2, 4, 6, 3]), np.array([1, 5, 2, 6, 0])
    pairs = ClonePairs(
        left=left.astype(np.int32), right=right.astype(np.int32), label=np.array([1, 0, 1, 1, 0])
    )
    data = SimpleNamespace(ids=list("abcdefg"), splits={"train": pairs, "valid": pairs})
    inputs = SimpleNamespace(data=data, table=table(), found=model.encoder)  # with `config`
    return PairTask(settings(**changes), inputs, Accelerator(cpu=True), model)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["dynamic", "fixed"])
def test_probability_equals_the_published_form(attention: str, padding: str) -> None:
    model = tiny(attention)
    job = task(model, padding=padding)
    pairs = job.pairs
    flat = np.stack([pairs.left, pairs.right], axis=1).reshape(-1)
    expected = published_form(model.state_dict(), torch.from_numpy(table().pad(flat, BLOCK)))
    given, swapped = job.predict(pairs)
    assert np.abs(given - expected.detach().numpy()).max() < 1e-5
    assert np.abs(given - swapped).max() > 1e-4  # the head sees the order
    with torch.no_grad():
        logits = model.eval()(job.batch(np.arange(5)))
    assert np.abs(logits.softmax(-1)[:, 1].numpy() - given).max() < 1e-5


def test_a_checkpoint_of_the_old_script_loads_with_its_mask_buffers_and_module_prefix(
    tmp_path,
) -> None:
    model, other = tiny(), tiny()
    with torch.no_grad():
        other.classifier.dense.weight.add_(1.0)
    state = {f"module.{k}": v for k, v in other.state_dict().items()}
    state["module.encoder.h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    state["module.encoder.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, tmp_path / "model.bin")
    load_weights(model, read_state_dict(tmp_path / "model.bin"), "model.bin")
    assert torch.equal(model.classifier.dense.weight, other.classifier.dense.weight)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_names_of_wrappers_are_taken_off_whatever_the_file(tmp_path, prefix, name) -> None:
    state = tiny().state_dict()
    wrapped = {prefix + key: value.clone() for key, value in state.items()}
    save = torch.save if name.endswith(".pt") else save_file
    save(wrapped, tmp_path / name)
    found = read_state_dict(tmp_path / name)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_tensors_without_names_are_no_checkpoint(tmp_path) -> None:
    torch.save({1: torch.zeros(2)}, tmp_path / "model.bin")
    with pytest.raises(DataError, match="named tensors"):
        read_state_dict(tmp_path / "model.bin")


def test_a_base_model_is_told_from_a_trained_detector() -> None:
    state = {k: v for k, v in tiny().state_dict().items() if not k.startswith("classifier.")}
    for found in (state, {k.removeprefix("encoder."): v for k, v in state.items()}, {}):
        with pytest.raises(ConfigError, match="no head") as caught:
            load_weights(tiny(), found, "x.bin")
        assert "--model" in caught.value.fix


def test_other_sizes_are_shown_with_those_of_the_model() -> None:
    state = tiny().state_dict() | {"classifier.out_proj.bias": torch.zeros(1)}
    with pytest.raises(ConfigError, match=r"out_proj\.bias \(1,\) for \(2,\)"):
        load_weights(tiny(), state, "x.bin")


def test_a_checkpoint_of_another_architecture_names_the_keys_that_differ() -> None:
    state = dict(tiny().state_dict())
    state.pop("classifier.dense.bias")
    state["encoder.extra"] = torch.zeros(1)
    state["classifier.out_proj.weight"] = torch.zeros(3, 16)
    with pytest.raises(ConfigError, match=r"dense\.bias.*encoder\.extra.*out_proj\.weight"):
        load_weights(tiny(), state, "x.bin")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_file_that_is_no_checkpoint_is_a_data_error(tmp_path, content) -> None:
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"model\.bin"):
        read_state_dict(path)


def test_pickled_code_is_not_run(tmp_path) -> None:
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "pwned"), "w"))

    torch.save({"x": Attack()}, tmp_path / "model.bin")
    with pytest.raises(DataError, match="plain state dict"):
        read_state_dict(tmp_path / "model.bin")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("seed", range(5))
def test_buckets_hold_each_row_once_and_pad_less_than_one_block(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(3, 1000, 60)
    groups = length_buckets(lengths, ratio=0.8, min_tokens=0)
    assert sorted(np.concatenate(groups).tolist()) == list(range(60))
    padded = sum(int(lengths[g].max()) * len(g) for g in groups)
    assert lengths.sum() <= padded < 60 * lengths.max()
    assert lengths.sum() / padded > 0.8


@pytest.mark.parametrize("functions", [5, 40, 400])
def test_pairs_that_share_functions_come_together_and_each_comes_once_an_epoch(
    functions: int,
) -> None:
    draw = np.random.default_rng(0)
    left, right = draw.integers(0, functions, (2, 403))
    epochs = [shared_windows(left, right, 16, seed=1, epoch=epoch) for epoch in (0, 0, 1)]
    for steps in epochs:
        assert [len(rows) for rows in steps] == [16] * 25 + [3]
        assert sorted(np.concatenate(steps).tolist()) == list(range(403))
    first, again, other = (np.concatenate(steps) for steps in epochs)
    assert (first == again).all() and (first != other).any()

    def distinct(steps: list[np.ndarray]) -> float:
        return float(np.mean([len({*left[rows], *right[rows]}) for rows in steps]))

    assert distinct(epochs[0]) <= distinct(epoch_windows(403, 16, seed=1, epoch=0))


def test_a_rank_without_rows_contributes_nothing_but_takes_part() -> None:
    model = tiny()
    job = task(model)
    batch = job.batch(np.zeros(0, dtype=np.int64))
    loss, _ = job.loss_sum(model, batch)
    loss.backward()
    assert float(loss.detach()) == 0.0 and batch.useful_tokens == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_the_fused_activation_computes_the_published_formula() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    assert (ACT2FN["gelu_new"](x) - ACT2FN["gelu_pytorch_tanh"](x)).abs().max() < 1e-12
