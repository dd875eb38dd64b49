"""Promise: the figures of a fine-tuning are what their names say, also after a resume."""

from __future__ import annotations

import ast
import io
import json
import math
import re
import time
import tokenize
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finetune_probe as probe
import pytest
import sacrebleu
import torch
from causal_tiny import tiny_base, tiny_table
from contexts import make_context
from finetune_on_disk import generations, result, write_finetune
from study_on_disk import write_study

from nbhelpers.budget.time_model import training_rows
from nbhelpers.common.result_files import Result
from nbhelpers.data.coding_tasks import CodingTask, solution
from nbhelpers.errors import Stopped
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.jobs.equivalence import prove
from nbhelpers.jobs.finetune_evaluate import _throughput
from nbhelpers.jobs.finetune_task import AdapterTask
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.measure import Clock, GpuWatch, told_energy
from nbhelpers.jobs.models import causal_forward
from nbhelpers.metrics.generation import score_generations
from nbhelpers.presets.loading import load_preset
from nbhelpers.reports.against_base import unlike
from nbhelpers.reports.study import doubts
from nbhelpers.runs.events import phase_seconds, read_events
from nbhelpers.runs.run import write_json
from nbhelpers.runs.studies import open_study
from tests.job_runs import STEPS, prepare, work_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]


def phase(t: float, name: str) -> dict[str, Any]:
    return {"t": t, "type": "phase", "rank": 0, "name": name}


def power(t: float, *watts: float | None) -> dict[str, Any]:
    return {"t": t, "type": "gpu", "rank": 0, "gpus": [{"power_w": each} for each in watts]}


TWO_ATTEMPTS = [
    phase(0, "check"),
    phase(2, "train"),
    power(4, 100, 200),
    power(6, 100, 200),
    {"t": 7, "type": "step", "rank": 0},
    {"t": 500, "type": "step", "rank": 1},
    phase(1000, "check"),
    phase(1001, "train"),
    power(1003, 50, 50),
    power(1005, 50, None),
    phase(1008, "evaluate"),
    power(1010, 900, 900),
    {"t": 1011, "type": "end", "rank": 0},
]


def test_the_time_between_attempts_belongs_to_no_phase():
    found = phase_seconds(TWO_ATTEMPTS)
    assert found == {"check": 3.0, "train": 12.0, "evaluate": 3.0}
    clock = Clock(lambda *a, **k: None, earlier=found, began=time.perf_counter() - 5)
    clock.phase("check")
    told = clock.result()
    assert told["train_s"] == 12.0 and 5 <= told["start_s"] < 6 and 3 <= told["check_s"] < 4
    assert told["total_s"] == pytest.approx(sum(v for k, v in told.items() if k != "total_s"))


def test_energy_counts_the_training_of_earlier_attempts_and_nothing_else():
    """Readings without a power, and those of the evaluation, add neither joules nor seconds."""
    assert told_energy(TWO_ATTEMPTS) == (300 * 4 + 100 * 2, 6)
    watch = GpuWatch([], lambda *a, **k: None)
    assert watch.energy() is None
    watch.watts, watch._lasted_s = [400.0, 200.0], 10.0
    assert watch.energy() == {"joules": 3000.0, "watts_mean": 300.0}
    assert watch.energy((1400.0, 6.0)) == {"joules": 4400.0, "watts_mean": 275.0}


def test_a_resumed_run_tells_the_time_of_all_its_attempts(tmp_path: Path):
    before = torch.get_float32_matmul_precision()
    run = prepare("finetune", tmp_path / "runs")

    def at_step_2() -> bool:
        return any(e["type"] == "step" and e["step"] >= 2 for e in run.events())

    with pytest.raises(Stopped):
        work_here(run, at_step_2)
    first = phase_seconds(read_events(run.events_path(0)))
    time.sleep(1.5)  # the machine is away
    timing = work_here(run)["timing"]
    torch.set_float32_matmul_precision(before)
    both = phase_seconds(read_events(run.events_path(0)))
    found = json.loads(run.result_path.read_text())
    assert found["training"]["resumed_from"] < STEPS["finetune"]
    for name in ("data", "model", "train"):
        assert first[name] < timing[f"{name}_s"] == pytest.approx(both[name], abs=0.2)
    assert timing["total_s"] == pytest.approx(sum(both.values()), abs=0.5)
    events = read_events(run.events_path(0))
    assert timing["total_s"] < events[-1]["t"] - events[0]["t"] - 1
    state = found["throughput"]
    rows = state["samples_per_update"] * STEPS["finetune"]
    assert rows == pytest.approx(2 * 20)  # nothing counted twice


