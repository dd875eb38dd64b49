"""Both engines of a fine-tuning, and TRL as it comes, on a GPU: peak memory and useful tokens/s.

    python -m benchmarks.trl_gpu OUT                      all cases, some five minutes
    python -m benchmarks.trl_gpu OUT --only qwen --seconds 150

The shapes are those of Qwen2.5-1.5B and Gemma-2-2B with random weights; nothing is asked of a hub.
The own engine, which has no Qwen, trains a Llama of the same sizes. A case is a probe: a few steps
on the longest samples and on usual ones. One line of JSON per case; the cases that come first tell
most, and none begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import nbhelpers as nb
from nbhelpers.jobs import forecast, probe
from nbhelpers.jobs.models.smoke_causal import smoke_tokenizer
from nbhelpers.jobs.worker import quiet_libraries, work
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import run_record, write_record

QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
STEPS = (3, 9)  # of a probe: on the longest samples, and on usual ones
ROWS = 16 * sum(STEPS) + 40
FULL = {"seq_len": 1024, "data": "full"}
AGAIN = {"gradient_checkpointing": True}  # Gemma's score matrices of 16 x 1,024 need it
# shape, engine (None: TRL as it comes), batch, settings
CASES = [
    ("qwen", "trl", "preset", {}),
    ("gemma", "trl", "preset", {}),
    ("gemma", "trl", "16x1024", FULL | AGAIN),
    ("qwen", "trl", "16x1024", FULL),
    ("gemma", None, "16x1024", FULL),
    ("qwen", None, "16x1024", FULL),
    ("gemma", "nbhelpers", "16x1024", FULL),
    ("gemma", "nbhelpers", "preset", {}),
    ("gemma", None, "preset", {}),
    ("llama", "nbhelpers", "16x1024", FULL),
    ("llama", "nbhelpers", "preset", {}),
    ("qwen", None, "preset", {}),
    ("qwen", "trl", "qlora", {"method": "qlora"}),
    ("qwen", "trl", "packed", {"packing": True, "per_device_train_batch_size": 2}),
]


def prepare(out: Path) -> None:
    """Write the shapes as model folders, and rows: of usual lengths, and longer than 1,024."""
    from transformers import Gemma2Config, LlamaConfig, Qwen2Config

    configs = {
        "qwen": Qwen2Config(**QWEN),
        "llama": LlamaConfig(**QWEN),
        "gemma": Gemma2Config(),  # the defaults are those of Gemma-2-2B
    }
    for name, config in configs.items():
        config.save_pretrained(out / name)
        smoke_tokenizer().save_pretrained(out / name)
    draw = random.Random(0)
    for name, shortest, longest in (("usual", 30, 330), ("full", 1100, 1200)):
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(ROWS):
                lines = [f"x = {draw.randrange(9)}" for _ in range(longest)]
                answer = "\n".join(lines)[: 4 * draw.randrange(shortest, longest)]
                row = {"instruction": f"Write the program {number}.", "output": answer}
                file.write(json.dumps(row) + "\n")


def preset_of(case: tuple[Any, ...], out: Path, hardware: Any) -> Any:
    """Return the preset of a case: that for an H100, on this shape and these rows."""
    shape, engine, _, changes = case
    over = {"model": str(out / shape), "random_weights": True, "engine": engine or "trl"}
    over |= {"valid_samples": 16, "eval_samples": 8, "evaluate": "none"}
    over |= {"compile_layers": "on"} if engine == "nbhelpers" else {}
    over |= changes | {"data": str(out / f"{changes.get('data', 'usual')}.jsonl")}
    return nb.load_preset("finetune", "h100", hardware=hardware, overrides=over)


def probed(case: tuple[Any, ...], out: Path, hardware: Any) -> dict[str, Any]:
    """Return what a probe of a case measured, with the simulation of its longest samples."""
    preset = preset_of(case, out, hardware)
    plan = nb.plan_batch(preset, hardware)
    parts = {"preset": preset, "plan": plan, "hardware": hardware, "budget": None}
    record = run_record(**parts, mode="probe", checkpoint=None)
    run = Run(out / "runs" / f"{record['run_id']}")
    run.path.parent.mkdir(exist_ok=True)
    write_record(run, record)
    with EventWriter(run.path, 0) as writer:
        work(run, writer, lambda: False)
    result = json.loads(run.result_path.read_text(encoding="utf-8"))
    memory, speed = result["memory"], result["throughput"]
    return {
        "predicted": memory.get("predicted_bytes"),
        "measured": memory["measured_bytes"],
        "error_percent": memory.get("error_percent"),
        "reserved": memory.get("reserved_bytes"),
        "useful_tokens_per_s": speed.get("useful_tokens_per_s"),
        "useful_share": speed.get("useful_share"),
        "model": result["model"],
        "warnings": result["warnings"],
    }


def as_it_comes(case: tuple[Any, ...], out: Path, hardware: Any) -> dict[str, Any]:
    """Return what `SFTTrainer` does with its defaults, of the same rows, model and adapter."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    preset = preset_of(case, out, hardware)
    s, tokenizer = preset.settings, smoke_tokenizer()
    config = AutoConfig.from_pretrained(out / case[0])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lines = Path(s.data).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][: 16 * sum(STEPS)]
    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "num_tokens" in logs:
                torch.cuda.synchronize()
                times.append((time.perf_counter(), logs["num_tokens"]))

    torch.cuda.reset_peak_memory_stats()
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            str(out / "defaults"),
            per_device_train_batch_size=16,
            max_length=s.seq_len,
            bf16=True,
            max_steps=sum(STEPS),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": row["instruction"] + "\n", "completion": row["output"]} for row in rows]
        ),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=s.lora_r, lora_alpha=s.alpha, target_modules="all-linear"),
        callbacks=[Clock()],
    )
    trainer.train()
    (began, first), (ended, last) = times[STEPS[0]], times[-1]
    return {
        "measured": torch.cuda.max_memory_allocated(),
        "useful_tokens_per_s": (last - first) / (ended - began),
        "model": {"attention": model.config._attn_implementation},
    }


def main() -> None:
    """Run the cases, as many as the time allows; one that fails does not stop the rest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="shapes whose name begins so")
    parser.add_argument("--engine", help="trl or nbhelpers alone")
    parser.add_argument("--seconds", type=float, default=320.0)
    options = parser.parse_args()
    quiet_libraries()
    began, out = time.monotonic(), options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    probe.GPU_STEPS = STEPS
    forecast.LIMIT_S = forecast.TRL_LIMIT_S = 60.0  # this process has loaded what a child has not
    prepare(out)
    hardware = nb.detect_hardware()
    with (out / "trl_gpu.jsonl").open("w", encoding="utf-8") as file:
        for case in CASES:
            is_wanted = options.engine in (None, case[1]) and case[0].startswith(options.only)
            if not is_wanted or time.monotonic() - began > options.seconds:
                continue
            line: dict[str, Any] = {"shape": case[0], "engine": case[1], "batch": case[2]}
            started = time.monotonic()
            try:
                line |= (probed if case[1] else as_it_comes)(case, out, hardware)
            except Exception as error:
                traceback.print_exc()
                line["error"] = f"{type(error).__name__}: {error}"[:300]
            line["seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps(line), flush=True)
            file.write(json.dumps(line) + "\n")
            file.flush()
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
