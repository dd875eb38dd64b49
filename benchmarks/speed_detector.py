"""Useful tokens per second of a detector's training: ours, a plain loop, the seed's loop.

    python -m benchmarks.speed_detector OUT --programs FILE.jsonl [--seconds 10]
    python -m benchmarks.speed_detector OUT --programs FILE.jsonl --whole    the seed's job, once
    python -m benchmarks.speed_detector OUT --programs FILE.jsonl --cpu

FILE has lines with `code` and `language`; from its lines programs of the seed's lengths are made
(`detector_gpu.seed_rows`). CodeBERT's shape with random weights, an encoder that learns from the
first step, a global batch of 256, both losses. Ours is a real run: worker, events, validation,
checkpoint. On a CPU shapes are tiny and only the agreement of losses and gradients counts.

The plain loop is what one writes with Hugging Face's RobertaModel: bf16 by autocast, SDPA, rows
padded to the longest of the batch, 256 at once. The seed's loop follows its report (seeds, "A100
Training Optimization"): rows padded to 512, fp16 with a gradient scaler, twice 128, torch.compile,
8 persistent workers that prefetch 2 batches, pinned memory. Its mode `reduce-overhead` fails under
gradient accumulation (PyTorch #169545), so the default mode compiles; each of its micro-batches has
a contrastive loss of its own, over tasks as everywhere here.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset

import nbhelpers as nb
from benchmarks import speed
from benchmarks.clones_gpu import SHAPES
from benchmarks.detector_gpu import SEED_PROGRAMS, seed_rows
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.jobs.context import start_accelerator
from nbhelpers.jobs.detector_inputs import Inputs
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.models.detector import DetectorModel
from nbhelpers.jobs.models.encoders import encoder_class
from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, TokenTable, tokenise, train_bpe
from nbhelpers.jobs.worker import quiet_libraries
from nbhelpers.runs.events import read_events

ENCODER = 85e6  # parameters of twelve blocks of 768
PROGRAMS = 16_384  # of the timed runs: an epoch of some fifty steps
CASE = "CodeBERT's shape, lengths of Rosetta Code, global batch 256, both losses"
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 64}


# ------------------------------------------------------------------------------------------------
# What all contenders read: programs as token ids, a model's folder, settings.


@dataclass(slots=True, kw_only=True)
class Material:
    """Programs of a file as token ids, and how they are trained on."""

    data: Path
    model_folder: Path
    config: Any
    table: TokenTable
    rows: list[dict[str, Any]]
    settings: Any
    plan: Any

    @property
    def labels(self) -> np.ndarray:
        """(programs,) 1 for AI, 0 for human."""
        return np.array([row["label"] == "ai" for row in self.rows], dtype=np.int64)

    @property
    def tasks(self) -> np.ndarray:
        """(programs,) number of each task."""
        return np.unique([row["task"] for row in self.rows], return_inverse=True)[1]


def prepare(programs: Path, out: Path, hardware: Any, *, is_cpu: bool) -> Material:
    """Write programs, tokenizer and configuration; return them read."""
    from transformers import RobertaConfig

    data = seed_rows(programs, out / "programs.jsonl", count=240 if is_cpu else PROGRAMS)
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    texts = [canonical(row["code"], "text") for row in rows]
    vocab = 600 if is_cpu else SHAPES["codebert"]["vocab_size"]
    tokenizer = train_bpe(texts[:4000], vocab, special_tokens=ROBERTA_TOKENS, collapse=False)
    values = SHAPES["codebert"] | {"vocab_size": len(tokenizer)} | (TINY if is_cpu else {})
    model_folder = out / "codebert-shape"
    model_folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(model_folder)
    (model_folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    preset = own_preset(hardware, data, model_folder, is_cpu=is_cpu, compiles=False)
    s = preset.settings
    table = tokenise(texts, tokenizer, seq_len=s.seq_len, vocab_size=len(tokenizer), collapse=False)
    return Material(
        data=data,
        model_folder=model_folder,
        config=RobertaConfig.from_dict(values),
        table=table,
        rows=rows,
        settings=s,
        plan=nb.plan_batch(preset, hardware),
    )


def own_preset(
    hardware: Any, data: Path, model_folder: Path, *, is_cpu: bool, compiles: bool
) -> nb.Preset:
    """Return the preset of an epoch in which the encoder learns, with little around it."""
    over = {"model": str(model_folder), "random_weights": True, "data": str(data)}
    over |= {"on_failed_audit": "go_on", "track": "none", "split": "task", "class_weights": "none"}
    over |= {"epochs": 1, "freeze_epochs": 0, "logging_steps": 1, "save_minutes": 60.0}
    over |= {"floors": False, "edit_suite": False, "score": "encoder", "bootstrap_samples": 100}
    over |= {"augment_share": 0.0, "targets": {}, "compile_layers": "on" if compiles else "off"}
    if is_cpu:
        over |= {"seq_len": 64, "global_batch_size": 16, "per_device_train_batch_size": 16}
        over |= {"projection_size": 32}
    name = "smoke" if is_cpu else "h100"
    return nb.load_preset("detector", name, hardware=hardware, overrides=over)


def new_model(material: Material, *, dropout: float) -> DetectorModel:
    """Return random weights, the same at each call."""
    torch.manual_seed(3)
    config, s = copy.deepcopy(material.config), material.settings
    config._attn_implementation = "sdpa"
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    build, options = encoder_class(config)
    return DetectorModel(
        build(config, **options),
        dropout=dropout,
        projection_size=s.projection_size,
        pooling=s.pooling,
        similarity_pooling=s.similarity_pooling,
    )


# ------------------------------------------------------------------------------------------------
# Loops as they are written by hand.


class Programs(Dataset):
    """Token ids with a label and a task, as lists that a collation pads."""

    def __init__(self, material: Material, width: int | None) -> None:
        """Pad to `width` columns; None: to the longest of a batch."""
        table, self.width = material.table, width
        self.pad, self.labels, self.tasks = table.pad_id, material.labels, material.tasks
        lengths = table.lengths
        self.ids = [table.pad([row], int(lengths[row]))[0].tolist() for row in range(len(lengths))]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, item: int) -> tuple[list[int], int, int]:
        return self.ids[item], int(self.labels[item]), int(self.tasks[item])

    def collate(self, rows: list[tuple[list[int], int, int]]) -> tuple[Tensor, ...]:
        """Return ids (rows, width), a mask with 1 for tokens, labels and tasks."""
        width = self.width or max(len(ids) for ids, _, _ in rows)
        ids = torch.tensor([one + [self.pad] * (width - len(one)) for one, _, _ in rows])
        labels = torch.tensor([label for _, label, _ in rows], dtype=torch.float32)
        return ids, ids.ne(self.pad).long(), labels, torch.tensor([task for *_, task in rows])


@dataclass(slots=True, kw_only=True)
class Loop:
    """A loop over micro-batches with an update after the global batch.

    Args:
        width: Columns of every batch; None: as the longest program has.
        micro: Programs of a micro-batch.
        half: Precision of autocast; None: fp32.
        workers: Processes that make batches.
        compiles: The encoder is compiled.
    """

    name: str
    material: Material
    device: torch.device
    width: int | None
    micro: int
    half: torch.dtype | None = None
    workers: int = 0
    compiles: bool = False
    model: DetectorModel = field(init=False)
    _encoder: Any = field(init=False, default=None)
    _batches: Iterator[Any] | None = None
    _optimizer: Any = None
    _scaler: Any = None

    def start(self, *, dropout: float) -> None:
        """Make model, optimizer and batches anew."""
        self.model = new_model(self.material, dropout=dropout).to(self.device).train()
        encoder = self.model.encoder
        self._encoder = torch.compile(encoder) if self.compiles else encoder
        s = self.material.settings
        how = {"lr": s.encoder_learning_rate, "weight_decay": s.weight_decay}
        how["fused"] = self.device.type == "cuda"
        self._optimizer = torch.optim.AdamW(self.model.parameters(), **how)
        self._scaler = torch.amp.GradScaler(enabled=self.half == torch.float16)
        self._batches = self._endless()

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the mean loss of a micro-batch: cross-entropy, and the contrastive loss."""
        ids, mask, labels, tasks = (x.to(self.device, non_blocking=True) for x in batch)
        autocast = torch.autocast(self.device.type, self.half) if self.half else nullcontext()
        with autocast:
            states = self._encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weights = torch.stack([mask.float(), mask * self.model.rarity[ids]], dim=1)
            totals = weights @ states  # (rows, 2, hidden): the mean's sum, and that by rarity
            means = totals / weights.sum(-1, keepdim=True).clamp(min=1e-6)
            logits = self.model.classifier(means[:, 0]).float()
            vectors = self.model.projector(means[:, 1]).float()
        s = self.material.settings
        similar = contrastive(vectors, tasks, s.temperature)
        return binary_cross_entropy_with_logits(logits, labels) + s.contrastive_weight * similar

    def step(self) -> tuple[int, int]:
        """Make an update; return its programs and useful tokens."""
        s = self.material.settings
        count = s.global_batch_size // self.micro
        programs = tokens = 0
        for _ in range(count):
            batch = next(self._batches)
            self._scaler.scale(self.loss(batch) / count).backward()
            programs, tokens = programs + len(batch[0]), tokens + int(batch[1].sum())
        self._scaler.unscale_(self._optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        return programs, tokens

    def first(self, rows: np.ndarray) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradients of some programs in one batch, in fp32, without dropout."""
        half, compiles, self.half, self.compiles = self.half, self.compiles, None, False
        self.start(dropout=0.0)
        programs = Programs(self.material, self.width)
        loss = self.loss(programs.collate([programs[row] for row in rows.tolist()]))
        answer = differentiated(self.model, loss)
        self.half, self.compiles = half, compiles
        return answer

    def close(self) -> None:
        """Let go of the model and of what makes batches."""
        self._batches = self._optimizer = self._encoder = self.model = None

    def _endless(self) -> Iterator[Any]:
        programs = Programs(self.material, self.width)
        how: dict[str, Any] = {"num_workers": self.workers, "pin_memory": bool(self.workers)}
        if self.workers:
            how |= {"persistent_workers": True, "prefetch_factor": 2}
        steps = global_batches(self.material)
        order = [
            step[at : at + self.micro] for step in steps for at in range(0, len(step), self.micro)
        ]
        order = [rows.tolist() for rows in order if len(rows) == self.micro]
        loader = DataLoader(programs, batch_sampler=order, collate_fn=programs.collate, **how)
        while True:
            yield from loader


def contrastive(vectors: Tensor, tasks: Tensor, temperature: float) -> Tensor:
    """Return the mean over rows with a positive. Source: Khosla et al. 2020, equation 2."""
    scores = vectors @ vectors.T / temperature
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    log_share = scores - scores.masked_fill(itself, float("-inf")).logsumexp(1, keepdim=True)
    positive = (tasks[:, None] == tasks[None, :]) & ~itself
    count = positive.sum(1)
    losses = -(log_share * positive).sum(1) / count.clamp(min=1)
    return losses.sum() / (count > 0).sum().clamp(min=1)


def differentiated(model: DetectorModel, loss: Tensor) -> tuple[float, dict[str, Tensor]]:
    """Return a loss and its gradients, and leave none."""
    model.zero_grad()
    loss.backward()
    pairs = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return float(loss.detach()), pairs


# ------------------------------------------------------------------------------------------------
# Ours, and the comparison.


def own_task(material: Material, model: DetectorModel | None, accelerator: Any) -> DetectorTask:
    """Return our task over all programs."""
    rows = [
        CodeRow(
            id=str(at),
            code="",
            language=row["language"],
            label=row["label"],
            task=row["task"],
            source=row["source"],
        )
        for at, row in enumerate(material.rows)
    ]
    order = np.arange(len(rows), dtype=np.int64)
    data: Any = SimpleNamespace(rows=rows, splits={"train": order, "valid": order[:0]})
    found: Any = SimpleNamespace(config=material.config)
    inputs = Inputs(data=data, audit=None, table=material.table, found=found, rows=order)
    return DetectorTask(material.settings, inputs, accelerator, model)


def global_batches(material: Material) -> list[np.ndarray]:
    """Return the programs of each optimizer step, those of a task together, as ours draws them."""
    plain: Any = SimpleNamespace(device=torch.device("cpu"), mixed_precision="no")
    return own_task(material, None, plain).global_batches(0)


def own_first(
    material: Material, rows: np.ndarray, device: torch.device
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of some programs as our task computes them."""
    model = new_model(material, dropout=0.0).to(device).train()
    task = own_task(material, model, start_accelerator("fp32", material.plan))
    torch.set_float32_matmul_precision("highest")
    task.start_step(rows, [rows], lambda number: None)
    # What is differentiated has the loss's gradient, not its value.
    surrogate, reported = task.loss_sum(model, task.batch(rows))
    return float(reported[0]) / len(rows), differentiated(model, surrogate / len(rows))[1]


def own(
    material: Material, hardware: Any, out: Path, *, is_cpu: bool, compiles: bool
) -> speed.Speed:
    """Train a real run; return its speed."""
    speed.clear()
    preset = own_preset(
        hardware, material.data, material.model_folder, is_cpu=is_cpu, compiles=compiles
    )
    run, result = speed.own_run(preset, hardware, out)
    rates = speed.own_rates(
        run, unit="useful tokens", warm_up=3 if is_cpu else 10, steps=2 if is_cpu else 6
    )
    proof = (result.get("compile") or {}).get("self_test", {})
    note = f"own bf16 gradients {proof['plain']:.1e} from fp32's" if "plain" in proof else ""
    is_on = (result.get("compile") or {}).get("is_on", False)
    return speed.Speed(
        case=CASE,
        contender="nbhelpers" if is_on or is_cpu else "nbhelpers, plain blocks",
        unit="useful tokens",
        rates=rates,
        peak_gib=speed.peak_of(result),
        gradient_error=proof.get("largest_difference"),
        note=note or str(proof.get("reason", "")),
    )


def loops_of(material: Material, device: torch.device, *, is_cpu: bool) -> list[Loop]:
    """Return the other contenders."""
    common: dict[str, Any] = {"material": material, "device": device}
    size, width = material.settings.global_batch_size, material.settings.seq_len
    plain = Loop(
        name="plain Hugging Face loop (bf16, SDPA, padded to the longest)",
        width=None,
        micro=size,
        half=None if is_cpu else torch.bfloat16,
        workers=0 if is_cpu else 4,
        **common,
    )
    seed = Loop(
        name=f"the seed's loop (fp16, compiled, padded to {width}, 2 x {size // 2})",
        width=width,
        micro=size // 2,
        half=None if is_cpu else torch.float16,
        workers=0 if is_cpu else 8,
        compiles=not is_cpu,
        **common,
    )
    return [plain, seed]


def timed(loop: Loop, seconds: float) -> speed.Speed:
    """Time a loop for about so many seconds."""
    speed.clear()
    loop.start(dropout=0.1)
    began = time.perf_counter()
    loop.step()
    speed.synchronise()
    first_s = time.perf_counter() - began
    loop.step()
    speed.synchronise()
    began = time.perf_counter()
    loop.step()
    speed.synchronise()
    steps = max(1, int(seconds / 5 / max(1e-3, time.perf_counter() - began)))
    rates = speed.timed_windows(loop.step, unit="useful tokens", warm_up=0, steps=min(6, steps))
    return speed.Speed(
        case=CASE,
        contender=loop.name,
        unit="useful tokens",
        rates=rates,
        peak_gib=speed.peak_gib(),
        note=f"first step {first_s:.1f} s",
    )


def play(programs: Path, out: Path, *, is_cpu: bool, seconds: float) -> list[speed.Speed]:
    """Time all contenders and compare their first loss and gradients."""
    hardware = nb.detect_hardware()
    device = torch.device("cpu" if is_cpu else "cuda")
    material = prepare(programs, out, hardware, is_cpu=is_cpu)
    rows = global_batches(material)[0][:16]
    lines: list[speed.Speed] = []

    def add(line: speed.Speed) -> None:
        line.flops_per_unit, line.convention = 6 * ENCODER, "6 x 85M a useful token"
        lines.append(line)
        speed.write(out, "detector", lines)  # after each: time may run out
        shown = {"contender": line.contender, "rate": line.rate, "peak_gib": line.peak_gib}
        print(json.dumps(shown | {"note": line.note, "rates": line.rates}), flush=True)

    for compiles in (False,) if is_cpu else (True, False):
        add(own(material, hardware, out, is_cpu=is_cpu, compiles=compiles))
    loss, gradients = own_first(material, rows, device)
    for loop in loops_of(material, device, is_cpu=is_cpu):
        other_loss, other = loop.first(rows)
        line = timed(loop, seconds)
        line.loss_error = abs(other_loss - loss) / abs(loss)
        line.gradient_error = difference(gradients, other)
        add(line)
        loop.close()
    return lines


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the norm of all differences over the norm of all."""
    gaps = torch.stack([(one[name] - other[name]).norm() for name in one])
    return float(gaps.norm() / torch.stack([x.norm() for x in one.values()]).norm())


def whole(programs: Path, out: Path, *, count: int) -> dict[str, Any]:
    """Run the seed's job as a notebook does, no cache at hand; return its seconds by phase."""
    os.environ["NBHELPERS_CACHE"] = tempfile.mkdtemp(dir=out)
    hardware = nb.detect_hardware()
    folder = out / "codebert-shape-alone"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES["codebert"]), encoding="utf-8")
    data = seed_rows(programs, out / "seed.jsonl", count=count)
    over = {"model": str(folder), "random_weights": True, "data": str(data)}
    over |= {"on_failed_audit": "go_on", "track": "none"}
    preset = nb.load_preset("detector", "h100", hardware=hardware, overrides=over)
    plan = nb.plan_batch(preset, hardware)
    began = time.perf_counter()
    budget = nb.predict_memory(preset, plan, hardware)
    predicted_s, began = time.perf_counter() - began, time.perf_counter()
    run = nb.launch(preset, plan, budget, hardware=hardware, run_dir=out / "runs", force=True)
    result = nb.follow(run).data
    steps = [e for e in read_events(run.events_path(0)) if e["type"] == "step"]
    unfrozen = next(e["step"] for e in steps if e["epoch"] > preset.settings.freeze_epochs + 0.1)
    rates = speed.own_rates(run, unit="useful tokens", warm_up=unfrozen, steps=5)
    facts = {"launched_and_followed_s": time.perf_counter() - began, "programs": count}
    facts["memory_predicted_in_s"] = predicted_s
    facts["useful_tokens_per_s_unfrozen"] = rates  # of some 50 steps each
    names = ("timing", "phases", "throughput", "compile", "memory", "warnings", "training")
    facts |= {name: result.get(name) for name in names}
    (out / "whole.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    facts.pop("training")
    print(json.dumps(facts), flush=True)
    return facts


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, time the contenders, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each loop")
    parser.add_argument("--whole", action="store_true", help="the seed's job, and no loop")
    parser.add_argument("--count", type=int, default=SEED_PROGRAMS, help="programs of --whole")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes: agreement alone")
    given = parser.parse_args(arguments)
    quiet_libraries()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.whole:
        whole(given.programs, given.out, count=given.count)
    else:
        play(given.programs, given.out, is_cpu=given.cpu, seconds=given.seconds)


if __name__ == "__main__":
    main()
