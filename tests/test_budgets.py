"""Promise: a kept budget answers only for its own run, and says with what it was made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_simulator import GIB, VERSIONS, synthetic

from nbhelpers.budget import predict, store
from nbhelpers.budget.memory import MemoryBudget, require_fit
from nbhelpers.budget.predict import predict_memory, simulate_budget
from nbhelpers.budget.store import (
    Point,
    budget_key,
    installed_versions,
    interpolate,
    version_note,
)
from nbhelpers.errors import BudgetError, HardwareError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset

A100 = "a100-40gb"


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache, no shipped tables, and a simulation whose sums are known."""
    asked: list[str] = []

    def simulated(preset: Any, plan: Any, hardware: Any, *, timeout_s: float) -> MemoryBudget:
        asked.append(f"{plan.per_device_train_batch_size} x {preset.settings.seq_len}")
        return synthetic(preset, plan)

    monkeypatch.setenv("NBHELPERS_BUDGETS", str(tmp_path))
    monkeypatch.setattr(store, "shipped", lambda job: {})
    monkeypatch.setattr(store, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(predict, "simulated", simulated)
    return asked


def run_of(job: str, name: str, gpu: str = A100, count: int = 1, **changes: Any) -> Any:
    hardware = plan_hardware(gpu, count)
    preset = load_preset(job, name, hardware=hardware, overrides=changes)
    return preset, plan_batch(preset, hardware), hardware


def key_of(job: str, name: str = "base", gpu: str = A100, count: int = 1, **changes: Any) -> Any:
    return budget_key(*run_of(job, name, gpu, count, **changes))


SAME = [
    ("clones", {"seed": 9, "learning_rate": 1e-4, "epochs": 9, "track": "wandb"}),
    ("clones", {"global_batch_size": 128}),  # four micro-steps or eight
    ("finetune", {"lora_alpha": 8.0, "data": "smoke", "lora_dropout": 0.1, "loss": "chunked"}),
    ("detector", {"target_fpr": 0.05, "augment_share": 0.1, "languages": ["python"]}),
]


@pytest.mark.parametrize(("job", "changes"), SAME)
def test_what_changes_no_tensor_does_not_change_the_key(job: str, changes: dict) -> None:
    assert key_of(job) == key_of(job, **changes)


OTHER = [
    ("clones", {"model": "codebert"}),
    ("clones", {"attention": "eager"}),
    ("clones", {"precision": "fp32"}),
    ("clones", {"max_eval_pairs": 7}),
    ("clones", {"per_device_train_batch_size": 64}),  # no gradients of an earlier micro-step
    ("finetune", {"lora_r": 8}),
    ("finetune", {"method": "qlora"}),
    ("finetune", {"max_train_samples": 10}),  # too short to be compiled
    ("finetune", {"eval_samples": 1}),
    ("detector", {"pooling": "first"}),
    ("detector", {"global_batch_size": 128}),  # the contrastive loss compares all of it
]


@pytest.mark.parametrize(("job", "changes"), OTHER)
def test_what_changes_a_tensor_changes_the_family(job: str, changes: dict) -> None:
    assert key_of(job).family != key_of(job, **changes).family


def test_the_key_names_card_batch_length_and_processes() -> None:
    key = key_of("clones", seq_len=256)
    assert (key.card, key.seq_len, key.batch) == (A100, 256, key_of("clones").batch)
    assert key.family == key_of("clones").family
    two, four = (key_of("clones", count=n, per_device_train_batch_size=8) for n in (2, 4))
    assert two.family != key.family and two == four  # all that is more is more of the same
    assert key_of("clones", gpu="t4").family != key.family  # fp16 instead of bf16


def test_a_changed_model_folder_is_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(sizes | {"n_positions": 512}))
    changes = {"model": str(folder), "data": "smoke", "seq_len": 128}
    first = key_of("clones", **changes)
    assert key_of("clones", **changes) == first
    (folder / "config.json").write_text(json.dumps(sizes | {"n_positions": 1024}))
    assert key_of("clones", **changes).family != first.family


def test_a_simulated_budget_is_kept_and_judged_for_the_card_that_asks(kept: list[str]) -> None:
    run = run_of("clones", "base", per_device_train_batch_size=8, seq_len=1024)
    assert predict_memory(*run).source == "estimate"
    made = simulate_budget(*run)
    assert made.verdict == "fits" and made.total_bytes == 23 * GIB
    assert predict_memory(*run) == made
    assert len(kept) == 1 and simulate_budget(*run) == made and len(kept) == 1
    smaller = tuple(replace(gpu, memory_total_bytes=20 * GIB) for gpu in run[2].gpus)
    assert predict_memory(*run[:2], replace(run[2], gpus=smaller)).verdict == "does not fit"
    assert predict_memory(*run_of("clones", "base", "h100", seq_len=1024)).source == "estimate"


