"""Promise: packing changes nothing: samples in one row do not see each other under any kernel."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from causal_tiny import PAD, VOCAB, tiny_base, tiny_gemma, tiny_table
from contexts import make_context
from transformers import LlamaConfig, LlamaForCausalLM

from nbhelpers.jobs.models.causal import add_adapter
from nbhelpers.jobs.models.causal_batches import Layout, make_batch, supervised
from nbhelpers.jobs.models.causal_forward import (
    BLOCK_LISTS,
    HashedDropout,
    TrainingForward,
    choose_attention,
    hashed_dropout,
    masks,
)

pytestmark = pytest.mark.slow  # torch and transformers are imported

ROWS = np.arange(5)
SCALE = 30.0  # of the projections: scores reach the cap


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).requires_grad_(False).eval()


def hidden(model, kernel: str, rows: np.ndarray, *, packed: bool, multiple: int = 8):
    table = tiny_table()
    batch = make_batch(table, rows, pad_id=PAD, packed=packed, multiple=multiple)
    forward = TrainingForward(model, kernel=kernel, loss="chunked", dtype=torch.float32)
    with forward.active(), torch.no_grad():
        states = forward.hidden(batch.ids, batch.layout)
    return states[batch.layout.segments >= 0]


def alone(model, rows: np.ndarray):
    """Each sample by itself, through the published model: no mask, no positions of ours."""
    table = tiny_table()
    out = [model.model(torch.from_numpy(table.ids[row])[None]).last_hidden_state[0] for row in rows]
    return torch.cat(out)


@pytest.mark.parametrize("kernel", ["eager", "flex"])
@pytest.mark.parametrize("packed", [True, False])
def test_gemma_sees_each_sample_alone(kernel: str, packed: bool):
    model = tiny_gemma(scale=SCALE)
    wanted = alone(model, ROWS)
    multiple = 128 if kernel == "flex" else 8
    found = hidden(model, kernel, ROWS, packed=packed, multiple=multiple)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [True, False])
def test_llama_sees_each_sample_alone(kernel: str, packed: bool):
    model = tiny_llama()
    wanted = alone(model, ROWS)
    found = hidden(model, kernel, ROWS, packed=packed)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_soft_cap_matters_in_these_tests():
    """Without the cap the states differ clearly, so the tests above would notice its loss."""
    model = tiny_gemma(scale=SCALE)
    wanted = alone(model, ROWS)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert float((alone(model, ROWS) - wanted).norm() / wanted.norm()) > 0.05


def test_a_leak_between_samples_would_be_noticed():
    model = tiny_gemma(scale=SCALE)
    table = tiny_table()
    batch = make_batch(table, ROWS, pad_id=PAD, packed=True)
    leaky = Layout(torch.zeros_like(batch.layout.segments), batch.layout.positions)
    forward = TrainingForward(model, kernel="eager", loss="chunked", dtype=torch.float32)
    with forward.active(), torch.no_grad():
        states = forward.hidden(batch.ids, leaky)[batch.layout.segments >= 0]
    wanted = alone(model, ROWS)
    assert float((states - wanted).norm() / wanted.norm()) > 0.05


@pytest.mark.parametrize("loss", ["chunked", "plain"])
def test_the_loss_of_a_packed_row_is_the_sum_over_its_samples(loss: str):
    model, table = tiny_gemma(scale=3.0), tiny_table()
    forward = TrainingForward(model, kernel="eager", loss=loss, dtype=torch.float32)

    def total(rows: np.ndarray, *, packed: bool) -> float:
        batch = make_batch(table, rows, pad_id=PAD, packed=packed)
        with forward.active(), torch.no_grad():
            return float(model(**forward.inputs(batch)).loss)

    one_by_one = sum(total(ROWS[i : i + 1], packed=False) for i in range(len(ROWS)))
    assert total(ROWS, packed=True) == pytest.approx(one_by_one, rel=1e-5)
    assert total(ROWS, packed=False) == pytest.approx(one_by_one, rel=1e-5)


def test_the_model_is_itself_again_after_training():
    model = tiny_gemma()
    ids = torch.randint(3, VOCAB, (1, 12))
    before = model(ids).logits
    forward = TrainingForward(model, kernel="flex", loss="chunked", dtype=torch.float32)
    with forward.active():
        pass
    assert "forward" not in vars(model)
    from nbhelpers.jobs.models.causal_forward import generating

    with generating(model, "eager"):
        torch.testing.assert_close(model(ids).logits, before)


def test_a_sliding_window_limits_some_layers_only():
    model = tiny_gemma()  # its window is 16
    segments = torch.zeros(1, 40, dtype=torch.long)
    layout = Layout(segments, torch.arange(40)[None])
    found = masks(layout, kernel="eager", config=model.config, dtype=torch.float32)
    assert int((found["full_attention"][0, 0, 39] == 0).sum()) == 40
    assert int((found["sliding_attention"][0, 0, 39] == 0).sum()) == 16


def searched_mask(layout: Layout, window: int | None):
    """Flex attention's mask, found by PyTorch from every pair of tokens."""
    from torch.nn.attention.flex_attention import create_block_mask

    segments = layout.segments

    def visible(b, h, q, kv):
        seen = (segments[b, q] == segments[b, kv]) & (q >= kv)
        return seen if window is None else seen & (q - kv < window)

    rows, length = segments.shape
    return create_block_mask(visible, rows, None, length, length, device="cpu", BLOCK_SIZE=128)


