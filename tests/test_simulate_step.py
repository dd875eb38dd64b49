"""`simulate_step` runs anybody's training step without a GPU and tells what a card would hold.

The figures that stand here as measured come from an H200 with torch 2.11.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, TIGHT, UNSURE
from nbhelpers.errors import ConfigError
from nbhelpers.simulate import simulate_step

MIB = 1 << 20
pytestmark = pytest.mark.slow


def two_layers(width: int = 1024) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))


def forward_and_backward(model: nn.Module) -> torch.Tensor:
    x = torch.ones(256, model[0].in_features, device="cuda")
    loss = model(x).sum()
    loss.backward()
    return loss


def line(budget, name: str) -> int:
    return sum(each.size_bytes for each in budget.lines if each.name == name)


def phase(budget, name: str) -> int:
    return next(each.size_bytes for each in budget.phases if each.name == name)


def test_weights_gradients_and_states_are_told_by_cause():
    def build():
        model = two_layers().to("cuda")
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def step(model, optimizer):
        forward_and_backward(model)
        optimizer.step()
        optimizer.zero_grad()

    budget = simulate_step(build, step, gpu="h100")
    assert line(budget, "weights") == 2 * 4 * MIB
    assert 2 * 8 * MIB <= line(budget, "optimizer") <= 2 * 8 * MIB + 4 * 512
    assert line(budget, "gradients") in (4 * MIB, 8 * MIB)
    assert budget.verdict == FITS and not budget.opaque
    assert budget.allocated_bytes == sum(x.size_bytes for x in budget.lines if x.name != "context")


def test_foreach_adamw_holds_one_more_copy_of_the_parameters_while_it_steps():
    def build():
        model = two_layers().to("cuda")
        return model, torch.optim.AdamW(model.parameters())

    def step(model, optimizer):
        forward_and_backward(model)
        optimizer.step()

    budget = simulate_step(build, step, gpu="h100")
    weights_gradients_states_copy = 5 * 8 * MIB
    kept = weights_gradients_states_copy + line(budget, "workspace")
    assert phase(budget, "optimizer") == pytest.approx(kept, abs=MIB)


def test_a_model_that_stays_on_the_cpu_is_moved():
    there = simulate_step(lambda: two_layers().cuda(), forward_and_backward, gpu="t4")
    here = simulate_step(two_layers, forward_and_backward, gpu="t4")
    assert here.allocated_bytes == there.allocated_bytes


def test_gradients_of_a_second_micro_step_are_added_in_place():
    def step(model, times):
        model.zero_grad()
        for _ in range(times):
            forward_and_backward(model)

    once, twice = (
        simulate_step(lambda n=n: (two_layers().cuda(), n), step, gpu="h100") for n in (1, 2)
    )
    # Out of place, both gradients and their sums would be there: 8 MiB more and again 8.
    assert 0 < twice.allocated_bytes - once.allocated_bytes <= 8 * MIB


def test_padding_decides_whether_attention_gets_a_mask():
    def build(padded: bool):
        mask = torch.ones(8, 512, dtype=torch.long)
        mask[0, 300:] = 0 if padded else 1
        return mask.cuda()

    def step(mask):
        heads = torch.ones(8, 4, 512, 64, device="cuda", requires_grad=True)
        wide = None if mask.bool().all() else mask[:, None, None, :].bool().expand(8, 1, 512, 512)
        F.scaled_dot_product_attention(heads, heads, heads, attn_mask=wide).sum().backward()

    plain = simulate_step(lambda: build(False), step, gpu="h100")
    masked = simulate_step(lambda: build(True), step, gpu="h100")
    assert masked.allocated_bytes > plain.allocated_bytes
    assert not plain.notes and not masked.notes


def test_autocast_keeps_weights_in_half_precision_until_the_context_ends():
    def step(model):
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward_and_backward(model)
            assert model(torch.ones(1, 1024, device="cuda")).dtype is torch.bfloat16
        assert loss.dtype is torch.float32

    budget = simulate_step(lambda: two_layers().cuda(), step, gpu="a100-40gb")
    plain = simulate_step(lambda: two_layers().cuda(), forward_and_backward, gpu="a100-40gb")
    assert budget.allocated_bytes > plain.allocated_bytes


def test_tensors_say_that_they_are_on_the_gpu():
    def step(model):
        x = torch.randn(4, 1024).to("cuda", non_blocking=True)
        assert x.is_cuda and not x.is_meta and x.device == torch.device("cuda", 0)
        assert next(model.parameters()).device.type == "cuda"
        assert torch.zeros_like(x).is_cuda and x.new_ones(3).is_cuda
        assert x.cpu().device.type == "cpu" and torch.cuda.get_device_capability() == (7, 5)
        assert torch.tensor([1, 2, 3], device="cuda").tolist() == [1, 2, 3]
        assert torch.arange(5, device="cuda").sum().item() == 10
        assert copy.deepcopy(model)[0].weight.is_cuda

    simulate_step(lambda: two_layers().cuda(), step, gpu="t4")
    assert not torch.cuda.is_available() or torch.cuda.device_count()


def test_what_cannot_be_predicted_is_named_and_the_verdict_says_so():
    compiled = simulate_step(
        lambda: torch.compile(two_layers().cuda()), forward_and_backward, gpu="h100"
    )
    assert compiled.verdict == UNSURE and "torch.compile" in compiled.opaque[0]

    def select(model):
        rows = model(torch.ones(256, 1024, device="cuda"))
        rows[rows[:, 0] > 0].sum().backward()

    unknown = simulate_step(lambda: two_layers().cuda(), select, gpu="h100")
    assert unknown.verdict == UNSURE and "cut short" in unknown.opaque[0]
    assert "only a run knows" in unknown.opaque[1]


def test_known_parts_alone_can_be_too_much():
    def step(model):
        forward_and_backward(torch.compile(model))
        torch.empty(20 << 30, dtype=torch.uint8, device="cuda")

    budget = simulate_step(lambda: two_layers().cuda(), step, gpu="t4")
    assert budget.verdict == DOES_NOT_FIT


def test_three_verdicts_follow_the_capacity():
    budget = simulate_step(lambda: two_layers().cuda(), forward_and_backward, gpu="t4")
    need, reserved = budget.total_bytes, budget.reserved_bytes
    context = need - budget.allocated_bytes
    for capacity, verdict in (
        (need - 1, DOES_NOT_FIT),
        (need, TIGHT),
        (int(1.1 * reserved) + context + 1, FITS),
    ):
        again = simulate_step(
            lambda: two_layers().cuda(), forward_and_backward, gpu="t4", capacity_bytes=capacity
        )
        assert again.verdict == verdict


def test_errors_of_the_users_code_come_out_as_they_are_and_leave_torch_as_it_was():
    def step(model):
        raise KeyError("mine")

    before = torch.cuda.is_available()
    with pytest.raises(KeyError, match="mine"):
        simulate_step(lambda: two_layers().cuda(), step, gpu="h100")
    assert torch.cuda.is_available() == before
    assert torch.zeros(3).device.type == "cpu" and torch.zeros(3).sum().item() == 0


def test_bad_arguments_are_told():
    with pytest.raises(ConfigError, match="steps=0"):
        simulate_step(two_layers, forward_and_backward, gpu="h100", steps=0)
    with pytest.raises(ConfigError, match="no-such-card"):
        simulate_step(two_layers, forward_and_backward, gpu="no-such-card")


def test_data_parallel_training_holds_a_copy_of_the_gradients():
    def build(parallel: bool):
        model = two_layers().cuda()
        if not parallel:
            return model, model
        import torch.distributed as dist

        dist.init_process_group("nccl", rank=0, world_size=1)
        return model, nn.parallel.DistributedDataParallel(model, device_ids=[0])

    def step(model, wrapped):
        wrapped(torch.ones(256, 1024, device="cuda")).sum().backward()
        model.zero_grad(set_to_none=False)

    alone = simulate_step(lambda: build(False), step, gpu="h100")
    both = simulate_step(lambda: build(True), step, gpu="h100")
    assert line(both, "communication") == 8 * MIB
    assert both.allocated_bytes - alone.allocated_bytes == 8 * MIB
    assert line(both, "context") > line(alone, "context")


def test_codebert_in_half_precision_needs_what_was_measured():
    transformers = pytest.importorskip("transformers")

    def build():
        config = transformers.RobertaConfig(
            vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_labels=2
        )
        model = transformers.AutoModelForSequenceClassification.from_config(
            config, attn_implementation="sdpa"
        )
        model = model.to("cuda").train()
        ids = torch.ones(128, 512, dtype=torch.long)
        mask = torch.ones_like(ids)
        mask[1, 100:] = 0
        batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(128).long()}
        batch = {name: value.cuda() for name, value in batch.items()}
        scaler = torch.amp.GradScaler("cuda")
        return model, torch.optim.AdamW(model.parameters(), foreach=True), scaler, batch

    def step(model, optimizer, scaler, batch):
        with torch.autocast("cuda", torch.float16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    budget = simulate_step(build, step, gpu="h200")
    assert budget.allocated_bytes / 2**30 == pytest.approx(27.2, rel=0.005)
    assert budget.reserved_bytes / 2**30 == pytest.approx(27.8, rel=0.03)
    assert budget.verdict == FITS
