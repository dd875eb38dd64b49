"""Promise: every preset of the fine-tuning loads, plans and fits its GPU with every adapter of the
study; the effective batch is 16 on every card; what the seed says is quoted, and refused where it
does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nbhelpers.budget.disk import needs, preflight
from nbhelpers.budget.memory import ledger_budget
from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.shapes import GEMMA_2_2B, PROJECTIONS, find_shape
from nbhelpers.budget.time import steps_of
from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.plan import plan_batch, split_batch
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import list_presets, load_preset, parameter_overrides

GPUS = sorted(read_yaml(configs_dir() / "gpus.yaml"))
SEEDS = [n for n in list_presets("finetune") if n.startswith("seed-")]
FITTED = [n for n in list_presets("finetune") if n not in (*SEEDS, "smoke")]
LARGE = ["a100-40gb", "a100-80gb", "h100", "rtx6000ada"]
ADAPTERS = {
    "base": {"method": "base"},
    "r8": {"lora_r": 8},
    "r16": {"lora_r": 16},
    "r32": {"lora_r": 32},
    "qlora-r16": {"method": "qlora", "lora_r": 16},
}
# Rows of the data set, less those held out for the loss and for generation.
ROWS = 18_612 - 200


def test_the_presets_are_those_that_the_documents_name():
    assert set(FITTED) == {"t4", "l4", *LARGE}
    assert set(SEEDS) == {"seed-t4", "seed-a100"}


# Every preset of every job


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_preset_of_every_job_loads_says_its_origin_and_plans(job):
    for name in list_presets(job):
        preset = load_preset(job, name)
        assert preset.about and repr(preset).startswith(f"Preset({job}/{name}: ")
        assert set(preset.provenance) == set(preset.settings.model_dump())
        assert f"Preset {job}/{name}" in preset._repr_html_()
        gpu = preset.gpu or "h100"
        hardware = plan_hardware(gpu, preset.num_target_gpus)
        chosen = load_preset(job, name, hardware=hardware)
        plan = plan_batch(chosen, hardware)
        assert plan.is_exact and plan.global_batch_size == chosen.settings.global_batch_size


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_preset_is_headed_by_what_where_how_and_what_to_expect(job):
    for path in sorted((configs_dir() / job).glob("*.yaml")):
        head = path.read_text(encoding="utf-8")
        for word in ("# Trains: ", "# Target: ", "# Expected time and score: "):
            assert word in head, path
        assert f"# Command: nbhelpers train {job} --preset {path.stem}\n" in head


# Fits


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
@pytest.mark.parametrize("name", FITTED)
def test_every_preset_fits_its_gpu_with_every_adapter_of_the_study(name, adapter):
    bare = load_preset("finetune", name)
    hardware = plan_hardware(bare.gpu, bare.num_target_gpus)
    preset = load_preset("finetune", name, hardware=hardware, overrides=ADAPTERS[adapter])
    assert preset.settings.adapter == adapter
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict == "fits" and not budget.advice
    if adapter == "r16":
        assert budget.total_bytes > 0.5 * budget.capacity_bytes, "the preset leaves the card idle"


@pytest.mark.parametrize("name", [n for n in FITTED if n != "t4"])
def test_no_larger_batch_would_fit_without_checkpointing(name):
    bare = load_preset("finetune", name)
    assert not bare.settings.gradient_checkpointing
    size = bare.settings.per_device_train_batch_size
    if size == bare.settings.global_batch_size:
        return
    hardware = plan_hardware(bare.gpu)
    more = {"per_device_train_batch_size": 2 * size}
    preset = load_preset("finetune", name, hardware=hardware, overrides=more)
    plan = plan_batch(preset, hardware)
    assert ledger_budget(preset, plan, hardware).verdict != "fits"
    # The simulation is closer: on an L4 twice the batch would just fit, a tenth not left free.
    budget = predict_memory(preset, plan, hardware)
    assert budget.verdict != "fits" or budget.total_bytes > 0.9 * budget.capacity_bytes


def test_a_t4_needs_checkpointing_for_the_seeds_four_samples():
    hardware = plan_hardware("t4")
    without = {"gradient_checkpointing": False}
    preset = load_preset("finetune", "t4", hardware=hardware, overrides=without)
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict == "does not fit"
    assert preset.settings.precision == "auto" and hardware.precision == "fp16"


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_auto_fits_on_every_gpu_that_we_know(gpu, count):
    hardware = plan_hardware(gpu, count)
    preset = load_preset("finetune", hardware=hardware)
    plan = plan_batch(preset, hardware)
    assert predict_memory(preset, plan, hardware).verdict == "fits"
    assert plan.global_batch_size == 16


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_preset_does_not_fit_its_card(name):
    bare = load_preset("finetune", name)
    hardware = plan_hardware(bare.gpu, bare.num_target_gpus)
    preset = load_preset("finetune", name, hardware=hardware)
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict == "does not fit" and budget.advice


def test_without_a_gpu_auto_is_smoke_and_a_seed_is_never_chosen():
    none = replace(plan_hardware("t4"), gpus=(), reason="no driver")
    assert load_preset("finetune", hardware=none).name == "smoke"
    assert load_preset("finetune", hardware=plan_hardware("t4")).name == "t4"
    assert load_preset("finetune", hardware=plan_hardware("a100-40gb")).name == "a100-40gb"


# The experiment


@pytest.mark.parametrize("name", list_presets("finetune"))
def test_the_effective_batch_is_16_everywhere_and_alpha_is_twice_the_rank(name):
    s = load_preset("finetune", name).settings
    assert s.global_batch_size == 16
    assert s.alpha == 2 * s.lora_r
    assert s.lora_target_modules == list(PROJECTIONS)
    assert (s.weight_decay, s.lora_r) == (0.01, 16)


def decisions(name: str) -> tuple[object, ...]:
    s = load_preset("finetune", name).settings
    steps = s.warmup_steps
    if steps is None:
        rows = ROWS - s.eval_samples
        steps = round(s.warmup_ratio * steps_of(s, rows))
    return (
        s.seq_len,
        s.learning_rate,
        steps,
        s.logging_steps,
        s.save_steps,
        s.eval_samples,
        s.max_new_tokens,
        s.epochs,
    )


@pytest.mark.parametrize("name", ["base", "t4", "l4", "seed-t4"])
def test_smaller_cards_take_the_seeds_decisions_for_a_t4(name):
    *rest, epochs = decisions(name)
    steps = rest.pop(2)
    assert (rest, epochs) == ([512, 2e-4, 50, 500, 100, 256], 3)
    assert abs(steps - 100) <= 5


@pytest.mark.parametrize("name", [*LARGE, "seed-a100"])
def test_larger_cards_take_the_seeds_decisions_for_an_a100_and_say_why(name):
    *rest, epochs = decisions(name)
    steps = rest.pop(2)
    assert (rest, epochs) == ([768, 2.5e-4, 25, 400, 200, 384], 3)
    assert abs(steps - 150) <= 5
    preset = load_preset("finetune", name)
    assert {"seq_len", "learning_rate"} <= preset.why.keys()
    if name in LARGE:
        assert "its argument for it is none" in preset.why["learning_rate"]


@pytest.mark.parametrize(("name", "size"), [("seed-t4", 4), ("seed-a100", 8)])
def test_the_seed_presets_are_quoted_and_unpacked(name, size):
    s = load_preset("finetune", name).settings
    assert s.per_device_train_batch_size == size
    assert (s.packing, s.padding, s.loss, s.precision) == (False, "fixed", "plain", "fp16")
    assert (s.attention, s.gradient_checkpointing, s.lora_alpha) == ("eager", False, 32.0)
    assert s.warmup_steps in (100, 150)


@pytest.mark.parametrize("name", FITTED)
def test_no_preset_trains_another_model_or_method_by_itself(name):
    s = load_preset("finetune", name).settings
    assert (s.model, s.method, s.adapter) == ("google/gemma-2-2b", "lora", "r16")
    assert (s.precision, s.attention, s.loss, s.packing) == ("auto", "auto", "auto", True)


def test_the_instruction_tuned_model_gets_its_chat_turns_and_nothing_else():
    plain = load_preset("finetune", "h100").settings.model_dump()
    other = load_preset("finetune", "h100", overrides={"model": "gemma-2-2b-it"}).settings
    changed = {name for name, value in other.model_dump().items() if plain[name] != value}
    assert changed == {"model", "template"}


@pytest.mark.parametrize("name", ["t4", "l4", "h100"])
def test_smollm2_fits_every_card(name):
    hardware = plan_hardware(name)
    preset = load_preset("finetune", name, hardware=hardware, overrides={"model": "smollm2"})
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert budget.verdict == "fits" and not preset.settings.gradient_checkpointing


def test_smollm2_on_a_cpu_takes_values_of_its_own():
    s = load_preset("finetune", "smoke", overrides={"model": "smollm2"}).settings
    assert (s.learning_rate, s.pretrain_steps, s.seq_len) == (2e-4, 0, 512)
    plan = split_batch(16, s.per_device_train_batch_size, 1)
    none = replace(plan_hardware("t4"), gpus=(), reason="no driver")
    preset = load_preset("finetune", "smoke", overrides={"model": "smollm2"}, hardware=none)
    assert predict_memory(preset, plan, none).total_bytes < 8 * 2**30


def test_a_batch_of_this_job_counts_samples():
    hardware = plan_hardware("t4")
    plan = plan_batch(load_preset("finetune", "t4", hardware=hardware), hardware)
    assert plan.words() == "4 samples x 4 micro-steps x 1 process = 16 per optimizer step"
    assert "samples that a process holds" in plan._repr_html_()
    old = {k: v for k, v in plan.to_dict().items() if k != "unit"}
    assert "4 pairs" in type(plan).from_dict(old).words()


def test_parameters_of_a_notebook_reach_the_preset():
    given = {"preset": "t4", "seq_len": 256, "epochs": 1, "max_train_samples": 100}
    name, overrides = parameter_overrides("finetune", given | {"evaluate": "none"})
    s = load_preset("finetune", name, overrides=overrides).settings
    assert (s.seq_len, s.epochs, s.max_train_samples, s.evaluate) == (256, 1, 100, "none")
    with pytest.raises(ConfigError, match="did you mean `lora_r`"):
        parameter_overrides("finetune", {"lora_rr": 8})


# Disk and main memory


def machine(ram_gb: float, *, gpu: str = "t4") -> Hardware:
    return replace(plan_hardware(gpu), is_planned=False, ram_available_bytes=int(ram_gb * 1e9))


def settings_of(name: str, **changes: object) -> object:
    return load_preset("finetune", name, overrides=changes).settings


def test_the_needs_are_those_of_the_files():
    found = needs(settings_of("t4"), GEMMA_2_2B, precision="fp16", use_gpu=True)
    assert found.download / 1e9 == pytest.approx(10.46, abs=0.005)
    assert found.merged / 1e9 == pytest.approx(5.23, abs=0.005)
    assert found.checkpoint == 12 * 20_766_720 + 40_000_000
    assert found.checkpoints == 4 * found.checkpoint
    tuned = needs(
        settings_of("t4", model="gemma-2-2b-it"), GEMMA_2_2B, precision="fp16", use_gpu=True
    )
    assert tuned.download / 1e9 == pytest.approx(5.23, abs=0.005)
    base = needs(settings_of("t4", method="base"), GEMMA_2_2B, precision="fp16", use_gpu=True)
    assert (base.checkpoints, base.merged) == (0, 0)
    for changes in ({"model": "smollm2"}, {"random_weights": True}):
        s = settings_of("t4", **changes)
        assert needs(s, find_shape(s), precision="fp16", use_gpu=True).download == 0


def test_free_colab_can_load_gemma_onto_its_gpu_and_not_into_its_main_memory():
    for precision in ("auto", "fp32"):
        settings = settings_of("t4", precision=precision)
        assert preflight(settings, GEMMA_2_2B, machine(11.5), 10**12) == []
    alone = replace(machine(11.5), gpus=(), reason="no driver")
    (problem,) = preflight(settings_of("t4"), GEMMA_2_2B, alone, 10**12)
    assert problem.startswith("11.5 GB of main memory are free, and loading google/gemma-2-2b")
    assert "in fp32 without a GPU needs 14.8 GB" in problem
    (little,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(3.0), 10**12)
    assert "onto the GPU needs 4.4 GB" in little


def test_a_full_disk_is_found_before_the_download():
    (problem,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 5 * 10**9)
    assert "5.0 GB free" in problem and "4 checkpoints of 0.29 GB" in problem
    assert "the weights of google/gemma-2-2b (10.5 GB) need 11.6 GB" in problem
    have = {"is_downloaded": True}
    assert preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 5 * 10**9, **have) == []
    (less,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 10**9, **have)
    assert "weights" not in less and "lower save_total_limit" in less


def test_the_hubs_cache_may_lie_on_another_disk():
    both = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 10**9, cache_free_bytes=3 * 10**9)
    assert len(both) == 2 and "HF_HOME" in both[1] and "weights" not in both[0]
    assert (
        preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 2 * 10**9, cache_free_bytes=10**11)
        == []
    )


def test_what_is_not_known_is_not_judged():
    assert preflight(settings_of("t4"), None, machine(1), 0) == []
    clones = load_preset("clones", "t4").settings
    assert preflight(clones, find_shape(clones), machine(1), 0) == []
    assert preflight(settings_of("t4"), GEMMA_2_2B, plan_hardware("t4"), 10**12) == []
