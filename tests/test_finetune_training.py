"""Promise: how a step is split and laid out changes nothing that is learned, and guards hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import finetune_probe as probe
import numpy as np
import pytest
import torch
from causal_tiny import tiny_table
from ranks import in_ranks

from nbhelpers.data.instructions import Sample
from nbhelpers.errors import NonFinite
from nbhelpers.jobs.finetune_task import AdapterTask, prepare
from nbhelpers.jobs.models.causal_batches import make_batch, supervised, tokenise_samples
from nbhelpers.jobs.models.causal_graphs import GraphedSteps
from nbhelpers.jobs.schedule import epoch_windows, learning_rate_at
from nbhelpers.plan import split_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]
# Rows of one micro-step: 1x8x1, 1x4x2 and 1x2x4; with 17 samples the last step has a single one.
LAYOUTS: dict[str, dict[str, Any]] = {
    "1x4x2 packed": {"per_device_train_batch_size": 4},
    "1x2x4 packed, plain loss": {"per_device_train_batch_size": 2, "loss": "plain"},
    "1x8x1 padded": {"packing": False},
    "1x2x4 padded": {"per_device_train_batch_size": 2, "packing": False},
    "1x4x2 fixed, plain loss": {
        "per_device_train_batch_size": 4,
        "packing": False,
        "padding": "fixed",
        "loss": "plain",
    },
    "1x4x2 graphed": {"per_device_train_batch_size": 4, "graphed": True},
    "1x2x4 graphed, padded": {
        "per_device_train_batch_size": 2,
        "graphed": True,
        "packing": False,
    },
    "1x4x2 checkpointed": {"per_device_train_batch_size": 4, "gradient_checkpointing": True},
}
TWO: dict[str, dict[str, Any]] = {
    "2x4x1 packed": {"per_device_train_batch_size": 4},
    "2x2x2 padded, plain loss": {
        "per_device_train_batch_size": 2,
        "packing": False,
        "loss": "plain",
    },
    "2x1x4 checkpointed": {"per_device_train_batch_size": 1, "gradient_checkpointing": True},
    "2x2x2 graphed": {"per_device_train_batch_size": 2, "graphed": True},
}
PROMPTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14", "w20 w21", "w30"]
LIMIT = 1e-5


def distance(a: dict, b: dict) -> float:
    """Largest norm of the difference over all tensors."""
    assert a.keys() == b.keys()
    return max(float(np.linalg.norm(np.asarray(a[k]) - np.asarray(b[k]))) for k in a)


def losses(found: Any) -> list[float]:
    history = found.state.history if hasattr(found, "state") else found["state"]["history"]
    return [line["loss"] for line in history]


@pytest.fixture(scope="module")
def whole() -> probe.Probed:
    """One micro-step per optimizer step: the whole global batch at once."""
    return probe.train()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes find, for each of `TWO`; and their answers."""
    out = tmp_path_factory.mktemp("two") / "out.json"
    in_ranks(2, lambda: probe.main([{"prompts": PROMPTS}, *TWO.values()], out))
    answers, *found = json.loads(out.read_text())
    return {"answers": answers} | dict(zip(TWO, found, strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_split_and_layout_gives_the_same_adapters(name: str, whole: probe.Probed):
    found = probe.train(**LAYOUTS[name])
    assert distance(whole.gradients, found.gradients) <= LIMIT
    assert distance(whole.weights, found.weights) <= LIMIT
    assert losses(found) == pytest.approx(losses(whole), abs=LIMIT)
    assert found.state.examples == whole.state.examples == 2 * probe.SAMPLES
    assert found.state.useful_tokens == whole.state.useful_tokens
    assert found.trainer.task.forward.checkpointing == ("checkpointed" in name)
    moved = [np.linalg.norm(whole.weights[k] - whole.first[k].numpy()) for k in whole.weights]
    assert min(moved) > 100 * LIMIT, "too little was learned to tell a difference"


def test_a_shape_that_cannot_be_captured_is_launched_singly(whole, monkeypatch):
    """In the middle of an optimizer step, whose first micro-steps were replayed, or at its end."""
    capture, shapes = GraphedSteps._capture, []

    def capture_one(self: Any, arrays: Any) -> Any:
        shapes.append(arrays[0].shape)
        if len(shapes) > 1:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
        return capture(self, arrays)

    monkeypatch.setattr(GraphedSteps, "_capture", capture_one)
    changes = {"per_device_train_batch_size": 2, "packing": False, "graphed": True}
    found = probe.train(**changes)
    assert distance(whole.weights, found.weights) <= LIMIT
    assert len(shapes) == 2 and not found.trainer.task.graphs.captures


@pytest.mark.parametrize("name", TWO)
def test_two_processes_learn_what_one_learns(name: str, two: dict, whole: probe.Probed):
    found = two[name]
    assert distance(whole.weights, found["weights"]) <= LIMIT
    assert losses(found) == pytest.approx(losses(whole), abs=LIMIT)
    assert found["state"]["examples"] == whole.state.examples
    assert found["state"]["useful_tokens"] == whole.state.useful_tokens
    assert found["rates"] == whole.rates
    # Rank 0 saw its half of each step: a part of what one process sees.
    for mine, all_of_it in zip(found["seen"], whole.seen, strict=True):
        assert len(mine) == math.ceil(len(all_of_it) / 2) and set(mine) <= set(all_of_it)


def test_two_processes_answer_as_one_and_in_order(two: dict):
    assert two["answers"] == probe.answers(PROMPTS)
    assert len({answer[0] for answer in two["answers"]}) > 1


def by_hand(given: Any, *, optimizer: str) -> dict[str, Any]:
    """Train in plain PyTorch, one sample at a time, by the published model and its own loss."""
    model, table = probe.adapted(given), tiny_table(probe.SAMPLES, longest=given.seq_len)
    trained = [p for p in model.model.parameters() if p.requires_grad]
    if optimizer == "sgd":
        step = torch.optim.SGD(trained, lr=1.0)
    else:
        step = torch.optim.AdamW(trained, lr=1.0, weight_decay=given.weight_decay, eps=1e-8)
    found: dict[str, Any] = {"losses": [], "rates": [], "norms": []}
    per_epoch = math.ceil(probe.SAMPLES / given.global_batch_size)
    total = per_epoch * given.epochs
    warm = given.warmup_steps
    warm = math.ceil(given.warmup_ratio * total) if warm is None else warm
    for epoch in range(given.epochs):
        for window in epoch_windows(probe.SAMPLES, 8, seed=given.seed, epoch=epoch):
            done = len(found["losses"])
            rate = (done + 1) / warm if done < warm else (total - done) / (total - warm)
            step.param_groups[0]["lr"] = given.learning_rate * rate
            tokens = sum(int(table.supervised[row]) for row in window)
            mean = 0.0
            for row in window:
                ids = torch.from_numpy(table.ids[row])[None]
                labels = torch.from_numpy(table.labels(row))[None]
                loss = model.model(input_ids=ids, labels=labels).loss  # the mean over this sample
                share = loss * int(table.supervised[row]) / tokens
                share.backward()
                mean += float(share.detach())
            found.setdefault(
                "gradients", probe.arrays(probe.trained_tensors(model.model, gradients=True))
            )
            found["norms"].append(
                float(torch.nn.utils.clip_grad_norm_(trained, given.max_grad_norm))
            )
            found["losses"].append(mean)
            found["rates"].append(given.learning_rate * rate)
            step.step()
            step.zero_grad()
    return found | {"weights": probe.arrays(probe.trained_tensors(model.model))}


@pytest.mark.parametrize(
    ("optimizer", "changes", "limit"),
    [
        ("sgd", {"max_grad_norm": 0.02}, LIMIT),
        ("sgd", {"warmup_steps": 3, "packing": False}, LIMIT),
        ("adamw", {"learning_rate": 0.01, "lora_target_modules": ["all-linear"]}, 1e-3),
    ],
    ids=["clipped, warm-up by ratio", "warm-up typed", "AdamW on all layers"],
)
def test_the_trainer_does_what_a_plain_loop_does(optimizer: str, changes: dict, limit: float):
    found = probe.train(optimizer=optimizer, per_device_train_batch_size=2, **changes)
    wanted = by_hand(probe.settings(**changes), optimizer=optimizer)
    assert distance(found.gradients, wanted["gradients"]) <= LIMIT
    assert losses(found) == pytest.approx(wanted["losses"], abs=LIMIT)
    assert found.rates == pytest.approx(wanted["rates"], rel=1e-12)
    assert [line["learning_rate"] for line in found.state.history] == found.rates
    told = [line["grad_norm"] for line in found.state.history]
    assert told == pytest.approx(wanted["norms"], rel=1e-3)
    assert distance(found.weights, wanted["weights"]) <= limit
    if "max_grad_norm" in changes:
        assert min(wanted["norms"]) > changes["max_grad_norm"], "nothing was clipped"


def batches(
    *, per_device: int = 8, world: int = 1, epoch: int = 0, **changes: Any
) -> list[np.ndarray]:
    given = probe.settings(per_device_train_batch_size=per_device, **changes)
    task = AdapterTask(
        given,
        split_batch(given.global_batch_size, per_device, world),
        {"train": tiny_table(probe.SAMPLES)},
        probe.adapted(given),
        SimpleNamespace(process_index=0),
        kernel="eager",
        precision="fp32",
    )
    return task.global_batches(epoch)


@pytest.mark.parametrize(("warmup", "total"), [(7, 50), (14, 43), (0, 10), (10, 10), (99, 10)])
def test_typed_warm_up_steps_are_counted_exactly(warmup: int, total: int):
    """7 of 50 as a share, and back, gives 8 in floating point."""
    how = {"peak": 0.5, "schedule": "linear", "warmup_ratio": 0.2, "warmup_steps": warmup}
    rates = [learning_rate_at(step, total, **how) for step in range(total)]
    expected = min(warmup, total)
    rising = [
        rate for step, rate in enumerate(rates) if rate == 0.5 * (step + 1) / max(1, expected)
    ]
    assert len(rising) == expected or (expected == 0 and rates[0] == 0.5)
    if expected < total:
        assert rates[expected] == 0.5


def test_the_samples_of_a_step_follow_seed_epoch_and_global_batch_alone(whole: probe.Probed):
    plain = [sorted(step) for step in whole.seen]
    for changes in (
        {"per_device_train_batch_size": 2, "packing": False},
        {"lora_r": 8, "lora_target_modules": ["all-linear"], "learning_rate": 0.1},
        {"method": "qlora"},
    ):
        found = probe.train(**changes)
        assert [sorted(step) for step in found.seen] == plain, changes
        assert found.state.useful_tokens == whole.state.useful_tokens
    for steps in (plain[:3], plain[3:]):
        assert sorted(row for step in steps for row in step) == list(range(probe.SAMPLES))
    assert plain[:3] != plain[3:]


def test_another_seed_or_global_batch_gives_another_order():
    def order(**changes: Any) -> list[list[int]]:
        return [sorted(rows.tolist()) for rows in batches(**changes)]

    assert order() == order(per_device=2, world=2) == order(lora_r=32, packing=False)
    assert order() != order(seed=4)
    assert order() != order(global_batch_size=4, per_device=4)


def test_training_moves_every_adapter_and_leaves_the_base_alone(whole: probe.Probed):
    found = probe.train(warm=False)
    second = [values for name, values in found.weights.items() if "lora_B" in name]
    assert len(second) == 6 and all(np.abs(values).max() > 0 for values in second)
    assert all(not bool(t.any()) for name, t in found.first.items() if "lora_B" in name)
    fresh = probe.adapted(probe.settings()).bare.state_dict()
    for name, tensor in found.model.bare.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(tensor, fresh[name]), name


def test_adapters_begin_by_the_seed():
    def first(**changes: Any) -> list[torch.Tensor]:
        torch.manual_seed(int(torch.randint(1000, ())))  # whatever was drawn before
        model = probe.adapted(probe.settings(**changes), warm=False).model
        return [t for name, t in probe.trained_tensors(model).items() if "lora_A" in name]

    def same(a: list, b: list) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert same(first(), first())
    assert same(first(), first(method="qlora"))
    assert not same(first(), first(seed=4))


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_trainer_leaves_adapters_in_fp32_as_they_were_drawn(method: str):
    """A gradient scaler cannot work on rounded ones."""
    found = probe.train(method=method, epochs=1, samples=8)
    wanted = probe.trained_tensors(probe.adapted(probe.settings(method=method)).model)
    assert all(tensor.dtype == torch.float32 for tensor in found.first.values())
    assert all(torch.equal(found.first[name], tensor) for name, tensor in wanted.items())
    if method == "qlora":
        kinds = {type(m).__name__ for m in found.model.bare.modules()}
        assert "Linear4bit" in kinds


def test_a_weight_that_is_not_finite_stops_the_run_before_a_checkpoint():
    def poison(found: probe.Probed) -> None:
        if len(found.seen) == 2:
            next(p for p in found.model.model.parameters() if p.requires_grad).data[0, 0] = math.nan

    with pytest.raises(NonFinite, match=r"step 3 \(epoch 1\) is not finite.*norm nan") as error:
        probe.train(each_step=poison)
    assert "learning_rate" in error.value.fix and "train samples" in error.value.details


def test_no_checkpoint_is_written_of_weights_that_are_not_finite():
    kept: list[Any] = []

    def poison(found: probe.Probed, accelerator: Any) -> None:
        found.model.bare.model.embed_tokens.weight.data[5:] = math.nan
        kept.append(found)

    with pytest.raises(NonFinite, match="optimizer step 1"):
        probe.train(before=poison, save_steps=1)
    assert kept[0].saved == [] and kept[0].state.step == 0


def test_a_first_token_is_never_learned():
    """Nothing comes before it; to count it among the supervised would shift every mean."""
    tokenizer = probe.tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None  # as a model without a start token
    tokenizer.bos_token = None
    samples = [Sample("1", "", "w5 w6"), Sample("2", "w7 w8", "w9")]
    table = tokenise_samples(samples, tokenizer, seq_len=16, template="plain")
    assert [ids.tolist() for ids in table.ids] == [[5, 6, 2], [7, 8, 9, 2]]
    assert [table.labels(row).tolist() for row in (0, 1)] == [[-100, 6, 2], [-100, -100, 9, 2]]
    for packed in (True, False):
        batch = make_batch(table, np.arange(2), pad_id=0, packed=packed)
        assert len(supervised(batch.labels)[0]) == int(table.supervised.sum()) == 4


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Accelerate's state is one for the process."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_state")
def test_a_step_that_fp16_skips_is_counted_and_changes_no_weight():
    """With fp16's autocast and its scaler, which a CPU has as well; the scale is too large."""

    def use_fp16(found: probe.Probed, accelerator: Any) -> None:
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
        accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"

    found = probe.train(before=use_fp16, max_skipped_steps=8, epochs=4)
    applied = [math.isfinite(line["grad_norm"]) for line in found.state.history]
    assert 0 < found.state.skipped_steps == applied.count(False) < len(applied) == 12
    assert all(np.isfinite(values).all() for values in found.weights.values())
    assert found.trainer.accelerator.scaler.get_scale() == 2.0 ** (18 - found.state.skipped_steps)


@pytest.mark.usefixtures("fresh_state")
def test_fp16_begins_with_a_scale_at_which_no_step_is_skipped(monkeypatch: pytest.MonkeyPatch):
    given = probe.settings()
    accelerator = SimpleNamespace(scaler=torch.amp.GradScaler("cpu"))
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    prepare(probe.adapted(given), given, accelerator)
    assert accelerator.scaler.get_scale() == 2.0**10