@pytest.mark.parametrize("window", [None, 1, 100, 128, 300])
@pytest.mark.parametrize("length", [40, 128, 640, 1000])
def test_blocks_are_those_that_a_search_through_all_pairs_finds(length: int, window: int | None):
    draw = np.random.default_rng(length)
    segments = np.full((3, length), -1)
    for row in segments:
        cuts = np.sort(draw.integers(0, length, size=3))
        for number, part in enumerate(np.split(row[: cuts[-1]], cuts[:-1])):
            part[:] = number  # the rest is padding
    layout = Layout(torch.from_numpy(segments), torch.zeros(3, length, dtype=torch.long))
    config = SimpleNamespace(
        layer_types=["full_attention", "sliding_attention"], sliding_window=window
    )
    made = masks(layout, kernel="flex", config=config, dtype=torch.float32)
    for kind, reach in (("full_attention", None), ("sliding_attention", window)):
        found, wanted = made[kind], searched_mask(layout, reach)
        for name in BLOCK_LISTS:
            assert torch.equal(getattr(found, name), getattr(wanted, name)), (kind, name)
        b, q, kv = (
            torch.arange(3)[:, None, None],
            torch.arange(length)[:, None],
            torch.arange(length),
        )
        zero = torch.zeros((), dtype=torch.long)
        assert torch.equal(found.mask_mod(b, zero, q, kv), wanted.mask_mod(b, zero, q, kv))


@pytest.mark.parametrize("multiple", [8, 128])
def test_a_batch_knows_its_supervised_tokens_and_where_its_samples_begin(multiple: int):
    for rows in (ROWS, ROWS[:0]):
        for packed in (True, False):
            batch = make_batch(tiny_table(), rows, pad_id=PAD, packed=packed, multiple=multiple)
            for found, wanted in zip(batch.learned, supervised(batch.labels), strict=True):
                assert torch.equal(found, wanted)
            again = Layout(batch.layout.segments, batch.layout.positions).first_tokens()
            assert np.array_equal(batch.layout.first_tokens(), again)


@pytest.mark.slow
def test_blocks_are_compiled_once_with_gradients_and_once_without(monkeypatch: pytest.MonkeyPatch):
    """Whatever the widths, the kinds of layers, and states that need a gradient or not."""
    from torch._dynamo.testing import CompileCounter

    counter, real = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda call: real(call, backend=counter))
    base = tiny_base()
    adapter = {"lora_target_modules": ["q_proj", "down_proj"], "lora_r": 4, "alpha": 8}
    how = SimpleNamespace(**adapter, lora_dropout=0.1, seed=0, model="tiny")
    model = add_adapter(base, how)
    forward = TrainingForward(base.model, kernel="eager", loss="chunked", dtype=torch.float32)
    found = []
    with forward.active(compiled=True):
        for count in (5, 2, 4, 1, 3):
            batch = make_batch(tiny_table(), ROWS[:count], pad_id=PAD, packed=True)
            model(**forward.inputs(batch)).loss.backward()
            found.append(counter.frame_count)
        with torch.no_grad():
            for count in (4, 1):
                batch = make_batch(tiny_table(), ROWS[:count], pad_id=PAD, packed=True)
                model(**forward.inputs(batch))
                found.append(counter.frame_count)
    assert found == [1] * 5 + [2] * 2