def test_the_time_of_a_step_holds_the_making_of_its_batches(monkeypatch: pytest.MonkeyPatch):
    real, nap_s = AdapterTask.host_batch, 0.05

    def slow(self: AdapterTask, rows: Any) -> Any:
        time.sleep(nap_s)
        return real(self, rows)

    monkeypatch.setattr(AdapterTask, "host_batch", slow)
    found = probe.train(per_device_train_batch_size=4)
    micro_steps = 2 * (2 + 2 + 1)  # 17 samples, 8 at a time, 4 per micro-step
    assert found.state.train_s >= 0.99 * nap_s * micro_steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_kernel_that_drops_the_cap_is_found_out_however_small_the_scores_are(
    scale: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    base = tiny_base(scale=scale, dtype=dtype)
    adapted = SimpleNamespace(base=base, model=base.model, bare=base.model)
    real = causal_forward.flex_attention_forward

    def proof() -> dict[str, Any]:
        return prove(adapted, tiny_table(), kernel="flex", dtype=dtype, packed=True)

    good = proof()
    assert good["passed"] and good["from_capped"] < good["from_uncapped"] / 5
    monkeypatch.setattr(
        causal_forward,
        "flex_attention_forward",
        lambda *args, softcap=None, **options: real(*args, softcap=None, **options),
    )
    found = proof()
    assert not found["passed"] and found["from_uncapped"] < found["from_capped"] / 5
    if scale == 1.0:  # hidden states alone would have let it pass
        assert found["relative_error"] <= found["limit"]
    # The model is as it was: no hook and its own cap.
    attention = base.model.model.layers[0].self_attn
    assert attention.attn_logit_softcapping == base.config.attn_logit_softcapping
    assert not attention.q_proj._forward_hooks and not attention.o_proj._forward_pre_hooks


def test_a_model_without_a_cap_is_not_asked_for_one():
    base = tiny_base()
    base.model.config.attn_logit_softcapping = None
    for layer in base.model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    adapted = SimpleNamespace(base=base, model=base.model, bare=base.model)
    found = prove(adapted, tiny_table(), kernel="flex", dtype=torch.float32, packed=True)
    assert found["passed"] and "from_capped" not in found


TASK = CodingTask(id="t", prompt="", entry_point="f", tests="", setup="", reference="")
GOOD = "def f(x):\n    return g(x)\n"
HELPER = "def g(x):\n    return sum(x)\n"


@pytest.mark.parametrize(
    ("blocks", "wanted"),
    [
        (["def other(x):\n    return x\n", GOOD.replace("g(x)", "sum(x)")], [1, 2]),
        ([HELPER, GOOD], [1, 2, 3]),
        (["def broken(:\n", GOOD.replace("g(x)", "sum(x)"), "print(f([1]))\n"], [1, 2]),
        ([GOOD.replace("g(x)", "sum(x)"), "def f(x):\n    return 0\n"], [1, 2]),
    ],
    ids=["another function first", "a helper first", "a broken block first", "two versions"],
)
def test_the_block_with_the_function_that_is_asked_for_is_run(blocks: list[str], wanted: list[int]):
    answer = "First:\n" + "\nThen:\n".join(f"```python\n{block}```\n" for block in blocks)
    space: dict[str, Any] = {}
    exec(solution(TASK, answer), space)
    assert space["f"](wanted) == sum(wanted)


def test_mfu_is_told_in_half_precision_only():
    """The peak that is known is that of bf16 or fp16: fp32 has another one."""
    state = TrainState(step=2, useful_tokens=1000, padded_tokens=1250, examples=32, train_s=2.0)
    adapted = SimpleNamespace(base=SimpleNamespace(facts={"parameters": 10**9}))

    def told(precision: str, use_gpu: bool = True) -> dict[str, Any]:
        plan = SimpleNamespace(world_size=2, use_gpu=use_gpu)
        hardware = plan_hardware("h100", 2)
        context = make_context(
            plan=plan, precision=precision, facts={"hardware": hardware.to_dict()}
        )
        return _throughput(context, adapted, SimpleNamespace(state=state))

    found = told("bf16")
    peak = known_gpus()["h100"].bf16_tflops * 1e12
    assert found["mfu_4n"] == pytest.approx(4 * 1e9 * 500 / (2 * peak))
    assert found["useful_tokens_per_s"] == 500 and found["useful_share"] == 0.8
    assert found["samples_per_update"] == 16 and found["tokens_per_update"] == 500
    assert told("fp32")["mfu_4n"] is None and told("bf16", use_gpu=False)["mfu_4n"] is None


def test_a_base_that_no_seed_made_serves_every_seed():
    ours, base = result("r16"), result("base")
    base["seed"] = ours["seed"] + 1
    for model, is_random, is_same in (("smoke", False, True), ("smoke", True, True)):
        for each in (ours, base):
            each["settings"]["model"] = model
            each["model"]["random_weights"] = is_random
        assert (unlike(*map(Result.model_validate, (ours, base))) == "") is is_same
    for each in (ours, base):
        each["settings"]["model"] = "gemma-2-2b"
    assert "rows of another seed" in unlike(*map(Result.model_validate, (ours, base)))
    base["seed"] = ours["seed"]
    assert unlike(*map(Result.model_validate, (ours, base))) == ""


def test_a_study_says_which_runs_answer_on_a_base_in_4_bits(tmp_path: Path):
    good = {"base": 0.3, "r16": 0.8, "qlora-r16": 0.8}
    study = write_study(tmp_path, "base,r16,qlora-r16", good=good, samples=12)
    assert not any("4 bits" in said for said in doubts(study))
    for row in study.rows:
        data = json.loads(row.run.result_path.read_text())
        for scores in data["scores"].values():
            scores["decoding"]["quantised"] = row.name == "qlora-r16"
        write_json(row.run.result_path, data)
    found = doubts(open_study(study.path))
    assert any(said.startswith("qlora-r16: trained and evaluated on") for said in found)


def test_a_report_says_that_a_quantised_run_is_compared_with_a_base_that_is_not(tmp_path: Path):
    from nbhelpers.reports.writing import report

    rows = generations()
    for name in ("base", "qlora-r16"):
        data = result(name)
        data["model"]["quantised"] = name != "base"
        write_finetune(tmp_path / name, data=data, rows=rows)
    said = {n: report(tmp_path / n, show=False).text for n in ("base", "qlora-r16")}
    assert "base in 4 bits" in said["qlora-r16"] and "4 bits" not in said["base"]


@pytest.mark.parametrize(
    ("preset", "wanted"), [("t4", 100), ("l4", 100), ("h100", 150), ("a100-40gb", 150)]
)
def test_the_warm_up_of_a_preset_is_the_seeds(preset: str, wanted: int):
    s = load_preset("finetune", preset).settings
    steps = s.epochs * math.ceil(training_rows(s) / s.global_batch_size)
    assert math.ceil(s.warmup_ratio * steps) == wanted


def published_tokens(code: str) -> str:
    """Cut code with Python's own tokenizer; strings and comments into words and signs."""
    found = []
    marks = {tokenize.NEWLINE: "<line>", tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>"}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        text = token.string
        if token.type in marks:
            found.append(marks[token.type])
        elif token.type == tokenize.STRING:
            opening = re.match(r"[a-zA-Z]*(\"\"\"|'''|\"|')", text)
            body = text[opening.end() : -len(opening[1])]
            found += [opening[0], *re.findall(r"\w+|[^\w\s]", body), opening[1]]
        elif token.type == tokenize.COMMENT:
            found += re.findall(r"\w+|[^\w\s]", text)
        elif token.type not in (tokenize.NL, tokenize.ENDMARKER):
            found.append(text)
    return " ".join(found)


def test_scores_are_those_of_an_independent_computation():
    references = [
        "def f(x):\n    # twice\n    return 2 * x\n",
        "for i in range(3):\n    print('a b', i)\n",
        "x = {'k': [1, 2.5]}\n",
    ]
    answers = [
        "def f(y):\n    return y * 2\n",
        "for i in range(3):\n    print('a c', i)\n",
        references[2],
    ]
    pairs = zip(answers, references, strict=True)
    rows = [
        {"id": str(at), "answer": a, "reference": r, "new_tokens": at, "stopped": at > 0}
        for at, (a, r) in enumerate(pairs)
    ]
    found = score_generations(rows, seed=0, resamples=100)["metrics"]
    cut = [[published_tokens(text) for text in side] for side in (answers, references)]
    bleu = sacrebleu.corpus_bleu(cut[0], [cut[1]], tokenize="none", force=True).score
    assert found["bleu"] == pytest.approx(bleu, abs=1e-9)
    chrf = sacrebleu.corpus_chrf(answers, [references]).score
    assert found["chrf"] == pytest.approx(chrf, abs=1e-9)
    assert found["syntax_accuracy"] == sum(bool(ast.parse(a).body) for a in answers) / 3
    assert found["exact_match"] == pytest.approx(1 / 3) == found["stopped"] / 2
    assert found["mean_new_tokens"] == 1.0