def test_tight_is_less_than_ten_per_cent_above_what_is_reserved() -> None:
    run = run_of("clones", "base", per_device_train_batch_size=8, seq_len=1024)
    budget = synthetic(*run)  # 22 GiB reserved, 1 GiB of context
    for size, verdict in ((25.3, "fits"), (25.1, "tight"), (22.9, "does not fit")):
        card = replace(run[2].gpu, memory_total_bytes=int(size * GIB))
        judged = predict.judge(budget, run[0].settings, replace(run[2], gpus=(card,)))
        assert judged.verdict == verdict
    unsure = replace(budget, opaque=("odd",))
    assert predict.judge(unsure, run[0].settings, run[2]).verdict == "unknown"


@pytest.mark.parametrize("held_gib", [0.0, 2.0])
@pytest.mark.parametrize(("method", "factor"), [("lora", 1.10 * 1.15), ("qlora", 1.25 * 1.15)])
def test_without_reserved_bytes_adapters_are_judged_alike_on_free_and_on_used_cards(
    method: str, factor: float, held_gib: float
) -> None:
    run = run_of("finetune", "base", method=method)
    budget = replace(synthetic(*run), reserved_bytes=None)
    context = budget.total_bytes - budget.allocated_bytes
    needed = int(factor * budget.allocated_bytes + context + held_gib * GIB)
    for size, verdict in ((needed + 9, "fits"), (needed - 9, "tight")):
        gpu = replace(run[2].gpu, memory_total_bytes=size)
        judged = predict.judge(
            budget, run[0].settings, replace(run[2], gpus=(gpu,)), held_bytes=int(held_gib * GIB)
        )
        assert judged.verdict == verdict


def test_beside_what_cannot_be_simulated_stands_what_the_formulas_say() -> None:
    run = run_of("clones", "base", seed=16)
    assert simulate_budget(*run).verdict == "unknown"
    assert predict_memory(*run).notes[-1].endswith("estimate by formulas is 4.3 GiB: fits")


def test_another_version_is_labelled_and_the_right_one_is_preferred(
    monkeypatch: pytest.MonkeyPatch, kept: list[str]
) -> None:
    run = run_of("clones", "base")
    simulate_budget(*run)
    here = VERSIONS | {"torch": "2.13.0+cpu", "transformers": "5.24.0"}
    monkeypatch.setattr(store, "installed_versions", lambda: here)
    label = "simulated with torch 2.11, transformers 5.17; your 2.13, 5.24 may need more or less"
    assert predict_memory(*run).notes[0] == label
    assert not predict.is_exact(predict_memory(*run), "clones")
    monkeypatch.setattr(
        predict, "simulated", lambda *a, **k: replace(synthetic(*run), versions=here)
    )
    simulate_budget(*run)
    assert predict_memory(*run).notes == () and predict_memory(*run).versions == here


def test_without_the_libraries_the_label_says_so() -> None:
    note = version_note("clones", {"torch": "2.11.0"}, {})
    assert note == "simulated with torch 2.11; none of them is installed here"
    assert version_note("clones", VERSIONS, VERSIONS | {"peft": "9"}) == ""  # clones use no peft
    assert {"torch", "transformers"} <= installed_versions().keys()


def test_a_damaged_cache_is_as_good_as_none(tmp_path: Path) -> None:
    run = run_of("clones", "base")
    simulate_budget(*run)
    (file,) = (tmp_path / "clones").glob("*.json")
    for text in ("{", "[]", '{"schema": 1}'):
        file.write_text(text)
        assert predict_memory(*run).source == "estimate"


def test_between_kept_batches_and_lengths_it_is_interpolated_and_beyond_them_not() -> None:
    for batch in (4, 16):
        for seq_len in (128, 512):
            simulate_budget(
                *run_of("clones", "base", per_device_train_batch_size=batch, seq_len=seq_len)
            )
    inside = run_of("clones", "base", per_device_train_batch_size=8, seq_len=256)
    budget = predict_memory(*inside)
    assert budget.source == "interpolated"
    assert "4 x 128, 4 x 512, 16 x 128, 16 x 512" in budget.notes[0]
    assert budget.total_bytes == synthetic(*inside[:2]).total_bytes  # it is linear in both
    for changes in ({"seq_len": 640}, {"attention": "eager"}, {"per_device_train_batch_size": 2}):
        given = {"per_device_train_batch_size": 8, "seq_len": 256} | changes
        assert predict_memory(*run_of("clones", "base", **given)).source == "estimate"


