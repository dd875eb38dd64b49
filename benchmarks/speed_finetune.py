"""Useful tokens per second of Gemma-2-2B's shape with LoRA r=16: ours, TRL, Liger, a plain loop.

    python -m benchmarks.speed_finetune OUT --data rows.jsonl [--cases own full qlora]
    python -m benchmarks.speed_finetune OUT --cpu

Rows have `instruction` and `output`. `own` is the preset's batch of 16 samples, `full` 16 samples
of 1,024 tokens (answers are lengthened until each sample is cut there). All contenders train the
same rows in batches of 16 with the same tokenizer, weights and adapters (all seven projections,
dropout .05), bf16. Ours is a real run: worker, events, validation, checkpoint. TRL's defaults are
`SFTTrainer` with nothing set but the batch; they checkpoint activations, and take SDPA, which drops
Gemma's soft-cap. Liger is the plain loop over a model with its norms, GeGLU and fused loss.
On a CPU the shape is tiny, and only the agreement of losses and gradients counts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import nbhelpers as nb
from benchmarks import speed
from nbhelpers.jobs.models.causal import CausalBase, add_adapter
from nbhelpers.jobs.models.causal_batches import IGNORED, TextTable, make_batch
from nbhelpers.jobs.models.causal_forward import TrainingForward
from nbhelpers.jobs.models.causal_graphs import GraphedSteps
from nbhelpers.jobs.models.smoke_causal import train_tokenizer
from nbhelpers.jobs.worker import quiet_libraries

UPDATE = 16  # samples of an optimizer step
WORDS = 8000  # of the tokenizer that is trained on the rows
TINY = {"vocab_size": 9000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
CASES = {
    "own": {"title": "the preset's batch: 16 samples of at most 768 tokens", "seq_len": 768},
    "full": {"title": "16 samples of 1,024 tokens", "seq_len": 1024},
    "qlora": {"title": "the preset's batch, QLoRA", "seq_len": 768, "method": "qlora"},
}


def write_inputs(out: Path, source: Path | None, *, is_tiny: bool) -> None:
    """Write rows as they are and lengthened, and the model's folder with a tokenizer."""
    from transformers import Gemma2Config

    rows = made_up_rows() if source is None else _rows(source)
    draw = random.Random(0)
    for name, shortest in (("own", 0), ("full", 6000)):
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number, row in enumerate(rows[: UPDATE * (70 if name == "own" else 40)]):
                text = row["output"]
                while len(text) < shortest:
                    text += "\n" + draw.choice(rows)["output"]
                instruction = f"{row['instruction']} ({number})"
                file.write(json.dumps({"instruction": instruction, "output": text}) + "\n")
    tokenizer = train_tokenizer([row["instruction"] + row["output"] for row in rows], WORDS)
    config = Gemma2Config(**TINY) if is_tiny else Gemma2Config()
    for part in (config, tokenizer):
        part.save_pretrained(out / "gemma")


def made_up_rows() -> list[dict[str, str]]:
    """Return rows for a CPU."""
    draw = random.Random(0)
    lines = ["x = 1", "for i in range(3):", "    print(i)", "return x", "def f(a, b):"]
    texts = ["\n".join(draw.choices(lines, k=draw.randrange(2, 9))) for _ in range(80)]
    return [{"instruction": f"Write number {i}.", "output": text} for i, text in enumerate(texts)]


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def preset_of(case: str, out: Path, hardware: Any, **changes: Any) -> Any:
    """Return the preset of a case: that for an H100, on this shape and these rows."""
    facts = CASES[case]
    over = {"model": str(out / "gemma"), "random_weights": True, "template": "alpaca"}
    over |= {"data": str(out / f"{'full' if case == 'full' else 'own'}.jsonl")}
    over |= {"epochs": 1 if case == "full" else 2}
    over |= {"valid_samples": 16, "eval_samples": 8, "evaluate": "none", "track": "none"}
    over |= {"compile_layers": "on", "logging_steps": 1, "save_minutes": None}
    over |= {"seq_len": facts["seq_len"], "method": facts.get("method", "lora")}
    return nb.load_preset("finetune", "h100", hardware=hardware, overrides=over | changes)