def test_checkpointing_keeps_the_inputs_of_blocks_alone(monkeypatch: pytest.MonkeyPatch):
    """Whether blocks are compiled or not, and wherever transformers has its own switch."""
    real, sizes, losses = torch.compile, {}, []
    monkeypatch.setattr(torch, "compile", lambda call: real(call, backend="aot_eager"))
    batch = make_batch(tiny_table(), ROWS, pad_id=PAD, packed=True)
    for compiled, checkpointing in product((False, True), repeat=2):
        model, held = tiny_gemma().train(), {}
        model.enable_input_require_grads()
        how = {"kernel": "eager", "loss": "chunked", "dtype": torch.float32}
        forward = TrainingForward(model, checkpointing=checkpointing, **how)

        def pack(tensor: torch.Tensor, held: dict[int, torch.Tensor] = held) -> torch.Tensor:
            held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with forward.active(compiled=compiled), hooks:
            losses.append(float(model(**forward.inputs(batch)).loss.detach()))
        kept = held.keys() - {p.untyped_storage().data_ptr() for p in model.parameters()}
        size = sum(held[at].untyped_storage().nbytes() for at in kept)
        sizes[compiled, checkpointing] = size
    assert sizes[True, True] == sizes[False, True]
    assert max(sizes[False, True], sizes[True, True]) < sizes[False, False] / 4
    assert losses == pytest.approx(losses[:1] * 4, rel=1e-5)


def test_padding_sees_itself_so_that_no_softmax_is_empty():
    table = tiny_table()
    batch = make_batch(table, ROWS[:2], pad_id=PAD, packed=False)
    mask = masks(batch.layout, kernel="eager", config=tiny_gemma().config, dtype=torch.float32)
    assert bool((mask["full_attention"] == 0).any(-1).all())


def test_a_rank_without_samples_computes_a_stand_in():
    batch = make_batch(tiny_table(), np.zeros(0, dtype=np.int64), pad_id=PAD, packed=True)
    model = tiny_gemma()
    forward = TrainingForward(model, kernel="eager", loss="chunked", dtype=torch.float32)
    with forward.active(), torch.no_grad():
        assert float(model(**forward.inputs(batch)).loss) == 0.0
    assert batch.samples == batch.useful_tokens == 0


@pytest.mark.parametrize("packed", [True, False])
def test_a_batch_holds_each_token_once(packed: bool):
    table = tiny_table()
    batch = make_batch(table, ROWS, pad_id=PAD, packed=packed)
    inside = batch.layout.segments >= 0
    told = batch.ids[inside].tolist()
    assert told == [int(token) for row in ROWS for token in table.ids[row]]
    learned = batch.labels[batch.labels != -100]
    assert len(learned) == int(table.supervised[ROWS].sum())
    assert batch.useful_tokens == int(table.lengths[ROWS].sum())
    assert (batch.ids.shape[0] == 1) == packed


def test_the_kernel_follows_family_and_device():
    cpu = torch.device("cpu")
    assert choose_attention("auto", "gemma2", cpu) == "eager"
    assert choose_attention("auto", "llama", cpu) == "sdpa"
    assert choose_attention("flex", "gemma2", cpu) == "flex"


def test_the_proof_fails_where_the_cap_is_dropped(monkeypatch: pytest.MonkeyPatch):
    from nbhelpers.jobs.equivalence import prove
    from nbhelpers.jobs.models import causal_forward

    base = tiny_base(scale=SCALE)
    adapted = SimpleNamespace(base=base, model=base.model, bare=base.model)
    how = {"dtype": torch.float32, "packed": True}
    assert prove(adapted, tiny_table(), kernel="eager", **how)["passed"]
    assert prove(adapted, tiny_table(), kernel="flex", **how)["passed"]
    real = causal_forward.flex_attention_forward

    def careless(*args, softcap=None, **options):
        return real(*args, softcap=None, **options)

    monkeypatch.setattr(causal_forward, "flex_attention_forward", careless)
    found = prove(adapted, tiny_table(), kernel="flex", **how)
    assert not found["passed"]
    assert found["relative_error"] > 0.05


