"""Clone detection on function pairs: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nbhelpers.budget.formulas import BatchExtent
from nbhelpers.common.formatting import number
from nbhelpers.common.model_config import CLONES_TYPE
from nbhelpers.data import load_clone_data
from nbhelpers.data.dataflow import extract_corpus
from nbhelpers.data.pairs import CloneData, ClonePairs
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import outcome
from nbhelpers.jobs.batches import RowBatches, runs_ragged
from nbhelpers.jobs.compiling import Compiling, proof_rows, tell_proof, wants_compiling
from nbhelpers.jobs.context import Forecast, RunContext
from nbhelpers.jobs.forecast import Simulate, encoder_estimate, encoder_forecast
from nbhelpers.jobs.loop import PlainTask, listed, seed_everything
from nbhelpers.jobs.models.clones import (
    CloneModel,
    PairBatch,
    is_of_graph_script,
    pair_loss_sum,
    published_keys,
)
from nbhelpers.jobs.models.encoders import Tokeniser, build_clone_model, build_tokenizer
from nbhelpers.jobs.models.inputs import (
    GraphTable,
    TokenTable,
    graph_table,
    tokenise,
)
from nbhelpers.jobs.models.weights import raise_unlike, read_state_dict
from nbhelpers.jobs.pretraining import recalling_encoder
from nbhelpers.jobs.schedule import shared_windows
from nbhelpers.jobs.training import Training, train_task
from nbhelpers.metrics.baselines import score_floors
from nbhelpers.metrics.pairs import best_threshold, binary_scores, score_pairs
from nbhelpers.metrics.predictions import PredictionWriter, Sink
from nbhelpers.metrics.ranking import is_positive
from nbhelpers.presets.jobs import CLONES
from nbhelpers.presets.schema import ClonesSettings

# ------------------------------------------------------------------------------------------------
# Function pairs as a task of the training loop: batches, loss, validation, predictions.


PAIRS_PER_CHUNK = 8192


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run, tokenised."""

    data: CloneData
    table: TokenTable | GraphTable
    found: Tokeniser


