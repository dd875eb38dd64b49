"""Promise: code that cannot run without a GPU runs under simulation with what its own Python code
allocates, what cannot be followed is named, and nothing stays patched afterwards."""

from __future__ import annotations

import importlib.util
import sys

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from nbhelpers.simulate import simulate_step

pytestmark = pytest.mark.slow
MIB = 2**20


def peak(budget) -> int:
    return budget.allocated_bytes


def nothing(*_: object) -> None:
    return None


def lines(budget) -> dict[str, int]:
    return {line.name: line.size_bytes for line in budget.lines}


def test_a_four_bit_layer_holds_half_a_byte_a_weight_and_its_scales():
    bnb = pytest.importorskip("bitsandbytes")

    def build():
        layer = bnb.nn.Linear4bit(1024, 4096, bias=False, quant_type="nf4", device="cuda")
        layer = layer.to("cuda")
        return layer, torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # later than loading

    weights = 1024 * 4096
    blocks = weights // 64
    held = weights // 2 + blocks + 4 * (blocks // 256) + 4 * (256 + 16 + 1)
    found = lines(simulate_step(build, nothing, gpu="h100", steps=1))["weights"] - 64 * MIB
    assert held <= found <= held + 6 * 512


def test_a_four_bit_layer_unpacks_its_weight_for_the_moment_it_is_used():
    bnb = pytest.importorskip("bitsandbytes")

    def build():
        layer = bnb.nn.Linear4bit(4096, 4096, bias=False, compute_dtype=torch.bfloat16)
        return layer.to("cuda")

    def step(rows):
        def run(layer):
            x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
            layer(x.requires_grad_()).sum().backward()

        return run

    few, many = (lines(simulate_step(build, step(rows), gpu="h100", steps=1)) for rows in (4, 2048))
    assert sum(many.values()) - sum(few.values()) > 2 * 4096 * 4096  # few rows need no copy
    assert few["weights"] < 0.6 * 4096 * 4096


@pytest.mark.parametrize(
    ("name", "bytes_of_large", "bytes_of_small"),
    [("AdamW8bit", 2, 8), ("Lion8bit", 1, 4), ("AdamW", 8, 8), ("PagedAdamW", 0, 8)],
)
def test_optimizers_of_bitsandbytes_keep_their_states_in_blocks(
    name, bytes_of_large, bytes_of_small
):
    bnb = pytest.importorskip("bitsandbytes")
    large, small = 2048 * 2048, 4000  # below 4,096 elements states stay in 32 bits

    def build():
        model = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in (large, small)]).cuda()
        return model, getattr(bnb.optim, name)(model.parameters(), lr=1e-3)

    def step(model, optimizer):
        for parameter in model:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    found = lines(simulate_step(build, step, gpu="h100", steps=1))
    state = found.get("optimizer", 0)
    scales = 4 * large // 256 * (name in ("AdamW8bit", "Lion8bit")) * max(bytes_of_large, 1)
    assert state == pytest.approx(
        large * bytes_of_large + small * bytes_of_small + scales, abs=8192
    )


def test_bitsandbytes_works_on_a_cpu_as_before_after_a_simulation():
    bnb = pytest.importorskip("bitsandbytes")
    before = torch.ops.bitsandbytes.quantize_4bit, bnb.nn.Params4bit._quantize
    simulate_step(lambda: bnb.nn.Linear4bit(64, 64).cuda(), nothing, gpu="t4", steps=1)
    assert (torch.ops.bitsandbytes.quantize_4bit, bnb.nn.Params4bit._quantize) == before
    assert bnb.nn.Linear4bit(64, 64).to("cpu")(torch.zeros(2, 64)).shape == (2, 64)


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def copy(x, y, n: tl.constexpr):
    tl.store(y, tl.load(x))

def doubled(x):
    y = torch.empty_like(x)
    copy[(1,)](x, y, n=triton.next_power_of_2(x.numel()))
    return y
"""


@pytest.mark.parametrize("package", ["liger_kernel", "somebodys_kernels"])
def test_a_triton_kernel_is_launched_but_not_run_and_a_strangers_is_named(
    package, tmp_path, monkeypatch
):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "kernels.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    has_triton = importlib.util.find_spec("triton") is not None
    saved = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == package}
    for name in saved:
        monkeypatch.delitem(sys.modules, name)

    def step(model):
        kernels = importlib.import_module(f"{package}.kernels")
        kernels.doubled(torch.empty(4 * MIB, device="cuda"))

    budget = simulate_step(lambda: nn.Linear(1, 1), step, gpu="h100", steps=1)
    assert peak(budget) >= 32 * MIB
    assert any("somebodys_kernels" in name for name in budget.opaque) == (package[0] == "s")
    if not has_triton:
        assert "triton" not in sys.modules and f"{package}.kernels" not in sys.modules
    monkeypatch.delitem(sys.modules, f"{package}.kernels", raising=False)
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_compiled_code_runs_as_it_is_and_is_named():
    def step(model):
        torch.compile(model)(torch.zeros(2, 8, device="cuda"))

    budget = simulate_step(lambda: nn.Linear(8, 8), step, gpu="h100", steps=1)
    assert [name for name in budget.opaque if name.startswith("torch.compile")]
    assert budget.verdict == "unknown"


def test_compiled_flex_attention_makes_no_scores_and_eager_flex_attention_is_named():
    from torch.nn.attention.flex_attention import flex_attention

    def step(attend):
        def run(_):
            shape = (1, 4, 8192, 64)
            q, k, v = (
                torch.zeros(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )
            attend()(q, k, v).sum().backward()

        return run

    def compiled():
        return torch.compile(flex_attention)

    build = lambda: nn.Linear(1, 1)  # noqa: E731
    fused = simulate_step(build, step(compiled), gpu="h100", steps=1)
    assert fused.opaque == ()
    assert peak(fused) < 2 * 4 * 8192**2  # bytes of the scores in 16 bits
    plain = simulate_step(build, step(lambda: flex_attention), gpu="h100", steps=1)
    assert any("flex_attention" in name for name in plain.opaque)


def test_a_cuda_graph_is_named():
    def graph(_):
        torch.cuda.CUDAGraph()

    budget = simulate_step(lambda: nn.Linear(1, 1), graph, gpu="h100", steps=1)
    assert any("CUDA graph" in name for name in budget.opaque)
