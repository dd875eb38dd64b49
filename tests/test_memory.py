"""Promise: the budget agrees with what was measured, its verdict follows one rule, and every advice
was recomputed."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nbhelpers.budget.formulas import GIB, BatchExtent, MemoryLine, ledger
from nbhelpers.budget.memory import MemoryBudget, compare, ledger_budget, require_fit
from nbhelpers.budget.shapes import Shape, find_shape
from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.data.samples import load_functions
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.plan import BatchPlan, plan_batch, split_batch
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.preset import Preset

GPUS = sorted(read_yaml(configs_dir() / "gpus.yaml"))
FITTED = [n for n in list_presets("clones") if not n.startswith("seed-") and n != "smoke"]


def cpu() -> Hardware:
    return replace(plan_hardware("t4"), gpus=(), reason="no driver")


def budget_of(name: str, hardware: Hardware, **changes: object) -> MemoryBudget:
    preset = load_preset("clones", name, hardware=hardware, overrides=changes)
    return ledger_budget(preset, plan_batch(preset, hardware), hardware)


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
def test_on_a_cpu_the_ledger_is_near_the_live_tensor_bytes(
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
def test_the_ledger_of_a_known_batch_is_near_the_peak_measured_on_an_h100(
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
def test_the_ledger_of_packed_tokens_is_near_the_peak_measured_on_an_h200(
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


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_auto_fits_on_every_gpu_that_we_know(gpu, count):
    hardware = plan_hardware(gpu, count)
    budget = budget_of("auto", hardware)
    assert budget.verdict == "fits"


def test_a_larger_batch_would_not_fit_the_t4():
    budget = budget_of("t4", plan_hardware("t4"), per_device_train_batch_size=16)
    assert budget.verdict in ("tight", "does not fit")


@pytest.mark.parametrize("name", [n for n in list_presets("clones") if n.startswith("seed-")])
def test_a_seed_preset_shows_its_verdict(name):
    bare = load_preset("clones", name)
    budget = budget_of(name, plan_hardware(bare.gpu, bare.num_target_gpus))
    assert budget.verdict in ("fits", "tight", "does not fit")


def parse_advice(text: str) -> tuple[dict[str, object], str]:
    changes, rest = text.split(": ", 1)
    pairs = (part.split("=") for part in changes.split(", "))
    return {name: ast.literal_eval(value) for name, value in pairs}, rest


@pytest.mark.parametrize(
    ("name", "gpu", "changes"),
    [
        ("seed-2x-rtx6000ada", "t4", {"num_gpus": 1}),
        ("seed-legacy", "t4", {}),
        ("h100", "t4", {}),
        ("a100-80gb", "l4", {}),
        ("t4", "t4", {"per_device_train_batch_size": 16}),
    ],
)
def test_every_advice_fits_when_it_is_followed_and_keeps_the_global_batch(name, gpu, changes):
    hardware = plan_hardware(gpu)
    preset = load_preset("clones", name, hardware=hardware, overrides=changes)
    budget = ledger_budget(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict != "fits" and budget.advice
    totals = []
    for text in budget.advice:
        follow, rest = parse_advice(text)
        other = preset.override(**follow)
        assert other.settings.global_batch_size == preset.settings.global_batch_size
        again = ledger_budget(other, plan_batch(other, hardware), hardware)
        assert again.verdict == "fits"
        assert rest.startswith(f"{again.total_bytes / GIB:.1f} GiB, fits")
        totals.append(again.total_bytes)
    assert totals == sorted(totals)


def test_where_only_a_shorter_sequence_fits_the_advice_says_that_it_changes_the_experiment():
    hardware = plan_hardware("t4")
    small = replace(hardware.gpus[0], memory_total_bytes=int(2.95 * GIB))
    hardware = replace(hardware, gpus=(small,))
    changes = {"per_device_train_batch_size": 1, "gradient_checkpointing": True}
    budget = budget_of("base", hardware, attention="eager", precision="fp32", **changes)
    assert budget.verdict != "fits"
    for text in budget.advice:
        follow, rest = parse_advice(text)
        assert ("seq_len" in follow) == ("changes the experiment" in rest)


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
    require_fit(budget_of("t4", plan_hardware("t4")))
    budget = budget_of("h100", plan_hardware("t4"))
    with pytest.raises(BudgetError) as error:
        require_fit(budget)
    assert "gradient_checkpointing=True" in error.value.fix
    assert "activations" in error.value.details
    assert f"{budget.total_bytes / GIB:.1f} GiB" in error.value.message


def test_without_a_gpu_there_is_no_capacity_and_no_context_line():
    budget = budget_of("smoke", cpu())
    assert (budget.verdict, budget.capacity_bytes, budget.advice) == ("no GPU", None, ())
    assert "context" not in [line.name for line in budget.lines]
    assert budget.total_bytes == budget.allocated_bytes
    require_fit(budget)


def test_lines_add_up_and_half_precision_keeps_fp32_weights():
    fp32 = budget_of("t4", plan_hardware("t4"), precision="fp32")
    half = budget_of("t4", plan_hardware("t4"))
    for budget in (fp32, half):
        assert sum(line.size_bytes for line in budget.lines) == budget.total_bytes
    size = {line.name: line.size_bytes for line in half.lines}
    assert size["weights"] == size["gradients"] == size["optimizer"] // 2
    assert size["cached casts"] and "cached casts" not in {line.name for line in fp32.lines}
    assert size["activations"] < {x.name: x.size_bytes for x in fp32.lines}["activations"]


def test_two_processes_add_nccl_outside_of_the_allocator():
    one, two = (budget_of("rtx6000ada", plan_hardware("rtx6000ada", n)) for n in (1, 2))
    assert one.allocated_bytes == two.allocated_bytes
    assert two.total_bytes - one.total_bytes == int(0.55 * GIB)


@pytest.mark.parametrize(
    "change", [{"gradient_checkpointing": True}, {"seq_len": 512}, {"attention": "sdpa"}]
)
def test_each_saving_saves(change):
    hardware = plan_hardware("h200")
    before = budget_of("l4", hardware, attention="eager")
    assert budget_of("l4", hardware, **({"attention": "eager"} | change)).total_bytes < (
        before.total_bytes
    )


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


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"n_embd": "x"}', '{"n_embd": null}'])
def test_an_unknown_shape_gives_a_labelled_budget_instead_of_a_guess(tmp_path, config):
    preset = folder_preset(tmp_path, config)
    hardware = plan_hardware("t4")
    budget = ledger_budget(preset, plan_batch(preset, hardware), hardware)
    assert budget.source == "ledger: shape unknown" and budget.verdict == "tight"
    found = compare(budget, GIB)
    assert found["predicted_bytes"] is None and found["error_percent"] is None
    require_fit(budget)


def test_a_hub_model_offline_gives_a_labelled_budget(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    preset = load_preset("clones", "t4", overrides={"model": "nobody/no-such-model"})
    assert find_shape(preset.settings) is None


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
    assert MemoryBudget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget
    with pytest.raises(ConfigError, match="lines is missing"):
        MemoryBudget.from_dict({})
    line = MemoryLine(name="<script>", size_bytes=1, note="")
    assert "<script>" not in replace(budget, lines=(line,))._repr_html_()
    assert "\n" not in repr(budget)


def test_a_plan_for_the_cpu_is_judged_without_a_gpu_even_if_one_is_there():
    hardware = plan_hardware("t4")
    preset = load_preset("clones", "smoke")
    plan = BatchPlan(**(split_batch(32, 16, 1).to_dict() | {"use_gpu": False}))
    assert ledger_budget(preset, plan, hardware).verdict == "no GPU"


def test_more_tokens_than_a_local_model_has_positions_are_refused(tmp_path):
    config = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 256}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert budget_of("smoke", cpu(), model=str(tmp_path), seq_len=256).lines
    with pytest.raises(ConfigError, match="set seq_len to 256 or less"):
        budget_of("smoke", cpu(), model=str(tmp_path), seq_len=257)