def ours(case: str, out: Path, hardware: Any) -> tuple[speed.Speed, dict[str, Any]]:
    """Return the speed of a real run, and what its result tells."""
    began = time.time()
    run, result = speed.own_run(preset_of(case, out, hardware), hardware, out)
    rates = speed.own_rates(
        run,
        unit="useful tokens",
        warm_up=6 if case == "full" else 20,
        steps=10 if case == "full" else 20,  # one more or less is read at either end
    )
    memory = result["memory"]
    facts = {
        "case": case,
        "first_step_s": first_step_s(run, began),
        "predicted": [memory.get("predicted_bytes"), memory["measured_bytes"]],
        "error_percent": memory.get("error_percent"),
        "reserved": memory.get("reserved"),
        "phases": memory.get("phases"),
        "timing": result["timing"],
        "model": result["model"],
        "warnings": result["warnings"],
    }
    name = "nbhelpers, QLoRA" if case == "qlora" else "nbhelpers"
    return _speed(case, name, rates, peak=speed.peak_of(result)), facts


def first_step_s(run: Any, began: float) -> float:
    """Return the seconds from a moment to the end of a run's first optimizer step."""
    from nbhelpers.runs.events import read_events

    return next(e["t"] for e in read_events(run.events_path(0)) if e["type"] == "step") - began


def _speed(case: str, name: str, rates: list[float], *, peak: float | None) -> speed.Speed:
    return speed.Speed(
        case=CASES[case]["title"],
        contender=name,
        unit="useful tokens",
        rates=rates,
        flops_per_unit=4 * PARAMETERS,
        convention="4N",
        peak_gib=peak,
    )


PARAMETERS = 2.614e9  # of Gemma-2-2B, the embedding once


# ------------------------------------------------------------------------------------------------
# Rivals: the same rows, weights, adapters and batches.


def tokenised(case: str, out: Path) -> list[dict[str, list[int]]]:
    """Return samples as ids and labels, by the prompt and tokens of our run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out / "gemma")
    limit, samples = CASES[case]["seq_len"], []
    for row in _rows(out / f"{case}.jsonl"):
        prompt = tokenizer(PROMPT.format(**row))["input_ids"]
        answer = tokenizer(row["output"], add_special_tokens=False)["input_ids"]
        ids = [*prompt, *answer, tokenizer.eos_token_id or 0][:limit]
        samples.append({"input_ids": ids, "labels": [IGNORED] * len(prompt) + ids[len(prompt) :]})
    return samples


PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)


def adapted_model(out: Path, device: str, *, attention: str, dtype: torch.dtype, dropout: float):
    """Return Gemma's shape with adapters, weights of one seed."""
    from types import SimpleNamespace

    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(out / "gemma")
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.requires_grad_(False)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    how = {"lora_target_modules": names, "lora_r": 16, "alpha": 32, "lora_dropout": dropout}
    base = CausalBase(model=model, tokenizer=None, config=config)
    return model, add_adapter(base, SimpleNamespace(**how, seed=0, model="gemma")).train()


def padded(samples: list[dict[str, list[int]]], device: str) -> dict[str, torch.Tensor]:
    """Return samples as a batch, padded to the longest."""
    longest = max(len(s["input_ids"]) for s in samples)
    fill = {"input_ids": 0, "labels": IGNORED}
    batch = {
        name: torch.tensor([s[name] + [value] * (longest - len(s[name])) for s in samples])
        for name, value in fill.items()
    }
    batch["attention_mask"] = torch.tensor(
        [[1] * len(s["input_ids"]) + [0] * (longest - len(s["input_ids"])) for s in samples]
    )
    return {name: value.to(device) for name, value in batch.items()}


def plain_loop(case: str, out: Path, *, liger: bool) -> list[float]:
    """Return the windows of a loop over the library's model, padded to the longest sample."""
    with _liger_classes() if liger else nullcontext():
        return _plain_windows(case, out)


@contextmanager
def _liger_classes() -> Iterator[None]:
    """Have Gemma 2 made of Liger's parts, inside this context."""
    from liger_kernel.transformers import apply_liger_kernel_to_gemma2
    from transformers.models.gemma2 import modeling_gemma2

    names, forward = dict(vars(modeling_gemma2)), modeling_gemma2.Gemma2ForCausalLM.forward
    try:
        apply_liger_kernel_to_gemma2(fused_linear_cross_entropy=True, cross_entropy=False)
        yield
    finally:
        vars(modeling_gemma2).update(names)
        modeling_gemma2.Gemma2ForCausalLM.forward = forward


