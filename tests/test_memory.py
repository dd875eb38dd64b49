"""Promise: an estimate agrees with what was measured, the verdict follows one rule, and what is
advised does fit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nbhelpers.budget.formulas import GIB, BatchExtent, MemoryLine, ledger
from nbhelpers.budget.memory import MemoryBudget, compare, require_fit
from nbhelpers.budget.predict import estimate_budget, predict_memory
from nbhelpers.budget.shapes import Shape, find_shape
from nbhelpers.data.samples import load_functions
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.plan import plan_batch, split_batch
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.preset import Preset
from tools.budget_cases import ASKED

FITTED = [n for n in list_presets("clones") if not n.startswith("seed-") and n != "smoke"]


def cpu() -> Hardware:
    return replace(plan_hardware("t4"), gpus=(), reason="no driver")


def budget_of(
    name: str, hardware: Hardware, *, job: str = "clones", **changes: object
) -> MemoryBudget:
    preset = load_preset(job, name, hardware=hardware, overrides=changes)
    return estimate_budget(preset, plan_batch(preset, hardware), hardware)


@pytest.mark.parametrize(
    ("changes", "measured_gib"),
    [
        ({"attention": "eager", "precision": "fp32"}, 38.2),
    ],
)
def test_codegpt_with_8_pairs_of_1024_tokens_is_near_the_measured_peak(changes, measured_gib):
    changes = {"num_gpus": 1, **changes}
    budget = budget_of("seed-2x-rtx6000ada", plan_hardware("h200"), **changes)
    found = compare(budget, int(measured_gib * GIB))
    assert abs(found["error_percent"]) < 3


@pytest.mark.parametrize(
    ("hidden", "layers", "pairs", "seq_len", "checkpointing", "dropout", "measured_bytes"),
    [
        (128, 3, 16, 160, False, 0.1, 286_890_456),
        (128, 3, 16, 160, True, 0.1, 118_953_944),
        (128, 3, 16, 160, False, 0.0, 150_821_336),
        (256, 6, 2, 256, False, 0.1, 262_006_120),
        (256, 6, 2, 256, False, 0.0, 172_975_464),
    ],
)
def test_on_a_cpu_the_estimate_is_near_the_live_tensor_bytes(
    hidden, layers, pairs, seq_len, checkpointing, dropout, measured_bytes
):
    """Measured by counting live storages of two optimizer steps (torch 2.11, CPU, fp32)."""
    preset = load_preset("clones", "smoke").override(
        seq_len=seq_len,
        padding="fixed",
        dropout=dropout,
        gradient_checkpointing=checkpointing,
        per_device_train_batch_size=pairs,
        per_device_eval_batch_size=1,
    )
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=4,
        inner=4 * hidden,
        vocab=1200,
        positions=1024,
        dropout=0.1,
    )
    lines = ledger(preset.settings, split_batch(pairs, pairs, 1), shape, precision="fp32")
    assert sum(line.size_bytes for line in lines) == pytest.approx(measured_bytes, rel=0.07)


@pytest.mark.parametrize(
    ("preset", "tokens", "squares", "measured_bytes"),
    [
        ("h100", 53_944, 40_000_000, 20_557_737_472),
        ("h100", 37_984, 15_000_000, 14_936_924_160),
        ("seed-legacy", 32 * 400, 32 * 400 * 400, 21_640_401_920),
    ],
)
def test_the_estimate_of_a_known_batch_is_near_the_peak_measured_on_an_h100(
    preset, tokens, squares, measured_bytes
):
    """CodeGPT-small's shape with 8,000 words; the allocator's peak of a whole run (torch 2.11)."""
    hardware = plan_hardware("h100")
    chosen = load_preset("clones", preset, hardware=hardware, overrides={"padding": "fixed"})
    plan = plan_batch(chosen, hardware)
    shape = Shape(
        hidden=768, layers=12, heads=12, inner=3072, vocab=8000, positions=1024, dropout=0.1
    )
    extent = BatchExtent(
        tokens=tokens, padded_tokens=tokens, squares=squares, last_tokens=min(tokens, 12_800)
    )
    precision = "bf16" if preset == "h100" else "fp32"
    lines = ledger(chosen.settings, plan, shape, precision=precision, extent=extent)
    total = sum(line.size_bytes for line in lines if line.name != "context")
    assert total == pytest.approx(measured_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("family", "tokens", "padded", "squares", "measured_bytes"),
    [
        ("roberta", 43_252, 46_744, 20_000_000, 18_556_469_248),
        ("gpt2", 38_805, 52_223, 40_000_000, 17_349_609_472),
    ],
)
def test_the_estimate_of_packed_tokens_is_near_the_peak_measured_on_an_h200(
    family, tokens, padded, squares, measured_bytes
):
    """64 pairs of the real sample, bf16, published shapes with 8,000 words (torch 2.11)."""
    graph = {"seq_len": 400, "data_flow_length": 128, "model": "microsoft/graphcodebert-base"}
    overrides = graph if family == "roberta" else {}
    hardware = plan_hardware("h100")
    chosen = load_preset("clones", "h100", hardware=hardware, overrides=overrides)
    spare = {"token_types": 1, "spare_positions": 2} if family == "roberta" else {}
    shape = Shape(
        hidden=768,
        layers=12,
        heads=12,
        inner=3072,
        vocab=8000,
        positions=514 if family == "roberta" else 1024,
        dropout=0.1,
        family=family,
        **spare,
    )
    extent = BatchExtent(tokens=tokens, padded_tokens=padded, squares=squares, last_tokens=tokens)
    lines = ledger(
        chosen.settings, plan_batch(chosen, hardware), shape, precision="bf16", extent=extent
    )
    total = sum(line.size_bytes for line in lines if line.name != "context")
    assert total == pytest.approx(measured_bytes, rel=0.02)


@pytest.mark.parametrize("name", FITTED)
def test_every_shipped_preset_loads_plans_and_fits_its_gpu(name):
    bare = load_preset("clones", name)
    assert bare.gpu, f"{name} names no gpu"
    hardware = plan_hardware(bare.gpu, bare.num_target_gpus)
    budget = budget_of(name, hardware)
    assert budget.verdict == "fits"
    assert budget.total_bytes > 0.4 * budget.capacity_bytes, "the preset leaves the card idle"


@pytest.mark.parametrize("job", ["clones", "detector", "finetune"])
def test_auto_fits_and_was_simulated_for_1_2_4_and_8_of_every_gpu(job):
    for gpu in sorted(set(known_gpus()) - set(ASKED)):
        for count in (1, 2, 4, 8):
            hardware = plan_hardware(gpu, count)
            preset = load_preset(job, "auto", hardware=hardware)
            budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
            assert (budget.verdict, budget.source) == ("fits", "simulation"), (gpu, count)


@pytest.mark.parametrize(
    ("job", "name", "gpu", "count", "changes"),
    [
        ("clones", "seed-2x-rtx6000ada", "t4", 1, {"num_gpus": 1}),
        ("clones", "seed-2x-rtx6000ada", "t4", 2, {}),
        ("clones", "h100", "t4", 1, {}),
        ("clones", "a100-80gb", "l4", 1, {"model": "codebert", "seq_len": 512}),
        ("detector", "h100", "t4", 1, {"per_device_train_batch_size": 256}),
        ("detector", "t4", "t4", 1, {"per_device_eval_batch_size": 4096}),
        ("finetune", "seed-t4", "t4", 1, {}),
        ("finetune", "seed-a100", "a100-40gb", 1, {"method": "qlora"}),
        ("finetune", "h100", "t4", 1, {}),
        ("finetune", "h100", "l4", 1, {"method": "qlora"}),
        ("finetune", "base", "t4", 1, {"precision": "fp32", "seq_len": 2048}),
    ],
)
def test_what_is_advised_fits_with_the_same_global_batch(job, name, gpu, count, changes):
    hardware = plan_hardware(gpu, count)
    preset = load_preset(job, name, hardware=hardware, overrides=changes)
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict != "fits" and 1 <= len(budget.advice) <= 4
    for text in budget.advice:
        follow = dict(re.findall(r"(\w+)=([\w.'-]+)", text))
        other = preset.override(
            **{n: json.loads(v.lower().replace("'", '"')) for n, v in follow.items()}
        )
        assert other.settings.global_batch_size == preset.settings.global_batch_size
        again = predict_memory(other, plan_batch(other, hardware), hardware)
        assert again.verdict == "fits"
        last = re.findall(r"([\d.]+) GiB", text)[-1]
        assert last == f"{again.total_bytes / GIB:.1f}"
        assert ("estimate" in text) == (again.source == "estimate")
        assert ({"seq_len", "method"} & follow.keys() != set()) == ("changes the exp" in text)


def test_where_nothing_fits_a_larger_gpu_is_advised_and_what_helps_most_is_noted():
    hardware = plan_hardware("t4")
    small = replace(hardware.gpus[0], memory_total_bytes=int(2.2 * GIB))
    preset = load_preset("clones", "base", hardware=hardware)
    hardware = replace(hardware, gpus=(small,))
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert "seq_len=128" in budget.notes[-1] and "not enough" in budget.notes[-1]
    assert budget.advice == ()
    with pytest.raises(BudgetError) as error:
        require_fit(budget)
    assert error.value.fix == "use a larger GPU"


@pytest.mark.parametrize(
    ("capacity_gib", "verdict"),
    [(8.7, "does not fit"), (8.9, "tight"), (9.9, "tight"), (10.2, "fits")],
)
def test_the_verdict_follows_the_rule(capacity_gib, verdict):
    """The t4 preset needs 8.05 GiB and a context of 0.75: 8.80, and with reserves 10.05."""
    hardware = plan_hardware("t4")
    gpu = replace(hardware.gpus[0], memory_total_bytes=int(capacity_gib * GIB))
    assert budget_of("t4", replace(hardware, gpus=(gpu,))).verdict == verdict


def test_require_fit_stops_only_what_does_not_fit_and_names_what_does():
    hardware = plan_hardware("t4")
    require_fit(budget_of("t4", hardware))
    preset = load_preset("clones", "h100", hardware=hardware)
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    with pytest.raises(BudgetError) as error:
        require_fit(budget)
    assert "gradient_checkpointing=True" in error.value.fix
    assert "activations" in error.value.details
    assert f"{budget.total_bytes / GIB:.1f} GiB" in error.value.message


def test_lines_add_up_and_half_precision_keeps_fp32_weights():
    fp32 = budget_of("t4", plan_hardware("t4"), precision="fp32")
    half = budget_of("t4", plan_hardware("t4"))
    for budget in (fp32, half):
        assert sum(line.size_bytes for line in budget.lines) == budget.total_bytes
    size = {line.name: line.size_bytes for line in half.lines}
    assert size["weights"] == size["gradients"] == size["optimizer"] // 2
    assert size["cached casts"] and "cached casts" not in {line.name for line in fp32.lines}
    assert size["activations"] < {x.name: x.size_bytes for x in fp32.lines}["activations"]


def test_scoring_counts_where_it_needs_more_than_training():
    hardware = plan_hardware("h200")
    budget = budget_of("l4", hardware, per_device_eval_batch_size=1024)
    assert any("scoring" in line.note for line in budget.lines)


def test_memory_that_others_hold_is_named():
    hardware = plan_hardware("t4")
    gpu = replace(hardware.gpus[0], memory_free_bytes=4 * GIB)
    budget = budget_of("t4", replace(hardware, gpus=(gpu,)))
    assert any("in use by other processes" in text for text in budget.advice)


def test_the_smoke_shape_is_the_one_that_the_worker_builds():
    from nbhelpers.jobs.models.encoders import build_clone_model, build_tokenizer

    settings = load_preset("clones", "smoke").settings.model_copy(update={"pretrain_steps": 0})
    texts = [function.code for function in load_functions()]
    model = build_clone_model(settings, build_tokenizer(settings, texts))
    assert sum(p.numel() for p in model.parameters()) == find_shape(settings).parameters()


def folder_preset(tmp_path: Path, config: str) -> Preset:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    return load_preset("clones", "t4", overrides={"model": str(tmp_path)})


def test_a_local_folder_gives_its_own_shape(tmp_path):
    config = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 256}
    preset = folder_preset(tmp_path, json.dumps(config))
    assert find_shape(preset.settings) == Shape(
        hidden=64, layers=2, heads=2, inner=256, vocab=500, positions=256, dropout=0.1
    )


def test_compare_leaves_the_context_out_and_signs_the_error():
    lines = (
        MemoryLine(name="weights", size_bytes=110, note=""),
        MemoryLine(name="context", size_bytes=50, note=""),
    )
    budget = MemoryBudget(
        lines=lines, total_bytes=160, capacity_bytes=None, verdict="fits", advice=()
    )
    assert compare(budget, 100) == {
        "predicted_bytes": 110,
        "measured_bytes": 100,
        "error_percent": 10.0,
    }
    assert compare(budget, None)["error_percent"] is None
    assert compare(budget, 0)["error_percent"] is None


def test_a_budget_survives_json_and_escapes_html():
    budget = budget_of("h100", plan_hardware("t4"))
    plain = json.loads(json.dumps(budget.to_dict()))
    assert MemoryBudget.from_dict(plain) == budget and "(estimate)" in budget.title()
    assert MemoryBudget.from_dict(plain | {"source": "ledger"}) == budget  # as 0.1.0 wrote it
    with pytest.raises(ConfigError, match="lines is missing"):
        MemoryBudget.from_dict({})
    line = MemoryLine(name="<script>", size_bytes=1, note="")
    assert "<script>" not in replace(budget, lines=(line,))._repr_html_()
    assert "\n" not in repr(budget)


@pytest.mark.parametrize(
    ("job", "change"),
    [
        ("clones", {"gradient_checkpointing": True}),
        ("clones", {"seq_len": 512}),
        ("clones", {"attention": "sdpa"}),
        ("finetune", {"gradient_checkpointing": True}),
        ("finetune", {"loss": "chunked"}),
        ("finetune", {"attention": "auto"}),
        ("finetune", {"per_device_train_batch_size": 4}),
        ("finetune", {"method": "qlora"}),
        ("finetune", {"lora_dropout": 0.0}),
        ("finetune", {"compile_layers": "on"}),
    ],
    ids=str,
)
def test_each_saving_saves(job, change):
    hardware = plan_hardware("h200")
    name, plain = "l4", {"attention": "eager"}
    if job == "finetune":
        name, plain = "seed-a100", {"precision": "bf16"}
    before = budget_of(name, hardware, job=job, **plain)
    assert budget_of(name, hardware, job=job, **(plain | change)).total_bytes < before.total_bytes


@pytest.mark.parametrize(("job", "name"), [("clones", "rtx6000ada"), ("finetune", "h100")])
def test_several_processes_add_nccl_outside_of_the_allocator(job, name):
    budgets = [budget_of(name, plan_hardware(name, n), job=job) for n in (1, 2)]
    one, two = (budget.total_bytes - budget.allocated_bytes for budget in budgets)
    assert two - one == int(0.55 * GIB)


@pytest.mark.parametrize("job", ["clones", "detector", "finetune"])
def test_without_a_gpu_the_lines_are_bytes_of_main_memory_and_nothing_is_judged(job):
    preset = load_preset(job, "smoke")
    plan = plan_batch(preset, cpu())
    for hardware in (cpu(), plan_hardware("t4")):  # a plan for the CPU, even if a GPU is there
        budget = predict_memory(preset, plan, hardware)
        assert (budget.verdict, budget.capacity_bytes, budget.advice) == ("no GPU", None, ())
        assert {"context", "workspace"}.isdisjoint(line.name for line in budget.lines)
        assert budget.total_bytes == budget.allocated_bytes
        require_fit(budget)


def test_more_tokens_than_the_model_has_positions_are_refused(tmp_path):
    config = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 256}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert budget_of("smoke", cpu(), model=str(tmp_path), seq_len=256).lines
    with pytest.raises(ConfigError, match="set seq_len to 256 or less"):
        budget_of("smoke", cpu(), model=str(tmp_path), seq_len=257)
    with pytest.raises(ConfigError, match="set seq_len to 8192 or less"):
        budget_of("h100", plan_hardware("h100"), job="finetune", seq_len=8193)
