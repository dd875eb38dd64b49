"""The memory grid against two calculators: `accelerate estimate-memory` and fitcheck-llm.

    python benchmarks/memory_calculators.py MEASURED.jsonl [--predicted PRED.json]

Accelerate's estimate is of weights, gradients and optimizer, so it is compared with the allocated
peak; fitcheck's total has the context and fragmentation in it and is compared with what the
process takes from the card. Both are asked without a hub, from the same configuration objects.
fitcheck (`pip install fitcheck-llm`) may be absent; what a calculator refuses is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import memory_cases
from benchmarks.memory_cases_models import FAMILIES, config_of
from benchmarks.memory_compare import error_percent, read_measured

MIB, GIB = 2**20, 2**30
_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def empty_model(case: dict[str, Any]) -> torch.nn.Module:
    """Return the network of a case without storage."""
    import transformers
    from accelerate import init_empty_weights

    with init_empty_weights():
        auto = getattr(transformers, FAMILIES[case["family"]][1])
        return auto.from_config(config_of(case), dtype=torch.float32)


def ask_accelerate(case: dict[str, Any], model: torch.nn.Module) -> float:
    """Return the bytes that `accelerate estimate-memory` gives for training with Adam."""
    from accelerate.commands import estimate

    half = case["weights"] != "float32" or case["autocast"]
    kind = "float16" if half else "float32"
    original, estimate.create_empty_model = estimate.create_empty_model, lambda *_, **__: model
    try:
        asked = SimpleNamespace(
            model_name="local", library_name="transformers", trust_remote_code=False, dtypes=[kind]
        )
        return float(max(estimate.gather_data(asked)[0][-1].values()))
    finally:
        estimate.create_empty_model = original


def ask_fitcheck(case: dict[str, Any], model: torch.nn.Module, gpu: str) -> float:
    """Return the bytes that fitcheck gives in all.

    Raises:
        ValueError: It does not know such models or such settings.
    """
    from fitcheck.config_parser import ModelConfig
    from fitcheck.estimator import TrainingConfig, estimate
    from fitcheck.gpu_db import get_gpu

    raw = config_of(case).to_dict()
    if case["task"] not in ("causal", "pairs") or "num_local_experts" in raw:
        raise ValueError("only dense decoders")
    if case["adapter"] and case["adapter"]["kind"] != "lora":
        raise ValueError("only LoRA")
    heads = raw.get("num_attention_heads") or raw["n_head"]
    hidden = raw.get("hidden_size") or raw["n_embd"]
    known = ModelConfig(
        name="local",
        num_params=sum(p.numel() for p in model.parameters()),
        hidden_size=hidden,
        num_layers=raw.get("num_hidden_layers") or raw["n_layer"],
        num_attention_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        intermediate_size=raw.get("intermediate_size") or 4 * hidden,
        vocab_size=raw["vocab_size"],
        head_dim=raw.get("head_dim") or hidden // heads,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", True)),
    )
    asked = TrainingConfig(
        precision=_TYPES[case["autocast"] or case["weights"]],
        quantization=case["quantise"] or "none",
        double_quant=case["quantise"] == "nf4",
        optimizer="adamw",
        batch_size=case["batch"] * (2 if case["task"] == "pairs" else 1),
        seq_len=case["length"],
        lora_rank=case["adapter"]["r"] if case["adapter"] else None,
        lora_targets=_targets(case["adapter"]),
        grad_checkpoint=bool(case["checkpointing"]),
        flash_attn=case["attention"] != "eager",
    )
    return estimate(known, asked, get_gpu(gpu)).total_mib * MIB


def _targets(adapter: dict[str, Any] | None) -> list[str]:
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return every if adapter else ["q_proj", "v_proj"]


def rows(measured: dict[str, dict[str, Any]], gpu: str) -> list[dict[str, Any]]:
    """Return, for each measured configuration, the error of each calculator in percent."""
    found = []
    for name in memory_cases.ALL:
        seen = measured.get(name)
        if seen is None or not seen.get("ok"):
            continue
        case = memory_cases.find_case(name)
        model = empty_model(case)
        row: dict[str, Any] = {"name": name, "measured": seen["allocated_bytes"]}
        row["accelerate"] = ask_accelerate(case, model)
        row["accelerate_error"] = error_percent(row["accelerate"], seen["allocated_bytes"])
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                row["fitcheck"] = ask_fitcheck(case, model, gpu)
            taken = seen["reserved_bytes"] + context_of(measured)
            row["fitcheck_error"] = error_percent(row["fitcheck"], taken)
        except (ImportError, ValueError) as error:
            row["refused"] = str(error)
        found.append(row)
    return found


def context_of(measured: dict[str, dict[str, Any]]) -> int:
    """Return what the process took outside the allocator, read where it was alone on the GPU."""
    seen = [row["context_end_bytes"] for row in measured.values() if row.get("context_end_bytes")]
    return min(seen, default=0)


def summary(name: str, errors: list[float], asked: int) -> str:
    """Return a line of the table: how many answered, and how wrong they were."""
    if not errors:
        return f"| {name} | 0 of {asked} | - | - | - | - |"
    sizes = [abs(error) for error in errors]
    within = [100 * sum(size <= limit for size in sizes) / len(sizes) for limit in (1, 10)]
    return (
        f"| {name} | {len(errors)} of {asked} | {statistics.median(sizes):.1f} % | "
        f"{min(errors):+.0f} to {max(errors):+.0f} % | {within[0]:.0f} % | {within[1]:.0f} % |"
    )


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--predicted", type=Path, help="our own predictions, for the same table")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    measured = read_measured(options.measured)
    found = rows(measured, options.gpu)
    print("| | answered | median error | range | within 1 % | within 10 % |")
    print("|---|---|---|---|---|---|")
    for key, name in (("accelerate", "accelerate estimate-memory"), ("fitcheck", "fitcheck-llm")):
        errors = [row[f"{key}_error"] for row in found if f"{key}_error" in row]
        print(summary(name, errors, len(found)))
    if options.predicted:
        known = json.loads(options.predicted.read_text(encoding="utf-8"))["predictions"]
        ours = {row["name"]: row["allocated_bytes"] for row in known if row.get("allocated_bytes")}
        pairs = [(ours[row["name"]], row["measured"]) for row in found if row["name"] in ours]
        print(summary("simulation", [error_percent(*pair) for pair in pairs], len(found)))
    if options.details:
        for row in found:
            print(json.dumps(row))


if __name__ == "__main__":
    main()