class PairTask(PlainTask):
    """Batches, loss and validation of the pair job, as `loop.Task` wants them."""

    def __init__(
        self,
        settings: ClonesSettings,
        inputs: Inputs,
        accelerator: Any,
        model: CloneModel | None,
        *,
        gpu_tflops: float | None = None,
    ) -> None:
        """Prepare the train pairs; `model` is the bare model, None where only shapes are asked."""
        self.settings, self.data, self.table = settings, inputs.data, inputs.table
        self.vocab = inputs.found.config.vocab_size
        self.accelerator, self.raw = accelerator, model
        self.pairs = inputs.data.splits.get("train")
        is_masked = inputs.found.config.model_type != "gpt2"
        self.batches = RowBatches(
            settings,
            inputs.table,
            accelerator,
            min_tokens=min_bucket_tokens(gpu_tflops, is_masked=is_masked),
        )
        self._multiple = self.batches.multiple
        self._ready: tuple[bytes, PairBatch] | None = None
        self.compiling: Compiling | None = None
        self.lay_out()
        lengths = self.batches.lengths
        self.costs = (
            lengths[self.pairs.left] + lengths[self.pairs.right]
            if self.pairs is not None
            else np.zeros(0, dtype=np.int64)
        )

    def lay_out(self) -> None:
        """Make batches in one bucket where nothing is padded, else in buckets of like length."""
        is_text = isinstance(self.table, TokenTable)
        can_lay = is_text or (self.raw is not None and self.raw.masks_ragged)
        self.batches.is_ragged = can_lay and runs_ragged(self.settings, self.accelerator)
        # Triton would compile the kernels of a mask for other widths too.
        is_masked = self.batches.is_ragged and not is_text
        self.batches.multiple = 16 if is_masked else self._multiple

    def compile_blocks(self, is_on: bool) -> None:
        """Train with the model's compiled form, or its plain one."""
        self.raw.compile_blocks(is_on)
        self.lay_out()

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step: any, or pairs that share functions."""
        s = self.settings
        if s.pair_order == "random":
            return super().global_batches(epoch)
        sides, seed = (self.pairs.left, self.pairs.right), s.seed
        return shared_windows(*sides, s.global_batch_size, seed=seed, epoch=epoch)

    def start_epoch(self, epoch: int) -> bool:
        """Compile, or fall back, before the first step, where that is wanted."""
        if self.compiling is not None:
            rows = proof_rows(self.costs)
            self.compiling.prove_once(lambda: self.raw.states(self.batch(rows).buckets))
        return super().start_epoch(epoch)

    def prepare(self, rows: np.ndarray) -> None:
        """Make a micro-batch that `batch` will be asked for next, and send it on its way."""
        self._ready = rows.tobytes(), self.batch(rows)

    def batch(self, rows: np.ndarray) -> PairBatch:
        """Return the pairs of these rows on the device."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == rows.tobytes():
            return ready[1]
        weight = 1.0 if len(rows) else 0.0
        # A rank without rows still runs forward and backward: gradients meet in one collective.
        rows = rows if len(rows) else np.array([int(np.argmin(self.costs))])
        functions = np.stack([self.pairs.left[rows], self.pairs.right[rows]], axis=1).reshape(-1)
        labels = torch.from_numpy(self.pairs.label[rows].astype(np.int64))
        used, inverse = np.unique(functions, return_inverse=True)  # each is computed once
        buckets, place, padded = self.batches.buckets(used)
        place, labels = self.batches.put_all([place[inverse], labels])
        return PairBatch(
            buckets=buckets,
            place=place,
            labels=labels,
            weights=torch.full((len(rows),), weight, device=self.accelerator.device),
            useful_tokens=int(self.table.used[used].sum()) if weight else 0,
            padded_tokens=padded,
        )

    def extent(self, rows: np.ndarray) -> BatchExtent:
        """Return how large the micro-batch of these rows is when it is computed."""
        return self.batches.extent(np.union1d(self.pairs.left[rows], self.pairs.right[rows]))

    def largest_scored(self) -> tuple[np.ndarray, int]:
        """Return the functions of the split whose scoring needs most, longest first; its pairs."""
        splits, s = self.data.splits, self.settings
        drawn = _fixed_draw(splits["valid"], s.max_eval_pairs, s.seed)
        largest: tuple[tuple[int, int], np.ndarray, int] = ((-1, 0), np.zeros(0, dtype=np.int64), 0)
        for pairs in (drawn, *(pairs for name, pairs in splits.items() if name != "train")):
            used = np.unique(np.concatenate([pairs.left, pairs.right]))
            used = used[self.batches.longest_first(used)]
            encoded = self.batches.lengths[used[: 2 * s.per_device_eval_batch_size]]
            size = int(encoded.sum()), len(used)
            largest = max(largest, (size, used, len(pairs.label)), key=lambda item: item[0])
        return largest[1:]

    def loss_sum(self, model: Any, batch: PairBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross-entropy of the micro-batch, also to be told."""
        loss = pair_loss_sum(model(batch), batch)
        return loss, loss.detach()[None]

    def evaluate(self, step: int) -> dict[str, float]:
        """Return scores on the (fixed draw of the) validation pairs at their best threshold."""
        pairs = _fixed_draw(
            self.data.splits["valid"], self.settings.max_eval_pairs, self.settings.seed
        )
        p_clone, _ = self.predict(pairs)
        threshold = best_threshold(pairs.label, p_clone)
        scores = binary_scores(pairs.label, p_clone, threshold)
        metric_names = ("precision", "recall", "f1", "f1_macro", "roc_auc", "pr_auc")
        return {"threshold": threshold} | {
            k: scores[k] for k in metric_names if scores[k] is not None
        }

    def predict(
        self,
        pairs: ClonePairs,
        report: Callable[[int, int], None] = lambda done, total: None,
        sink: Sink | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return P(clone) of each pair in file order, as given and with the functions swapped.

        Each distinct function is encoded once. Every rank encodes its share of the same batches, so
        the numbers do not depend on how many ranks there are. `sink`, where there is one, takes the
        scores as they come.

        Returns:
            Two (pairs,) arrays, the same on every rank.
        """
        self.raw.eval()
        used, inverse = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
        with torch.no_grad():
            states = self._encode_all(used, report)
            left, right = inverse[: len(pairs.left)], inverse[len(pairs.left) :]
            p_given, p_swapped = self._score(states, left, right, sink)
        self.raw.train()
        return p_given, p_swapped

    def _encode_all(self, used: np.ndarray, report: Callable[[int, int], None]) -> torch.Tensor:
        """Return (len(used), hidden), the same on every rank."""
        head = self.raw.classifier.out_proj

        def encode(rows: np.ndarray) -> torch.Tensor:
            with self.accelerator.autocast():
                return self.raw.encode(self.batches.bucket(rows))

        zeros = torch.zeros(
            len(used), head.in_features, device=self.accelerator.device, dtype=head.weight.dtype
        )
        size = 2 * self.settings.per_device_eval_batch_size
        return self.batches.score(used, size, encode, outputs=zeros, report=report)

    def _score(
        self, states: torch.Tensor, left: np.ndarray, right: np.ndarray, sink: Sink | None
    ) -> np.ndarray:
        """Return (2, pairs) P(clone), as given and swapped; each rank has one chunk of a round."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = slice(rank * PAIRS_PER_CHUNK, (rank + 1) * PAIRS_PER_CHUNK)
        parts = []
        for start in range(0, len(left), PAIRS_PER_CHUNK * world):
            rows = slice(start, start + PAIRS_PER_CHUNK * world)
            both = torch.zeros(2, len(left[rows]), device=states.device, dtype=states.dtype)
            a, b = (torch.from_numpy(side[rows][mine]).to(states.device) for side in (left, right))
            for order, (one, two) in enumerate(((a, b), (b, a))):
                logits = self.raw.classifier(torch.cat([states[one], states[two]], dim=1))
                both[order, mine] = logits.softmax(-1)[:, 1]
            parts.append(self.accelerator.reduce(both, "sum").cpu().numpy())
            if sink is not None:
                sink(start, *parts[-1])
        return np.concatenate(parts, axis=1)

    def describe(self, rows: np.ndarray) -> str:
        """Name pairs by line number and ids."""
        ids, shown = self.data.ids, rows[:16]
        names = [
            f"{row + 1} ({ids[self.pairs.left[row]]}, {ids[self.pairs.right[row]]})"
            for row in shown.tolist()
        ]
        return listed("train pairs", names, len(rows))


def min_bucket_tokens(gpu_tflops: float | None, *, is_masked: bool) -> int:
    """Return how many tokens a length bucket should hold, so that kernels outlast their launches.

    Launching a block's kernels costs the same on every card; computing its tokens does not.

    Args:
        is_masked: Attention with a mask takes twice the time, so its padding costs more.

    Source: measured on an H100 (989 TFLOP/s), where causal buckets of 8,192 tokens left it half
    idle, and on an H200 with GraphCodeBERT's mask: 4,000 were faster than 15,800 and 1,500.
    """
    return int((4 if is_masked else 16) * gpu_tflops) if gpu_tflops else 4096


def _fixed_draw(pairs: ClonePairs, limit: int | None, seed: int) -> ClonePairs:
    """Return the same `limit` pairs at every evaluation, in file order."""
    if limit is None or len(pairs.label) <= limit:
        return pairs
    rows = np.sort(np.random.default_rng(seed).choice(len(pairs.label), limit, replace=False))
    return ClonePairs(left=pairs.left[rows], right=pairs.right[rows], label=pairs.label[rows])


def load_weights(model: CloneModel, state: dict[str, torch.Tensor], source: str) -> None:
    """Load a checkpoint of ours, or of CodeXGLUE's or GraphCodeBERT's script.

    Raises:
        ConfigError: There is no head, or keys or shapes do not belong; the first are named.
    """
    own = model.state_dict()
    state = published_keys(state, set(own))
    if not any(key.startswith("classifier.") for key in state):
        raise ConfigError(
            f"{source} holds {len(state)} tensors, but no head (classifier.dense and .out_proj): "
            "it is no trained clone detector of this kind.",
            fix="give the file that the script saved after training, or train: give the folder of "
            "a base model to --model",
        )
    raise_unlike(model, state, source)
    model.load_state_dict(state)


def forecast(context: RunContext, inputs: Inputs, simulate: Simulate) -> Forecast:
    """Return the simulated memory of the largest batch of pairs."""
    task = _task(context, inputs, None)
    is_on = wants_compiling(context, _learnt_tokens(context, task))
    compiled = partial(simulate, compile_layers="on" if is_on else "off")
    forecast = encoder_forecast(context, task, compiled, batch_shapes)
    return replace(forecast, is_compiled=is_on)


def batch_shapes(
    task: PairTask, parts: list[np.ndarray], *, is_scored: bool = True
) -> dict[str, Any]:
    """Return what decides the memory of micro-batches and of scoring.

    Args:
        parts: Pairs of each micro-batch.
        is_scored: Whether pairs are scored in this run.

    Returns:
        {vocab, functions, pairs, parts, scored, scored_functions, scored_pairs}: tokens of code and
        nodes of each function of the micro-batches; their pairs; how many pairs each has; the
        functions that are encoded at once when a split is scored, and how many functions and pairs
        that split has.
    """
    rows = np.concatenate(parts)
    sides = np.stack([task.pairs.left[rows], task.pairs.right[rows]], axis=1)
    used, numbers = np.unique(sides, return_inverse=True)
    functions, scored_pairs = task.largest_scored() if is_scored else (used[:0], 0)
    return {
        "vocab": task.vocab,
        "functions": task.table.sizes(used),
        "pairs": numbers.reshape(-1, 2).tolist(),
        "parts": [len(part) for part in parts],
        "scored": task.table.sizes(functions[: 2 * task.settings.per_device_eval_batch_size]),
        "scored_functions": len(functions),
        "scored_pairs": scored_pairs,
    }


# ------------------------------------------------------------------------------------------------
# Scores of the pair job: predictions written while pairs are scored, then everything told of them.
#
# Valid comes first, so that its threshold is known when the first test pair is written. An
# evaluation needs test alone. With valid in the data the threshold is chosen on it (without, it is
# 0.5 and the result says so); with train, the result also parts the pairs by what was seen in
# training, and the floors have something to learn from.


Predicted = dict[str, tuple[np.ndarray, np.ndarray]]  # split -> P(clone) as given and swapped


def score_splits(
    context: RunContext,
    inputs: Inputs,
    task: PairTask,
    model: CloneModel,
    training: Training | None,
) -> None:
    """Score valid and test, write predictions and the result; all ranks encode, rank 0 writes."""
    predicted, threshold = _predict(context, inputs.data, task)
    ranks = outcome.gather_memory(context, training)
    if not context.is_main:
        return
    context.clock.phase("scores")
    scores = _scores(context, inputs.data, predicted, threshold["value"])
    if context.settings.floors:
        _add_floors(context, inputs.data, predicted, threshold["value"], scores)
    parts = {
        "data": inputs.data.to_dict() | {"truncated_functions": inputs.table.truncated},
        "model": outcome.model_facts(context, inputs.found, model)
        | {"data_flow": _data_flow(context.settings, inputs.table)},
        "threshold": threshold,
        "scores": scores,
        "throughput": _throughput(training, task),
    }
    if training is not None and training.compiled is not None:
        parts["compile"] = training.compiled
    outcome.write_result(context, training, ranks, parts)


def _predict(
    context: RunContext, data: CloneData, task: PairTask
) -> tuple[Predicted, dict[str, Any]]:
    """Score every split but train, valid first; lines of test pairs are written as they come."""
    names = sorted((n for n in data.splits if n != "train"), key=lambda name: name != "valid")
    predicted: Predicted = {}
    threshold = _threshold(context, data, predicted) if "valid" not in names else {}
    path, expected = context.run.predictions_path, 0
    with PredictionWriter(path) if context.is_main else nullcontext() as writer:
        for name in names:
            pairs, sink = data.splits[name], None
            if writer is not None and name.startswith("test"):
                sink = prediction_sink(writer, data, name, threshold["value"])
                expected += len(pairs)
            report = context.progress(f"evaluate {name}")
            predicted[name] = task.predict(pairs, report, sink)
            threshold = threshold or _threshold(context, data, predicted)
        assert writer is None or writer.n_written == expected, "a pair was left out or told twice"
    return predicted, threshold


def prediction_sink(
    writer: PredictionWriter, data: CloneData, split: str, threshold: float
) -> Sink:
    """Return what takes the scores of a split in file order and writes a line per pair."""
    pairs, ids = data.splits[split], data.ids

    def write(start: int, p_given: np.ndarray, p_swapped: np.ndarray) -> None:
        rows = slice(start, start + len(p_given))
        writer.write_chunk(
            split=split,
            start=start,
            id1=[ids[function] for function in pairs.left[rows].tolist()],
            id2=[ids[function] for function in pairs.right[rows].tolist()],
            label=pairs.label[rows],
            p=p_given,
            p_reversed=p_swapped,
            prediction=is_positive(p_given, threshold),
        )

    return write


def _threshold(context: RunContext, data: CloneData, predicted: Predicted) -> dict[str, Any]:
    """Choose the threshold on valid; test never takes part."""
    if "valid" in predicted:
        value = best_threshold(data.splits["valid"].label, predicted["valid"][0])
        return {"value": float(value), "chosen_on": "valid", "criterion": "f1"}
    context.warn("There are no valid pairs: the threshold is 0.5, not a chosen one.")
    return {"value": 0.5, "chosen_on": "nothing", "criterion": "fixed"}


def _scores(
    context: RunContext, data: CloneData, predicted: Predicted, threshold: float
) -> dict[str, Any]:
    s, scores = context.settings, {}
    for name, (p_given, p_swapped) in predicted.items():
        pairs = data.splits[name]
        scores[name] = score_pairs(
            pairs.left,
            pairs.right,
            pairs.label,
            p_given,
            p_swapped,
            threshold,
            seen=data.seen_members(name) if "train" in data.splits else None,
            priors=dict(s.priors),
            bootstrap_samples=s.bootstrap_samples,
            seed=s.seed,
        )
    for name in sorted(scores, key=lambda name: name == "test"):  # last: what progress shows
        context.emit("eval", step=-1, split=name, scores=scores[name]["orders"]["given"])
    return scores


def _add_floors(
    context: RunContext,
    data: CloneData,
    predicted: Predicted,
    threshold: float,
    scores: dict[str, Any],
) -> None:
    if "train" not in data.splits or "valid" not in data.splits:
        context.warn("The baselines need train and valid pairs and were left out.")
        return
    context.clock.phase("floors")
    baselines = score_floors(
        data.functions,
        data.splits,
        seed=context.settings.seed,
        bootstrap_samples=context.settings.bootstrap_samples,
        model={name: (p_given, threshold) for name, (p_given, _) in predicted.items()},
    )
    for name, split_baselines in baselines.items():
        scores[name]["floors"] = split_baselines


def _data_flow(settings: Any, table: Any) -> dict[str, Any] | None:
    """Return what became of the data flow; None where the code is read as plain text."""
    if settings.data_flow_length is None:
        return None
    nodes = np.diff(table.node_offsets)
    return {
        "data_flow_length": settings.data_flow_length,
        "grammar_compat": settings.grammar_compat,
        "mean_nodes": float(nodes.mean()) if len(nodes) else 0.0,
        "functions_without_nodes": int((nodes == 0).sum()),
    }


def _throughput(training: Training | None, task: PairTask) -> dict[str, float]:
    if training is None or not training.state.examples:
        return {}
    # With every function of every pair padded to seq_len, as the legacy script does.
    fixed = float(task.costs.mean()) / (2 * task.table.seq_len)
    return outcome.throughput(training.state) | {"fixed_padding_useful_share": fixed}


# ------------------------------------------------------------------------------------------------
# Clone detection on function pairs: check, build_data, build_model, train, evaluate.


LANGUAGE = "java"  # of BigCloneBench
HEAD = 1  # a stream of random numbers of its own


def check(settings: ClonesSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    problems = []
    if settings.pretrain_steps and settings.model not in CLONES.models.embedded:
        problems.append("pretrain_steps is for the smoke models only; set it to 0")
    return problems


def build_data(context: RunContext) -> Inputs:
    """Read the pairs and tokenise each distinct function once."""
    s = context.settings
    data = load_clone_data(
        s.data,
        revision=s.data_revision,
        on_bad_rows=s.on_bad_rows,
        train_fraction=s.train_fraction,
        max_train_samples=s.max_train_samples,
        seed=s.seed,
        require=("test",) if context.checkpoint else ("train", "valid", "test"),
    )
    context.warn_all(data.problems.warnings())
    tokeniser = build_tokenizer(s, [data.functions[row] for row in train_functions(data)])
    build = _text_table if s.data_flow_length is None else _graph_table
    table = build(context, data, tokeniser)
    if table.truncated:
        share = table.truncated / len(data.functions)
        verb = "is" if table.truncated == 1 else "are"
        context.warn(
            f"{number(table.truncated, 'function')} ({share:.1%}) {verb} longer than "
            f"seq_len={s.seq_len} and {verb} cut."
        )
    return Inputs(data=data, table=table, found=tokeniser)


def _text_table(context: RunContext, data: CloneData, tokeniser: Tokeniser) -> TokenTable:
    return tokenise(
        data.functions,
        tokeniser.tokenizer,
        seq_len=context.settings.seq_len,
        vocab_size=tokeniser.config.vocab_size,
        report=context.progress("tokenise"),
    )


def _graph_table(context: RunContext, data: CloneData, tokeniser: Tokeniser) -> GraphTable:
    s = context.settings
    flows = extract_corpus(
        data.functions,
        LANGUAGE,
        grammar_compat=s.grammar_compat,
        report=context.progress("data flow"),
    )
    if flows.problems:
        index, reason = next(iter(sorted(flows.problems.items())))
        context.warn(
            f"{len(flows.problems)} of {len(flows)} functions have no data flow or one that the "
            f"parser had to guess; the first is {data.ids[index]}: {reason.rstrip('.')}."
        )
    return graph_table(
        flows,
        tokeniser.tokenizer,
        seq_len=s.seq_len,
        data_flow_length=s.data_flow_length,
        positions=tokeniser.config.max_position_embeddings,
        vocab_size=tokeniser.config.vocab_size,
    )


def train_functions(data: CloneData) -> np.ndarray:
    """Return the functions of the train pairs, ascending; without train pairs, none."""
    pairs = data.splits.get("train")
    if pairs is None:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([pairs.left, pairs.right]))


def build_model(context: RunContext, inputs: Inputs) -> CloneModel:
    """Return the model in fp32 on the CPU; the caller seeds before."""

    def pretrain(config: Any) -> Any:
        encoder = recalling_encoder(
            config,
            inputs.table,
            train_functions(inputs.data),
            steps=context.settings.pretrain_steps,
            seed=context.settings.seed,
            report=context.pretraining(),
        )
        # The head must start the same whether the encoder was trained just now or cached.
        seed_everything(context.settings.seed, HEAD)
        return encoder

    model = build_clone_model(context.settings, inputs.found, pretrain=pretrain)
    if context.checkpoint:
        state = read_state_dict(context.checkpoint)
        load_weights(model, state, str(context.checkpoint))
        if context.settings.data_flow_length is None and is_of_graph_script(state):
            context.warn(
                "The weights have the names of GraphCodeBERT's script, which reads data flow, and "
                "this run reads plain text: its scores are then not that model's. If it was "
                "trained there, set data_flow_length, such as 128."
            )
    return model


def train(context: RunContext, inputs: Inputs, model: CloneModel) -> Training:
    """Train on the pairs; the model ends as the checkpoint with the best F1 on valid."""
    model.to(context.accelerator.device)  # where its blocks are compiled and proven
    task = _task(context, inputs, model)
    if model.can_compile and wants_compiling(context, _learnt_tokens(context, task)):
        tell = partial(tell_proof, context)
        task.compiling = Compiling(model, task.compile_blocks, context.accelerator, tell)
    training = train_task(
        context,
        task,
        model,
        predict=lambda steps: encoder_estimate(context, task, steps),
        save_files=lambda folder: inputs.found.save(folder, CLONES_TYPE),
    )
    if task.compiling is not None:
        training.compiled = task.compiling.facts()
        training.model = {"compiled": training.compiled["is_on"]}
    task.compile_blocks(False)
    return training


def _learnt_tokens(context: RunContext, task: PairTask) -> int:
    """Return the tokens of all epochs, each pair's functions counted."""
    return int(task.costs.sum()) * context.settings.epochs


def _task(context: RunContext, inputs: Inputs, model: CloneModel | None) -> PairTask:
    tflops = context.gpu_tflops
    return PairTask(context.settings, inputs, context.accelerator, model, gpu_tflops=tflops)


def evaluate(
    context: RunContext, inputs: Inputs, model: CloneModel, training: Training | None
) -> None:
    """Score valid and test, write predictions and the result; all ranks encode, rank 0 writes."""
    score_splits(context, inputs, _task(context, inputs, model), model, training)
