"""Programs as people write them run through `simulate_step`: read, load, ask, catch, and go on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nbhelpers.budget.memory import FITS, UNSURE
from nbhelpers.errors import ConfigError
from nbhelpers.simulate import simulate_step

pytestmark = pytest.mark.slow


def layer() -> nn.Module:
    return nn.Linear(256, 256)


def rows() -> torch.Tensor:
    return torch.randn(64, 256).to("cuda")


def step(model: nn.Module) -> None:
    model(rows()).sum().backward()


def test_a_model_from_outside_keeps_its_weights():
    model = layer()
    before = model.weight.detach().clone()
    budget = simulate_step(lambda: model.to("cuda"), step, gpu="h100")
    assert budget.verdict == FITS
    assert model.weight.device.type == "cpu" and torch.equal(model.weight, before)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_checkpoints_can_be_loaded(tmp_path, place):
    path = tmp_path / "weights.pt"
    torch.save(layer().state_dict(), path)

    def build():
        model = layer().to("cuda")
        model.load_state_dict(torch.load(path, map_location=place))
        return model

    assert simulate_step(build, step, gpu="h100").verdict == FITS


def test_numbers_that_only_a_run_knows_are_named_and_losses_only_noted():
    def logged(model):
        loss = model(rows()).sum()
        loss.backward()
        assert isinstance(loss.item(), float) and "cuda" in repr(loss)

    def sized(model):
        out = model(rows())
        out[: int((out > 0).sum())].sum().backward()

    noted = simulate_step(lambda: layer().cuda(), logged, gpu="h100")
    assert noted.verdict == FITS and "only a run knows" in noted.notes[0]
    named = simulate_step(lambda: layer().cuda(), sized, gpu="h100")
    assert named.verdict == UNSURE and "test_simulate_programs.py" in named.opaque[0]


def test_values_of_data_decide_sizes():
    def masked(model):
        mask = torch.arange(64).remainder(4).eq(0).to("cuda")
        picked = model(rows())[mask]
        assert picked.shape == (16, 256)
        picked.sum().backward()

    budget = simulate_step(lambda: layer().cuda(), masked, gpu="h100")
    assert budget.verdict == FITS and not budget.opaque


def test_a_request_beyond_the_card_can_be_caught_and_is_told_if_it_is_not():
    def greedy(model, rows_asked):
        torch.empty(rows_asked, 1 << 30, device="cuda")
        step(model)

    def careful(model):
        try:
            greedy(model, 100)
        except torch.OutOfMemoryError:
            step(model)

    assert simulate_step(lambda: layer().cuda(), careful, gpu="h100").verdict == FITS
    budget = simulate_step(lambda: (layer().cuda(), 100), greedy, gpu="h100")
    assert budget.verdict == "does not fit" and budget.total_bytes > 400 << 30


def test_a_forced_kernel_that_cannot_run_fails_as_on_the_gpu():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def forced(model):
        q = torch.ones(1, 2, 16, 64, device="cuda", requires_grad=True)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)

    with pytest.raises(RuntimeError, match="No available kernel"):
        simulate_step(lambda: layer().cuda(), forced, gpu="h100")


def test_settings_of_torch_are_as_before_and_simulations_do_not_nest():
    def build():
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.zeros(3).is_cuda
        return layer()

    seed = torch.initial_seed()
    state = torch.get_rng_state()
    simulate_step(build, lambda model: None, gpu="h100")
    assert torch.zeros(3).device.type == "cpu" and torch.zeros(3).dtype is torch.float32
    assert not torch.are_deterministic_algorithms_enabled() and torch.initial_seed() == seed
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ConfigError, match="inside a simulated step"):
        simulate_step(
            layer, lambda model: simulate_step(layer, lambda m: None, gpu="t4"), gpu="h100"
        )


def test_sharded_models_are_named_and_what_was_counted_is_called_a_part():
    from torch.distributed.fsdp import FullyShardedDataParallel

    budget = simulate_step(lambda: FullyShardedDataParallel(layer().cuda()), step, gpu="h100")
    assert budget.verdict == UNSURE and "a part" in budget.opaque[0]


def test_an_optimizer_may_step_inside_a_closure_or_a_hook():
    def build():
        model = layer().cuda()
        optimizers = {p: torch.optim.AdamW([p], fused=True) for p in model.parameters()}

        def hook(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)
        return model

    budget = simulate_step(build, step, gpu="h100")
    assert budget.verdict == FITS
    states = next(line for line in budget.lines if line.name == "optimizer")
    assert states.size_bytes >= 2 * 4 * 256 * 256


def test_switches_of_kernels_and_of_the_allocator_count_inside_and_not_after():
    def build(conf: str):
        torch.cuda.memory._set_allocator_settings(conf)
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)
        return nn.Linear(3000, 3000).cuda()

    def wide(model):
        model(torch.ones(64, 3000, device="cuda")).sum().backward()

    switches = (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled)
    before = [is_on() for is_on in switches]
    plain, grown = (
        simulate_step(lambda c=c: build(f"expandable_segments:{c}"), wide, gpu="h100")
        for c in ("False", "True")
    )
    assert plain.allocated_bytes == pytest.approx(grown.allocated_bytes, rel=0.05)
    assert plain.reserved_bytes != grown.reserved_bytes
    assert [is_on() for is_on in switches] == before


def test_a_share_of_the_card_is_its_capacity():
    def build():
        torch.cuda.set_per_process_memory_fraction(1e-4)
        return layer().cuda()

    budget = simulate_step(build, step, gpu="h100")
    assert budget.verdict == "does not fit" and budget.capacity_bytes < 2 << 30
