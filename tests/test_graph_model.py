"""Promise: RoBERTa and GraphCodeBERT give the published probabilities, whatever the padding."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from contexts import make_context
from test_graph_inputs import ALL, table
from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

from nbhelpers.data.pairs import ClonePairs
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import clones
from nbhelpers.jobs.clones import PairTask, load_weights
from nbhelpers.jobs.models.clones import CloneModel
from nbhelpers.jobs.models.encoding import graph_positions, graph_sees
from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, TokenTable, train_bpe

HIDDEN = 32


def config(attention: str = "sdpa") -> RobertaConfig:
    found = RobertaConfig(
        vocab_size=290,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        initializer_range=0.3,  # differences must not drown in small weights
    )
    found._attn_implementation = attention
    return found


def published_state() -> dict[str, torch.Tensor]:
    """A state dict as the published script saves it: a whole classifier inside, and a prefix."""
    torch.manual_seed(3)
    whole = RobertaForSequenceClassification(config())
    head = {"dense.weight": (HIDDEN, 2 * HIDDEN), "dense.bias": (HIDDEN,)}
    head |= {"out_proj.weight": (2, HIDDEN), "out_proj.bias": (2,)}
    state = {f"encoder.{k}": v for k, v in whole.state_dict().items()}
    state["encoder.roberta.embeddings.position_ids"] = torch.arange(64)[None]
    return state | {f"classifier.{k}": torch.randn(*size) * 0.3 for k, size in head.items()}


def ours(
    state: dict[str, torch.Tensor], attention: str = "sdpa", *, packed: bool = True
) -> CloneModel:
    encoder = RobertaModel(config(attention), add_pooling_layer=False)
    model = CloneModel(encoder, dropout=0.1, packed=packed)
    load_weights(model, state, "model.bin")
    return model.eval()


def published_probability(state, ids, positions, sees) -> torch.Tensor:
    """P(clone) of pairs in turn, from the full-width mask, as the paper defines the model.

    Args:
        sees: (2 * pairs, width, width) bool.
    """
    own = {k.removeprefix("encoder.roberta."): v for k, v in state.items()}
    encoder = RobertaModel(config("eager"), add_pooling_layer=False).eval()
    encoder.load_state_dict({k: v for k, v in own.items() if k in encoder.state_dict()})
    found = encoder.embeddings.word_embeddings(ids)
    node, code = positions.eq(0), positions.ge(2)
    share = (node[:, :, None] & code[:, None, :] & sees).float()
    share = share / (share.sum(-1, keepdim=True) + 1e-10)
    found = torch.where(node[:, :, None], share @ found, found)
    bias = (~sees).float()[:, None] * -1e4
    states = encoder(inputs_embeds=found, attention_mask=bias, position_ids=positions)[0]
    pooled = states[:, 0].reshape(-1, 2 * HIDDEN)
    dense = torch.tanh(pooled @ state["classifier.dense.weight"].T + state["classifier.dense.bias"])
    logits = dense @ state["classifier.out_proj.weight"].T + state["classifier.out_proj.bias"]
    return logits.softmax(-1)[:, 1]


def task(model: CloneModel, functions, padding: str) -> PairTask:
    left, right = np.array([0, 3, 4, 1, 3], np.int32), np.array([3, 1, 0, 4, 0], np.int32)
    pairs = ClonePairs(left=left, right=right, label=np.array([1, 0, 1, 1, 0]))
    settings = SimpleNamespace(
        padding=padding,
        per_device_eval_batch_size=2,
        max_eval_pairs=None,
        seed=1,
        pair_order="random",
    )
    data = SimpleNamespace(ids=list("abcde"), splits={"train": pairs, "valid": pairs})
    inputs = SimpleNamespace(data=data, table=functions, found=model.encoder)  # with `config`
    return PairTask(settings, inputs, Accelerator(cpu=True), model)


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["int f(int a){return a+1;}"], 290, special_tokens=ROBERTA_TOKENS)


FORMS = [("sdpa", True), ("sdpa", False), ("eager", False)]


@pytest.mark.parametrize(("attention", "packed"), FORMS)
@pytest.mark.parametrize("padding", ["dynamic", "fixed"])
@pytest.mark.parametrize("nodes", [12, 5, 0])
def test_graphcodebert_gives_the_published_probability(
    tokenizer, attention, packed, padding, nodes
) -> None:
    functions = table(tokenizer, ALL, seq_len=14, data_flow_length=nodes, positions=64)
    state = published_state()
    job = task(ours(state, attention, packed=packed), functions, padding)
    flat = np.stack([job.pairs.left, job.pairs.right], axis=1).reshape(-1)
    bucket = functions.bucket(flat, 14 + nodes)
    with torch.no_grad():
        expected = published_probability(
            state, bucket.ids, graph_positions(bucket, 1), graph_sees(bucket)
        ).numpy()
        logits = job.raw.eval()(job.batch(np.arange(5)))
    given, swapped = job.predict(job.pairs)
    assert np.abs(given - expected).max() < 1e-5
    assert np.abs(logits.softmax(-1)[:, 1].numpy() - expected).max() < 1e-5
    assert np.abs(given - swapped).max() > 1e-3  # the head sees the order
    assert np.ptp(expected) > 1e-2  # the functions differ


@pytest.mark.parametrize(("attention", "packed"), FORMS)
def test_codebert_on_plain_text_ignores_padding(tokenizer, attention, packed) -> None:
    lengths = np.array([4, 9, 15, 11, 2])
    ids = np.random.default_rng(0).integers(4, 290, lengths.sum()).astype(np.int32)
    functions = TokenTable(
        ids=ids,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        bos_id=0,
        eos_id=2,
        pad_id=1,
        seq_len=14,
    )
    state = published_state()
    model = ours(state, attention, packed=packed)
    pairs = task(model, functions, "fixed").pairs
    flat = np.stack([pairs.left, pairs.right], axis=1).reshape(-1)
    padded = torch.from_numpy(functions.pad(flat, 14))
    used = padded.ne(1)
    sees = used[:, None, :].expand(-1, 14, -1)
    positions = torch.where(used, torch.arange(14) + 2, 1)
    with torch.no_grad():
        expected = published_probability(state, padded, positions, sees).numpy()
    for padding in ("fixed", "dynamic"):
        given, _ = task(model, functions, padding).predict(pairs)
        assert np.abs(given - expected).max() < 1e-5


def test_data_flow_changes_what_the_model_says(tokenizer) -> None:
    state = published_state()
    with_nodes, without = (
        task(
            ours(state),
            table(tokenizer, ALL, seq_len=40, data_flow_length=n, positions=64),
            "dynamic",
        )
        for n in (12, 0)
    )
    given, _ = with_nodes.predict(with_nodes.pairs)
    plain, _ = without.predict(without.pairs)
    assert np.abs(given - plain).max() > 1e-3


def test_every_parameter_gets_a_gradient_or_ddp_would_wait(tokenizer) -> None:
    functions = table(tokenizer, ALL, seq_len=14, data_flow_length=6, positions=64)
    job = task(ours(published_state()).train(), functions, "dynamic")
    for rows in (np.arange(5), np.zeros(0, dtype=np.int64)):
        job.raw.zero_grad()
        job.loss_sum(job.raw, job.batch(rows))[0].backward()
        assert all(p.grad is not None for p in job.raw.parameters())


@pytest.mark.parametrize(("nodes", "warns"), [(None, True), (0, False), (12, False)])
def test_weights_of_the_graph_script_on_plain_text_are_a_warning(
    tmp_path, monkeypatch, nodes, warns
) -> None:
    path = tmp_path / "model.bin"
    torch.save(published_state(), path)
    model = CloneModel(RobertaModel(config(), add_pooling_layer=False), dropout=0.1)
    monkeypatch.setattr(clones, "build_clone_model", lambda *_, **__: model)
    settings = SimpleNamespace(data_flow_length=nodes)
    context = make_context(settings=settings, checkpoint=path)
    clones.build_model(context, SimpleNamespace(found=None))
    assert [("data_flow_length" in text) for text in context.warnings] == [True] * warns


def test_a_state_dict_of_another_model_is_refused() -> None:
    state = published_state()
    state["encoder.roberta.encoder.layer.9.output.dense.bias"] = torch.zeros(HIDDEN)
    with pytest.raises(ConfigError, match=r"layer\.9"):
        ours(state)


def test_functions_without_any_data_flow_in_the_batch_are_encoded_too(tokenizer) -> None:
    functions = table(tokenizer, [ALL[1], ALL[2]], seq_len=14, data_flow_length=6, positions=64)
    model = ours(published_state())
    with torch.no_grad():
        states = model.encode(functions.bucket(np.array([0, 1]), 20))
    assert states.shape == (2, HIDDEN) and torch.isfinite(states).all()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_packed_tokens_are_those_of_the_padded_form(tokenizer, checkpointing) -> None:
    functions = table(tokenizer, ALL, seq_len=14, data_flow_length=6, positions=64)
    gradients = []
    for packed in (True, False):
        model = ours(published_state(), packed=packed).double()
        if checkpointing and packed:
            model.encoder.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            model.encoder.config.attention_probs_dropout_prob = 0.0
        job = task(model, functions, "dynamic")
        batch = job.batch(np.arange(5))
        batch.weights = batch.weights.double()
        job.loss_sum(model, batch)[0].backward()
        gradients.append({k: p.grad for k, p in model.named_parameters()})
    for name, found in gradients[0].items():
        assert torch.allclose(found, gradients[1][name], atol=1e-10), name


def test_half_precision_casts_weights_as_autocast_does(tokenizer) -> None:
    functions = table(tokenizer, ALL, seq_len=14, data_flow_length=6, positions=64)
    found = []
    for packed in (True, False):
        job = task(ours(published_state(), packed=packed), functions, "fixed")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, _ = job.loss_sum(job.raw, job.batch(np.arange(5)))
        loss.backward()
        weight = job.raw.encoder.encoder.layer[0].attention.self.query.weight
        assert weight.dtype == weight.grad.dtype == torch.float32
        found.append((float(loss), weight.grad.norm()))
    assert abs(found[0][0] - found[1][0]) < 0.05 * abs(found[1][0])
    assert abs(found[0][1] - found[1][1]) < 0.1 * found[1][1]
