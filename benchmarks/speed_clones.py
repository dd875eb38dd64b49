"""Pairs per second of clone detection: ours, the published scripts' loops, a plain bf16 loop.

    python -m benchmarks.speed_clones OUT --data FOLDER [--cases codegpt-400 ...] [--seconds 12]
    python -m benchmarks.speed_clones OUT --data FOLDER --cpu

FOLDER is in CodeXGLUE's form (data.jsonl, train.txt, valid.txt, test.txt). Weights are random, in
the shapes of CodeGPT-small and GraphCodeBERT with their vocabularies; the byte-level BPE is trained
on the folder's functions. Ours is a real run: worker, events, validation, checkpoint. The scripts'
loops are written here by their structure: micro-batches as published, gradients added up to 64
pairs an update, features made before the clock starts, masks and tensors within it. All begin with
the same weights. On a CPU shapes are tiny and only the agreement of losses and gradients counts.

Sources: CodeXGLUE, Code-Code/Clone-detection-BigCloneBench; microsoft/CodeBERT,
GraphCodeBERT/clonedetection (run.py, model.py at 0db870f); ZZR0/ISSTA22-CodeStudy,
Task/Clone-Detection-BigCloneBench (codegpt, graphcodebert; run.py at 1413a3c). Their AdamW, which
transformers no longer has, is torch's.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

import nbhelpers as nb
from benchmarks import speed
from benchmarks.clones_gpu import SHAPES
from nbhelpers.data.dataflow import extract_corpus
from nbhelpers.jobs.models.clones import CloneModel, PairBatch, pair_loss_sum
from nbhelpers.jobs.models.encoders import encoder_class
from nbhelpers.jobs.models.encoding import HIDDEN
from nbhelpers.jobs.models.inputs import (
    ROBERTA_TOKENS,
    SPECIAL_TOKENS,
    GraphTable,
    TokenTable,
    graph_table,
    tokenise,
    train_bpe,
)
from nbhelpers.jobs.worker import quiet_libraries

UPDATE = 64  # pairs of an optimizer step
ENCODER = 85e6  # parameters of twelve blocks of 768
RATE = 5e-5
TINY = {"n_embd": 32, "n_layer": 2, "n_head": 2, "hidden_size": 32, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "intermediate_size": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch shape: a model's, tokens of code, nodes of the data flow, published micro-batch."""

    shape: str
    seq_len: int
    nodes: int | None
    vocab: int
    micro: int


CASES = {
    "codegpt-400": Case(shape="codegpt", seq_len=400, nodes=None, vocab=50264, micro=16),
    "codegpt-1024": Case(shape="codegpt", seq_len=1024, nodes=None, vocab=50264, micro=8),
    "graphcodebert": Case(shape="graphcodebert", seq_len=400, nodes=128, vocab=50265, micro=16),
}


# ------------------------------------------------------------------------------------------------
# What all contenders of a case read: a folder of pairs, a model's folder, features.


@dataclass(slots=True)
class Inputs:
    """Functions as token ids or graphs, and the training pairs as rows of them."""

    folder: Path
    model_folder: Path
    config: Any
    table: TokenTable | GraphTable
    left: np.ndarray
    right: np.ndarray
    label: np.ndarray

    @property
    def tokens(self) -> float:
        """Mean useful tokens of a pair."""
        return float((self.table.used[self.left] + self.table.used[self.right]).mean())