def test_a_kernel_that_fails_the_proof_gives_way_to_eager_on_padded_rows(monkeypatch):
    """Eager attention would compute the whole square of a packed row."""
    from types import SimpleNamespace

    from nbhelpers.jobs import finetune_task

    def prove(adapted, table, *, kernel, dtype, packed):
        return {"passed": kernel == "eager", "relative_error": 0.5, "packed": packed}

    context = make_context(settings=SimpleNamespace(packing=True))
    adapted = SimpleNamespace(base=SimpleNamespace(facts={"attention": "flex"}))
    inputs = SimpleNamespace(tables={"train": None})
    monkeypatch.setattr(finetune_task, "prove", prove)
    kernel, packed, found = finetune_task.proven_kernel(context, inputs, adapted, torch.float32)
    assert (kernel, packed, found["packed"]) == ("eager", False, False)
    assert "padded" in context.warnings[0]


def test_hashed_dropout_drops_as_often_as_asked_and_anew_for_each_seed():
    x = torch.ones(400, 257)
    masks = []
    for seed in (1, 2, -7, 2**31 - 1):
        dropout = HashedDropout(0.05, torch.tensor([seed], dtype=torch.int32)).train()
        dropped = dropout(x)
        assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.95)]
        masks.append((dropped == 0).double())
        assert torch.equal(dropout(x), dropped)
    share = np.sqrt(0.05 * 0.95 / x.numel())
    for mask in masks:
        assert float(mask.mean()) == pytest.approx(0.05, abs=5 * share)
        for shift in (1, 257, 258):  # neighbours in a row, in a column, across
            flat = mask.flatten()
            both = float((flat[:-shift] * flat[shift:]).mean())
            assert both == pytest.approx(0.05**2, abs=5 * np.sqrt(0.05**2 / x.numel()))
    for one, two in combinations(masks, 2):
        assert float((one * two).mean()) == pytest.approx(0.05**2, abs=5 * 0.05 / 320)
    near = [  # masks of near seeds are not one another's, shifted
        (HashedDropout(0.05, torch.tensor([seed], dtype=torch.int32)).train()(x) == 0).flatten()
        for seed in (5, 6)
    ]
    assert float((near[0][1:] & near[1][:-1]).double().mean()) < 0.05 / 4
    rows, columns = masks[0].mean(1), masks[0].mean(0)  # no row or column is favoured
    assert float(rows.var()) == pytest.approx(0.05 * 0.95 / 257, rel=0.4)
    assert float(columns.var()) == pytest.approx(0.05 * 0.95 / 400, rel=0.4)


def test_hashed_dropout_is_off_in_evaluation_and_gone_after_training():
    base = tiny_base()
    how = {"lora_target_modules": ["q_proj", "down_proj"], "lora_r": 4, "alpha": 8, "seed": 0}
    model = add_adapter(base, SimpleNamespace(**how, lora_dropout=0.1, model="tiny"))
    x = torch.randn(3, 5)
    with hashed_dropout(model) as seeds:
        layers = [m for m in model.modules() if isinstance(m, HashedDropout)]
        assert len(layers) == len(seeds) == 4
        seeds.copy_(torch.arange(4))
        assert [int(layer.seed) for layer in layers] == [0, 1, 2, 3]
        model.eval()
        assert all(torch.equal(layer(x), x) for layer in layers)
        assert not any("seed" in name for name in model.state_dict())
    kinds = {type(m) for m in model.modules()}
    assert HashedDropout not in kinds and torch.nn.Dropout in kinds
    assert not any(m.training for m in model.modules())


def test_compiled_blocks_draw_their_dropout_for_each_pass_from_torchs_generator():
    base = tiny_base()
    how = {"lora_target_modules": ["q_proj", "down_proj"], "lora_r": 4, "alpha": 8, "seed": 0}
    model = add_adapter(base, SimpleNamespace(**how, lora_dropout=0.3, model="tiny")).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1
    forward = TrainingForward(base.model, kernel="eager", loss="chunked", dtype=torch.float32)
    batch = make_batch(tiny_table(), ROWS, pad_id=PAD, packed=True)
    losses = []
    with forward.active(compiled=True):
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            losses.append(float(model(**forward.inputs(batch)).loss.detach()))
    assert losses[0] == losses[2] != losses[1]