def test_the_nearest_kept_budgets_are_taken() -> None:
    budget = synthetic(*run_of("clones", "base")[:2])
    wrong = replace(budget, lines=(replace(budget.lines[0], size_bytes=99 * GIB),))
    points = [Point(1, 128, wrong, True), Point(9, 128, wrong, True)]
    points += [Point(4, 128, budget, True), Point(6, 128, budget, True)]
    assert interpolate(points, 5, 128).total_bytes == budget.total_bytes
    assert interpolate(points, 5, 256) is None and interpolate([], 5, 128) is None


def hopeless(**changes: Any) -> Any:
    """A run that needs 21 GiB on a card of 15."""
    return run_of("finetune", "seed-a100", "t4", seq_len=512, **changes)


CHAIN = (
    "fused loss (loss='chunked'): 21.0 to 14.0 GiB; checkpointing (gradient_checkpointing=True): "
    "to 8.0 GiB, fits; then batch 16 fits too (per_device_train_batch_size=16, 11.0 GiB) (same "
    "global batch of 16)"
)


def test_advice_is_a_chain_of_simulations_and_what_helps_most_comes_first(kept: list[str]) -> None:
    budget = simulate_budget(*hopeless())
    assert budget.verdict == "does not fit" and budget.advice == (CHAIN,)
    assert kept == ["8 x 512"] * 4 + ["16 x 512"]  # as it is, each alone, both, the larger batch
    assert predict_memory(*hopeless()) == budget and len(kept) == 5  # all of it is known now
    with pytest.raises(BudgetError, match=r"21\.0 GiB") as error:
        require_fit(budget)
    assert CHAIN in error.value.fix


def test_advice_that_was_not_simulated_is_an_estimate_and_says_so(kept: list[str]) -> None:
    simulate_budget(*hopeless(), with_advice=False)
    advice = predict_memory(*hopeless()).advice
    assert len(kept) == 1 and advice
    assert all(text.endswith("; estimate)") for text in advice)


def test_where_savings_do_not_suffice_the_batch_shrinks_before_the_experiment_changes() -> None:
    saving: dict[str, Any] = {"loss": "auto", "gradient_checkpointing": True}
    assert simulate_budget(*hopeless(**saving)).verdict == "fits"
    run = run_of("finetune", "seed-a100", "t4", seq_len=4096, **saving)
    (text,) = simulate_budget(*run).advice
    words = "(per_device_train_batch_size=2): 29.0 to 11.0 GiB, fits (same global batch of 16)"
    assert text == f"smaller batch {words}"
    (text,) = simulate_budget(*run_of("finetune", "seed-a100", "t4", seq_len=8192, lora_r=8)).advice
    assert "per_device_train_batch_size=1" in text and "changes the experiment" not in text
    huge = run_of("clones", "seed-2x-rtx6000ada", "t4", 2, per_device_eval_batch_size=1)
    (text,) = simulate_budget(*huge).advice
    assert text.startswith("checkpointing") and "same global batch of 64" in text


def test_where_scoring_needs_most_fewer_rows_are_scored_at_once() -> None:
    given = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 32, "seed": 17}
    budget = simulate_budget(*run_of("clones", "base", "t4", **given))
    assert budget.verdict == "does not fit"  # 4 + 1 + 32 GiB
    (text,) = budget.advice
    assert text == (
        "scoring fewer rows at once (per_device_eval_batch_size=8): 37.0 to 13.0 GiB, fits; then "
        "batch 2 fits too (per_device_train_batch_size=2, 13.0 GiB) (same global batch of 64)"
    )


def test_without_a_gpu_there_is_nothing_to_simulate() -> None:
    none = Hardware.from_dict(plan_hardware("t4").to_dict() | {"gpus": [], "reason": "none"})
    preset = load_preset("clones", "smoke", hardware=none)
    plan = plan_batch(preset, none)
    assert predict_memory(preset, plan, none).verdict == "no GPU"
    with pytest.raises(HardwareError, match="no GPU"):
        simulate_budget(preset, plan, none)


def test_a_budget_of_a_table_is_read_with_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("clones", "base")
    key, budget = budget_key(*run), synthetic(*run[:2])
    plain = store.packed(budget)
    plain["lines"] = [[i, size, 4] for i, (_, size, _) in enumerate(plain["lines"])]
    plain["phases"] = []
    facts = {"batch": key.batch, "seq_len": key.seq_len, "budget": plain}
    table = {
        "versions": VERSIONS,
        "strings": [line.name for line in budget.lines] + ["told"],
        "cards": {A100: "sm80"},
        "budgets": {"sm80": {key.family: {key.name: facts}}},
    }
    monkeypatch.setattr(store, "shipped", lambda job: table)
    assert predict_memory(*run).lines == budget.lines
    assert predict_memory(*run_of("clones", "base", gpu="h100")).source == "estimate"