def write_pairs(source: Path, folder: Path, pairs: int) -> None:
    """Write a part of a folder: some training pairs, few to validate and test, their functions."""
    folder.mkdir(parents=True, exist_ok=True)
    needed: set[str] = set()
    for name, most in (("train", pairs), ("valid", UPDATE), ("test", UPDATE)):
        lines = (source / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        lines = random.Random(3).sample(lines, min(most, len(lines)))
        needed |= {idx for line in lines for idx in line.split("\t")[:2]}
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (source / "data.jsonl").open(encoding="utf-8") as file:
        kept = [line for line in file if json.loads(line)["idx"] in needed]
    (folder / "data.jsonl").write_text("".join(kept), encoding="utf-8")


def prepare(case: Case, source: Path, out: Path, *, pairs: int, is_tiny: bool) -> Inputs:
    """Write folders of pairs and of the model; return both with the features."""
    from transformers import CONFIG_MAPPING

    folder, model_folder = (
        out / f"data-{pairs}",
        out / f"{case.shape}-{'tiny' if is_tiny else case.vocab}",
    )
    write_pairs(source, folder, pairs)
    rows = [json.loads(line) for line in (folder / "data.jsonl").open(encoding="utf-8")]
    texts, places = [row["func"] for row in rows], {row["idx"]: at for at, row in enumerate(rows)}
    is_graph = case.nodes is not None
    vocab = 600 if is_tiny else case.vocab
    tokenizer = train_bpe(
        texts,
        vocab,
        special_tokens=ROBERTA_TOKENS if is_graph else SPECIAL_TOKENS,
        collapse=not is_graph,
    )
    values = SHAPES[case.shape] | {"vocab_size": vocab}
    values |= {name: size for name, size in TINY.items() if is_tiny and name in values}
    model_folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(model_folder)
    (model_folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    how = {"seq_len": case.seq_len, "vocab_size": vocab}
    if is_graph:
        flows = extract_corpus(texts, "java", grammar_compat="maintained")
        how |= {"data_flow_length": case.nodes, "positions": config.max_position_embeddings}
        table = graph_table(flows, tokenizer, **how)
    else:
        table = tokenise(texts, tokenizer, **how)
    lines = [line.split("\t") for line in (folder / "train.txt").read_text().splitlines()]
    left, right = (np.array([places[line[side]] for line in lines]) for side in (0, 1))
    label = np.array([int(line[2]) for line in lines])
    return Inputs(folder, model_folder, config, table, left, right, label)


def new_model(inputs: Inputs) -> CloneModel:
    """Return random weights, the same at each call."""
    torch.manual_seed(3)
    config = copy.deepcopy(inputs.config)
    config._attn_implementation = "sdpa"
    if config.model_type == "gpt2":
        config.pad_token_id = None
    build, options = encoder_class(config)
    return CloneModel(build(config, **options), dropout=0.1)


# ------------------------------------------------------------------------------------------------
# The scripts' features and forward passes.


class TextPairs(Dataset):
    """CodeXGLUE's and ISSTA22's: two lists of ids at full length, a tensor of them per pair."""

    def __init__(self, inputs: Inputs, *, width: int | None) -> None:
        """Pad to `width` columns; None: not at all."""
        self.inputs, self.width = inputs, width
        lengths = inputs.table.lengths
        self.ids = [
            inputs.table.pad([row], width or int(lengths[row]))[0].tolist()
            for row in range(len(lengths))
        ]

    def __len__(self) -> int:
        return len(self.inputs.label)

    def __getitem__(self, item: int) -> tuple[Tensor, ...]:
        left, right = self.inputs.left[item], self.inputs.right[item]
        label = torch.tensor(self.inputs.label[item])
        if self.width is None:
            return torch.tensor(self.ids[left]), torch.tensor(self.ids[right]), label
        return torch.tensor(self.ids[left] + self.ids[right]), label

    def padded(self, rows: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        """Collate pairs of any length: (pairs, 2 * longest) ids, labels."""
        flat = [ids for *sides, _ in rows for ids in sides]
        pad = self.inputs.table.pad_id
        ids = torch.nn.utils.rnn.pad_sequence(flat, batch_first=True, padding_value=pad)
        return ids.view(len(rows), -1), torch.stack([label for *_, label in rows])


class GraphPairs(Dataset):
    """Microsoft's: ids, positions and a mask of each function, made anew for each pair.

    Args:
        as_lists: Both masks pass through Python lists, as in ISSTA22's script.
    """

    def __init__(self, inputs: Inputs, *, as_lists: bool) -> None:
        self.inputs, self.as_lists = inputs, as_lists
        self.functions = [self._function(row) for row in range(len(inputs.table.used))]

    def _function(self, row: int) -> dict[str, Any]:
        """Return a function as the scripts keep it: lists of numbers."""
        t = self.inputs.table
        code = t.ids[t.offsets[row] : t.offsets[row + 1]].tolist()
        nodes = slice(*t.node_offsets[row : row + 2])
        links = slice(*t.link_offsets[row : row + 2])
        count = nodes.stop - nodes.start
        rest = t.seq_len - len(code) - count
        reads: list[list[int]] = [[] for _ in range(count)]
        for at, target in zip(t.link_from[links].tolist(), t.link_to[links].tolist(), strict=True):
            reads[at].append(target)
        return {
            "ids": code + [t.unk_id] * count + [t.pad_id] * rest,
            "positions": [at + t.pad_id + 1 for at in range(len(code))]
            + [0] * count
            + [t.pad_id] * rest,
            "spans": list(
                zip(t.node_start[nodes].tolist(), t.node_end[nodes].tolist(), strict=True)
            ),
            "reads": reads,
        }

    def mask(self, function: dict[str, Any]) -> np.ndarray:
        """Return (length, length) bool: what each column may look at."""
        positions = function["positions"]
        pad, length = self.inputs.table.pad_id, self.inputs.table.seq_len
        code = sum(at > pad for at in positions)
        used = sum(at != pad for at in positions)
        sees = np.zeros((length, length), dtype=bool)
        sees[:code, :code] = True
        for at, token in enumerate(function["ids"]):
            if token in (0, 2):
                sees[at, :used] = True
        for node, (first, end) in enumerate(function["spans"], start=code):
            sees[node, first:end] = True
            sees[first:end, node] = True
        for node, targets in enumerate(function["reads"], start=code):
            for target in targets:
                sees[node, code + target] = True
        return sees

    def __len__(self) -> int:
        return len(self.inputs.label)

    def __getitem__(self, item: int) -> tuple[Tensor, ...]:
        both = [self.functions[row[item]] for row in (self.inputs.left, self.inputs.right)]
        masks = [self.mask(function) for function in both]
        made = [
            torch.tensor([function[name] for function in both]) for name in ("ids", "positions")
        ]
        if self.as_lists:
            sees = torch.tensor([mask.tolist() for mask in masks])
        else:
            sees = torch.stack([torch.tensor(mask) for mask in masks])
        return *made, sees, torch.tensor(self.inputs.label[item])


def text_logits(model: CloneModel, pad_id: int, ids: Tensor) -> Tensor:
    """Return (pairs, 2): both functions in one pass, the state of the last token that counts."""
    ids = ids.view(2 * len(ids), -1)
    is_token = ids.ne(pad_id)
    states = model.encoder(input_ids=ids, attention_mask=is_token, use_cache=False)
    last = is_token.sum(-1) - 1
    pooled = states.last_hidden_state[torch.arange(len(ids), device=ids.device), last]
    return model.classifier(pooled.reshape(len(ids) // 2, -1))


def graph_logits(
    model: CloneModel, pad_id: int, ids: Tensor, positions: Tensor, sees: Tensor
) -> Tensor:
    """Return (pairs, 2): both functions in one pass; a node is the mean of the code it sees."""
    ids, positions, sees = ids.flatten(0, 1), positions.flatten(0, 1), sees.flatten(0, 1)
    is_node, is_code = positions.eq(0), positions.gt(pad_id)
    vectors = model.encoder.embeddings.word_embeddings(ids)
    reads = (is_node[:, :, None] & is_code[:, None, :] & sees).to(vectors.dtype)
    reads = reads / (reads.sum(-1, keepdim=True) + 1e-10)
    vectors = torch.where(is_node[:, :, None], torch.bmm(reads, vectors), vectors)
    bias = torch.where(sees, 0.0, HIDDEN)[:, None]
    if torch.is_autocast_enabled(ids.device.type):
        bias = bias.to(torch.get_autocast_dtype(ids.device.type))
    states = model.encoder(inputs_embeds=vectors, attention_mask=bias, position_ids=positions)
    return model.classifier(states.last_hidden_state[:, 0].reshape(len(ids) // 2, -1))


def shortened(rows: list[tuple[Tensor, ...]], pad_id: int) -> tuple[Tensor, ...]:
    """Collate graphs, cut to the longest of the batch."""
    ids, positions, sees, labels = torch.utils.data.default_collate(rows)
    width = int(positions.ne(pad_id).sum(-1).max())
    return ids[..., :width], positions[..., :width], sees[..., :width, :width], labels


# ------------------------------------------------------------------------------------------------
# Contenders.


@dataclass(slots=True, kw_only=True)
class Loop:
    """A loop over micro-batches, an update after 64 pairs.

    Args:
        attention: transformers' name of it.
        is_half: bf16 by autocast, and a fused optimizer.
        micro: Pairs of a micro-batch.
        workers: Processes that make batches.
    """

    name: str
    inputs: Inputs
    features: Dataset
    device: torch.device
    attention: str
    micro: int
    is_half: bool = False
    workers: int = 0
    collate: Callable[..., Any] | None = None
    model: Any = field(init=False)
    _batches: Iterator[Any] | None = None
    _done: int = 0
    _optimizer: torch.optim.Optimizer | None = None

    def __post_init__(self) -> None:
        """Make the model."""
        self.model = new_model(self.inputs).to(self.device)
        self.model.encoder.set_attn_implementation(self.attention)

    def logits(self, *tensors: Tensor) -> Tensor:
        """Return (pairs, 2)."""
        compute = graph_logits if isinstance(self.inputs.table, GraphTable) else text_logits
        return compute(self.model, self.inputs.table.pad_id, *tensors)

    def loss(self, tensors: list[Tensor]) -> Tensor:
        """Return the mean cross-entropy of a micro-batch."""
        *features, labels = (x.to(self.device) for x in tensors)
        return torch.nn.functional.cross_entropy(self.logits(*features).float(), labels)

    def step(self) -> tuple[int, int]:
        """Make a micro-step; return its pairs."""
        if self._optimizer is None:
            how = {"lr": RATE, "eps": 1e-8, "weight_decay": 0.0, "fused": self.is_half or None}
            self._optimizer = torch.optim.AdamW(self.model.parameters(), **how)
            self._batches = self._endless()
        tensors = next(self._batches)
        self.model.train()
        steps = UPDATE // self.micro
        half = torch.autocast(self.device.type, torch.bfloat16) if self.is_half else nullcontext()
        with half:
            loss = self.loss(tensors) / steps
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        loss.item()
        self._done += 1
        if self._done % steps == 0:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return len(tensors[-1]), 0

    def restart(self) -> None:
        """Begin again, and make batches in this process."""
        self.workers, self._batches, self._optimizer = 0, None, None
        self.model.zero_grad()

    def close(self) -> None:
        """Let go of the model and of what makes batches."""
        self._batches = self._optimizer = self.model = None

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from DataLoader(
                self.features,
                sampler=RandomSampler(self.features),
                batch_size=self.micro,
                num_workers=self.workers,
                collate_fn=self.collate,
                drop_last=True,
            )

    def first(self, rows: int) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradients of the first pairs, without dropout, in fp32."""
        collate = self.collate or torch.utils.data.default_collate
        tensors = collate([self.features[row] for row in range(rows)])
        return gradients_of(self.model, lambda: self.loss(tensors))


def gradients_of(
    model: CloneModel, loss_of: Callable[[], Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Return a loss and its gradients, and leave none."""
    model.eval()
    model.zero_grad()
    loss = loss_of()
    loss.backward()
    pairs = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return float(loss.detach()), pairs


def own_first(inputs: Inputs, rows: int, device: torch.device) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of the first pairs as our model computes them."""
    model = new_model(inputs).to(device)
    functions = np.stack([inputs.left[:rows], inputs.right[:rows]], axis=1).reshape(-1)
    used, place = np.unique(functions, return_inverse=True)
    bucket = inputs.table.bucket(used, int(inputs.table.lengths[used].max()))
    batch = PairBatch(
        buckets=[bucket.to(lambda tensors: [x.to(device) for x in tensors])],
        place=torch.from_numpy(place).to(device),
        labels=torch.from_numpy(inputs.label[:rows]).to(device),
        weights=torch.ones(rows, device=device),
        useful_tokens=0,
        padded_tokens=0,
    )
    return gradients_of(model, lambda: pair_loss_sum(model(batch), batch) / rows)


def loops_of(
    case: Case, inputs: Inputs, device: torch.device, *, workers: int, most: int = UPDATE
) -> list[Loop]:
    """Return the other contenders of a case, with micro-batches of at most so many pairs."""
    common: dict[str, Any] = {"inputs": inputs, "device": device}
    script = common | {"attention": "eager", "micro": min(case.micro, most)}
    plain = common | {"name": "plain bf16 loop (SDPA, padded to the longest)", "micro": most}
    plain |= {"attention": "sdpa", "is_half": device.type == "cuda", "workers": workers}
    if case.nodes is None:
        texts, ragged = TextPairs(inputs, width=case.seq_len), TextPairs(inputs, width=None)
        return [
            Loop(name="CodeXGLUE's and ISSTA22's loop (fp32, eager)", features=texts, **script),
            Loop(features=ragged, collate=ragged.padded, **plain),
        ]
    graphs, lists = (GraphPairs(inputs, as_lists=as_lists) for as_lists in (False, True))
    pad = inputs.table.pad_id
    cut = lambda rows: shortened(rows, pad)  # noqa: E731
    return [
        Loop(name="Microsoft's loop (fp32, eager)", features=graphs, workers=workers, **script),
        Loop(name="ISSTA22's loop (masks through lists)", features=lists, **script),
        Loop(features=graphs, collate=cut, **plain),
    ]


def timed(loop: Loop, case_name: str, seconds: float) -> speed.Speed:
    """Time a loop for about so many seconds."""
    speed.clear()
    torch.set_float32_matmul_precision("highest")  # as the scripts leave it
    began = time.perf_counter()
    loop.step()
    speed.synchronise()
    first_s = time.perf_counter() - began
    began = time.perf_counter()
    loop.step()
    speed.synchronise()
    each_s = max(1e-3, time.perf_counter() - began)
    windows = 5 if 5 * each_s < seconds else 1
    steps = max(1, min(UPDATE // loop.micro * 8, int(seconds / windows / each_s)))
    rates = speed.timed_windows(loop.step, unit="pairs", warm_up=0, windows=windows, steps=steps)
    return speed.Speed(
        case=case_name,
        contender=loop.name,
        unit="pairs",
        rates=rates,
        peak_gib=speed.peak_gib(),
        note=f"micro-batches of {loop.micro}, {loop.workers} workers, first {first_s:.1f} s",
    )


def own(
    case: Case, name: str, inputs: Inputs, hardware: Any, out: Path, *, pairs: int, update: int
) -> tuple[speed.Speed, dict[str, Any]]:
    """Train a real run; return its speed and its result."""
    speed.clear()
    is_gpu = torch.cuda.is_available()
    over = {"model": str(inputs.model_folder), "random_weights": True, "data": str(inputs.folder)}
    over |= {"seq_len": case.seq_len, "data_flow_length": case.nodes, "train_fraction": 1.0}
    over |= {"epochs": 1, "global_batch_size": update, "per_device_train_batch_size": update}
    over |= {"logging_steps": 1, "floors": False, "bootstrap_samples": 100, "learning_rate": RATE}
    over |= {"precision": "bf16" if is_gpu else "fp32", "save_minutes": 60.0}
    over |= {"compile_layers": "on" if is_gpu else "off"}
    preset = nb.load_preset("clones", "base", hardware=hardware, overrides=over)
    run, result = speed.own_run(preset, hardware, out)
    steps = pairs // update
    # The last step is shorter; the first ones meet every length for the first time.
    warm_up, window = max(1, steps // 4), max(1, steps // 8)
    rates = speed.own_rates(run, unit="pairs", warm_up=warm_up, steps=window)
    proof = (result.get("compile") or {}).get("self_test", {})
    line = speed.Speed(
        case=name,
        contender="nbhelpers",
        unit="pairs",
        rates=rates,
        peak_gib=speed.peak_of(result),
        gradient_error=proof.get("largest_difference"),
        note=f"gradients: the worst tensor against fp32's, as plain bf16's {proof['plain']:.1e}"
        if "plain" in proof
        else "",
    )
    return line, result


def play(name: str, source: Path, out: Path, *, is_cpu: bool, seconds: float) -> list[speed.Speed]:
    """Time all contenders of a case; on a CPU, compare them."""
    case, hardware = CASES[name], nb.detect_hardware()
    update = 8 if is_cpu else UPDATE
    pairs = (4 if is_cpu else 60) * update
    inputs = prepare(case, source, out, pairs=pairs, is_tiny=is_cpu)
    device = torch.device("cpu" if is_cpu else "cuda")
    facts = {"flops_per_unit": 6 * ENCODER * inputs.tokens, "convention": "6 x 85M a useful token"}
    line, result = own(case, name, inputs, hardware, out, pairs=len(inputs.label), update=update)
    tell(line, **own_facts(result))
    lines, rows = [line], update // 2 if is_cpu else 8
    loss, gradients = own_first(inputs, rows, device)
    how = {"workers": 0, "most": rows} if is_cpu else {"workers": 4}
    for loop in loops_of(case, inputs, device, **how):
        torch.set_float32_matmul_precision("highest")
        other_loss, other = loop.first(rows)
        try:
            line = timed(loop, name, 0.1 if is_cpu else seconds)
        except RuntimeError as error:  # processes without enough shared memory, or no memory left
            print(f"{loop.name}: {error}", flush=True)
            loop.restart()
            line = timed(loop, name, seconds)
        line.loss_error = abs(other_loss - loss) / abs(loss)
        line.gradient_error = difference(gradients, other)
        lines.append(line)
        tell(line)
        loop.close()
    for line in lines:
        line.flops_per_unit, line.convention = facts["flops_per_unit"], facts["convention"]
    return lines


def own_facts(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a run of ours tells of its compiled blocks, its memory and its seconds."""
    memory = {name: result["memory"][name] for name in ("predicted_bytes", "measured_bytes")}
    phases = {p["phase"]: p["error_percent"] for p in result["memory"]["phases"]}
    return {
        "compile": result.get("compile"),
        "memory": memory | {"error_percent_by_phase": phases},
        "timing": result["timing"],
        "throughput": result["throughput"],
        "warnings": result["warnings"],
    }


def tell(line: speed.Speed, **facts: Any) -> None:
    """Print a contender's speed as a line of JSON."""
    text = {"case": line.case, "contender": line.contender, "rate": line.rate, "rates": line.rates}
    errors = {"loss_error": line.loss_error, "gradient_error": line.gradient_error}
    print(json.dumps(text | errors | {"peak_gib": line.peak_gib} | facts), flush=True)


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the norm of all differences over the norm of all."""
    gaps = torch.stack([(one[name] - other[name]).norm() for name in one])
    return float(gaps.norm() / torch.stack([x.norm() for x in one.values()]).norm())


def main(arguments: list[str] | None = None) -> Path:
    """Parse the command line, time the contenders, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=12.0, help="of each loop")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes: agreement alone")
    given = parser.parse_args(arguments)
    quiet_libraries()
    given.out.mkdir(parents=True, exist_ok=True)
    lines: list[speed.Speed] = []
    for name in given.cases:
        lines += play(name, given.data, given.out, is_cpu=given.cpu, seconds=given.seconds)
        path = speed.write(given.out, "clones", lines)  # after each case: time may run out
    return path


if __name__ == "__main__":
    main()