def _plain_windows(case: str, out: Path) -> list[float]:
    _, model = adapted_model(out, "cuda", attention="eager", dtype=torch.bfloat16, dropout=0.05)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=True)
    samples = tokenised(case, out)
    batches = [samples[i : i + UPDATE] for i in range(0, len(samples) - UPDATE + 1, UPDATE)]
    state = {"at": 0}

    def step() -> tuple[int, int]:
        batch = batches[state["at"] % len(batches)]
        state["at"] += 1
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**padded(batch, "cuda")).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # as a trainer that logs
        return len(batch), sum(len(s["input_ids"]) for s in batch)

    few = case == "full"
    return speed.timed_windows(
        step, unit="useful tokens", warm_up=3, windows=3, steps=2 if few else 8
    )


def trl_defaults(case: str, out: Path) -> list[float]:
    """Return the windows of `SFTTrainer` with nothing set but the batch, the length and bf16."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(out / "gemma")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    torch.manual_seed(0)
    with torch.device("cuda"):
        config = AutoConfig.from_pretrained(out / "gemma")
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "num_tokens" in logs:
                torch.cuda.synchronize()
                times.append((time.perf_counter(), logs["num_tokens"]))

    rows = _rows(out / f"{case}.jsonl")
    full, warm = case == "full", 3
    steps = (2, 3) if full else (8, 3)  # of a window, windows
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            str(out / "trl"),
            per_device_train_batch_size=UPDATE,
            max_length=CASES[case]["seq_len"],
            bf16=True,
            max_steps=warm + steps[0] * steps[1] + 1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": PROMPT.format(**row), "completion": row["output"]} for row in rows]
        ),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"),
        callbacks=[Clock()],
    )
    trainer.train()
    marks = times[warm :: steps[0]]
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)]


RIVALS: dict[str, Callable[[str, Path], list[float]]] = {
    "TRL's defaults": trl_defaults,
    "Liger, eager attention": lambda case, out: plain_loop(case, out, liger=True),
    "plain loop, eager attention": lambda case, out: plain_loop(case, out, liger=False),
}


# ------------------------------------------------------------------------------------------------
# Agreement: one batch without dropout, as the library computes it in fp32 and as ours does.


def agreement(out: Path, *, device: str, dtype: torch.dtype, kernel: str) -> dict[str, float]:
    """Return how far loss and gradients are from the library's in fp32, ours and the plain ones.

    Ours: packed samples, the kernel, compiled blocks on a GPU, replayed graphs, chunked loss.
    Plain: padded samples, eager attention, the library's loss, in the same numbers as ours.
    """
    samples = tokenised("own", out)[:UPDATE]
    table = TextTable(
        ids=[np.array(s["input_ids"]) for s in samples],
        prompt_lengths=np.array([s["labels"].count(IGNORED) for s in samples]),
        rows=list(range(len(samples))),
    )
    count = sum(len(s["input_ids"]) - s["labels"].count(IGNORED) for s in samples)
    results = {}
    for name, kind in (("reference", torch.float32), ("plain", dtype), ("ours", dtype)):
        model, peft = adapted_model(out, device, attention="eager", dtype=dtype, dropout=0.0)
        peft.to(kind)  # the same weights, rounded once
        for parameter in peft.parameters():
            parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
        learned = [p for p in peft.parameters() if p.requires_grad]
        generator = torch.Generator().manual_seed(1)
        for parameter in learned:  # B begins as zeros, and A would have no gradient
            parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator).to(device)
        if name == "ours":
            forward = TrainingForward(model, kernel=kernel, loss="chunked", dtype=kind)
            multiple = 128 if kernel == "flex" else 8
            batch = make_batch(
                table,
                np.arange(len(samples)),
                pad_id=0,
                packed=True,
                multiple=multiple,
                is_graphed=True,
            )
            with forward.active(compiled=device == "cuda"):
                steps = GraphedSteps(
                    forward, learned, torch.device(device), most_tokens=batch.ids.numel()
                )
                loss = float(steps.micro_step(batch, 1 / count)) / count
        else:
            with torch.autocast(device, torch.bfloat16, enabled=kind == torch.bfloat16):
                loss = peft(**padded(samples, device)).loss
            loss.backward()
            loss = float(loss.detach())
        results[name] = loss, torch.cat([p.grad.flatten().double().cpu() for p in learned])
        del model, peft, learned
        speed.clear()
    reference, gradients = results["reference"]
    return {
        f"{name} {what}": value
        for name in ("plain", "ours")
        for what, value in (
            ("loss", abs(results[name][0] / reference - 1)),
            ("gradients", float((results[name][1] - gradients).norm() / gradients.norm())),
        )
    }


# ------------------------------------------------------------------------------------------------


def scaling(options: argparse.Namespace) -> None:
    """Print the speed of 16 samples per GPU on one GPU and on all, launched as a notebook does."""
    hardware, rates = nb.detect_hardware(), {}
    for gpus in (1, torch.cuda.device_count()):
        changes = {"num_gpus": gpus, "global_batch_size": UPDATE * gpus, "epochs": 3 * gpus}
        preset = preset_of("own", options.out, hardware, **changes)
        plan = nb.plan_batch(preset, hardware)
        began = time.time()
        run = nb.launch(preset, plan, None, hardware=hardware, run_dir=options.out / "gpus")
        nb.follow(run)
        rates[gpus] = speed.own_rates(run, unit="useful tokens", warm_up=70, steps=20)
        times = median(rates[gpus]) / median(rates[1])
        line = {"gpus": gpus, "rates": rates[gpus], "times": times}
        line["first_step_s"] = first_step_s(run, began)
        print(json.dumps(line), flush=True)


def measure(options: argparse.Namespace, speeds: list[speed.Speed], facts: dict[str, Any]) -> None:
    """Time ours in every case, compare its numbers, then time the rivals, as long as time is left.

    One that fails does not stop the rest.
    """
    began, hardware = time.monotonic(), nb.detect_hardware()
    rivals = [(case, name) for name in RIVALS for case in options.cases if case != "qlora"]
    for case, name in [*((case, "nbhelpers") for case in options.cases), *rivals]:
        if time.monotonic() - began > options.seconds:
            continue
        speed.clear()
        try:
            if name == "nbhelpers":
                line, more = ours(case, options.out, hardware)
                facts[f"{case}: memory predicted, measured in bytes"] = more["predicted"]
                print(json.dumps(more, default=str), flush=True)
            else:
                rates = RIVALS[name](case, options.out)
                line = _speed(case, name, rates, peak=speed.peak_gib())
        except Exception as error:
            traceback.print_exc()
            line = _speed(case, name, [], peak=None)
            line.note = f"{type(error).__name__}: {error}"[:200]
        speeds.append(line)
        print(json.dumps({"case": case, "contender": name, "rates": line.rates}), flush=True)
        speed.write(options.out, "finetune", speeds, facts)
        if case == options.cases[-1] and name == "nbhelpers":
            how = {"device": "cuda", "dtype": torch.bfloat16, "kernel": "flex"}
            compare(options.out, facts, **how)


def compare(out: Path, facts: dict[str, Any], **how: Any) -> None:
    """Add to the facts how far ours and the plain ones are from fp32."""
    try:
        apart = agreement(out, **how)
        facts |= {f"from fp32, without dropout: {name}": f"{x:.1e}" for name, x in apart.items()}
    except Exception:
        traceback.print_exc()


def main() -> None:
    """Write inputs, compare numbers, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="JSONL with `instruction` and `output`")
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=400.0, help="no contender begins after")
    parser.add_argument("--scaling", action="store_true", help="one GPU against all, ours alone")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes: agreement alone")
    options = parser.parse_args()
    quiet_libraries()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    write_inputs(options.out, options.data, is_tiny=options.cpu)
    if options.scaling:
        scaling(options)
        return
    speeds: list[speed.Speed] = []
    facts: dict[str, Any] = {}
    if options.cpu:
        compare(options.out, facts, device="cpu", dtype=torch.float32, kernel="eager")
    else:
        measure(options, speeds, facts)
    path = speed.write(options.out, "finetune", speeds, facts)
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
