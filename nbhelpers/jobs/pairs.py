"""Function pairs as a task of the training loop: batches, loss, validation, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nbhelpers.data.pairs import CloneData, ClonePairs
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.loop import PlainTask
from nbhelpers.jobs.schedule import micro_batches
from nbhelpers.ledger import BatchExtent, is_packed, ledger
from nbhelpers.memory import MemoryBudget
from nbhelpers.metrics import best_threshold, binary_scores
from nbhelpers.models.buckets import Bucket
from nbhelpers.models.clones import CloneModel, PairBatch, pair_loss_sum, published_keys
from nbhelpers.models.encoders import Tokeniser
from nbhelpers.models.graph_inputs import GraphTable
from nbhelpers.models.inputs import TokenTable, length_buckets
from nbhelpers.models.weights import raise_unlike
from nbhelpers.predictions import Sink
from nbhelpers.schema import ClonesSettings
from nbhelpers.shapes import find_shape

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
        model: CloneModel,
        *,
        gpu_tflops: float | None = None,
    ) -> None:
        """Prepare the train pairs; `model` is the bare model, for evaluation."""
        self.settings, self.data, self.table = settings, inputs.data, inputs.table
        self.accelerator, self.raw = accelerator, model
        self.pairs = inputs.data.splits.get("train")
        lengths = inputs.table.lengths
        self.lengths, self.used = lengths, inputs.table.used
        self.costs = (
            lengths[self.pairs.left] + lengths[self.pairs.right]
            if self.pairs is not None
            else np.zeros(0, dtype=np.int64)
        )
        cuda = accelerator.device.type == "cuda"
        is_masked = model.encoder.config.model_type != "gpt2"
        least = min_bucket_tokens(gpu_tflops, is_masked=is_masked) if cuda else 0
        self._bucket = {"ratio": 0.8, "min_tokens": least}
        self._multiple = 8 if cuda else 1

    def batch(self, rows: np.ndarray) -> PairBatch:
        """Return the pairs of these rows on the device."""
        weight = 1.0 if len(rows) else 0.0
        # A rank without rows still runs forward and backward: gradients meet in one collective.
        rows = rows if len(rows) else np.array([int(np.argmin(self.costs))])
        functions = np.stack([self.pairs.left[rows], self.pairs.right[rows]], axis=1).reshape(-1)
        labels = torch.from_numpy(self.pairs.label[rows].astype(np.int64))
        buckets, place, useful, padded = self._buckets(functions)
        return PairBatch(
            buckets=[bucket.to(self._put) for bucket in buckets],
            place=self._put(place),
            labels=self._put(labels),
            weights=torch.full((len(rows),), weight, device=self.accelerator.device),
            useful_tokens=useful if weight else 0,
            padded_tokens=padded,
        )

    def _groups(self, lengths: np.ndarray) -> list[np.ndarray]:
        if self.settings.padding == "fixed":
            return [np.arange(len(lengths))]
        return length_buckets(lengths, **self._bucket)

    def extent(self, rows: np.ndarray) -> BatchExtent:
        """Return how large the micro-batch of these rows is when it is computed."""
        lengths = self.lengths[np.union1d(self.pairs.left[rows], self.pairs.right[rows])]
        return self._extent(lengths, self._groups(lengths))

    def scoring_extents(self) -> tuple[BatchExtent, BatchExtent]:
        """Return the largest batch of functions scored during training, and at its end."""
        splits = self.data.splits
        drawn = _fixed_draw(splits["valid"], self.settings.max_eval_pairs, self.settings.seed)
        rest = [pairs for name, pairs in splits.items() if name != "train"]
        return self._scored([drawn]), self._scored(rest)

    def _scored(self, splits: list[ClonePairs]) -> BatchExtent:
        used = np.unique(np.concatenate([side for p in splits for side in (p.left, p.right)]))
        rows = 2 * self.settings.per_device_eval_batch_size
        lengths = -np.sort(-self.lengths[used])[:rows]
        return self._extent(lengths, [np.arange(len(lengths))])

    def _extent(self, lengths: np.ndarray, groups: list[np.ndarray]) -> BatchExtent:
        sizes = [(len(g), self._width(int(lengths[g].max()))) for g in groups]
        padded = sum(n * width for n, width in sizes)
        tokens, last = padded, sizes[-1][0] * sizes[-1][1]
        if is_packed(self.settings):
            tokens = last = int(lengths.sum())
        return BatchExtent(
            tokens=tokens,
            padded_tokens=padded,
            squares=sum(n * width**2 for n, width in sizes),
            last_tokens=last,
        )

    def _buckets(self, functions: np.ndarray) -> tuple[list[Bucket], Any, int, int]:
        """Put each distinct function of the micro-batch into a bucket once."""
        used, inverse = np.unique(functions, return_inverse=True)
        lengths = self.lengths[used]
        groups = self._groups(lengths)
        buckets, padded = [], 0
        for group in groups:
            width = self._width(int(lengths[group].max()))
            buckets.append(self.table.bucket(used[group], width))
            padded += width * len(group)
        row_of = np.empty(len(used), dtype=np.int64)
        row_of[np.concatenate(groups)] = np.arange(len(used))
        useful = int(self.used[used].sum())
        return buckets, torch.from_numpy(row_of[inverse]), useful, padded

    def _width(self, longest: int) -> int:
        if self.settings.padding == "fixed":
            return self.table.seq_len
        return min(-(-longest // self._multiple) * self._multiple, self.table.seq_len)

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.accelerator.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.accelerator.device, non_blocking=True)

    def loss_sum(self, model: Any, batch: PairBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross-entropy of the micro-batch, also to be told."""
        loss = pair_loss_sum(model(batch), batch)
        return loss, loss.detach()[None]

    def evaluate(self, step: int) -> dict[str, float]:
        """Return scores on the (fixed draw of the) validation pairs at their best threshold."""
        pairs = _fixed_draw(
            self.data.splits["valid"], self.settings.max_eval_pairs, self.settings.seed
        )
        given, _ = self.predict(pairs)
        threshold = best_threshold(pairs.label, given)
        scores = binary_scores(pairs.label, given, threshold)
        kept = ("precision", "recall", "f1", "f1_macro", "roc_auc", "pr_auc")
        return {"threshold": threshold} | {k: scores[k] for k in kept if scores[k] is not None}

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
            given, swapped = self._score(states, left, right, sink)
        self.raw.train()
        return given, swapped

    def _encode_all(self, used: np.ndarray, report: Callable[[int, int], None]) -> torch.Tensor:
        """Return (len(used), hidden): each rank fills its batches, the sum joins them."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        device, size = self.accelerator.device, 2 * self.settings.per_device_eval_batch_size
        head = self.raw.classifier.out_proj
        states = torch.zeros(len(used), head.in_features, device=device, dtype=head.weight.dtype)
        order = np.argsort(-self.lengths[used], kind="stable")
        starts = range(0, len(order), size)
        for number, start in enumerate(starts):
            if number % world != rank:
                continue
            rows = order[start : start + size]
            lengths = self.lengths[used[rows]]
            bucket = self.table.bucket(used[rows], self._width(int(lengths.max())))
            with self.accelerator.autocast():
                found = self.raw.encode(bucket.to(self._put))
            states[torch.from_numpy(rows).to(device)] = found.to(states.dtype)
            report(min(start + size, len(order)), len(order))
        return self.accelerator.reduce(states, "sum")

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
        more = f" and {len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
        return "train pairs " + ", ".join(names) + more


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


def largest_batch_budget(
    context: RunContext, task: PairTask, windows: list[np.ndarray]
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch, now that the lengths are known.

    The budget before the run takes every function as long as `seq_len`; this one is what the
    measured peak is compared with.
    """
    shape, s, plan = find_shape(context.settings), context.settings, context.plan
    if shape is None or not windows:
        return None
    largest = largest_extent(context, task.costs, windows, task.extent)
    extents = {"extent": largest, "scoring": task.scoring_extents()}
    lines = ledger(s, plan, shape, precision=context.precision, **extents)
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())


def largest_extent(
    context: RunContext,
    costs: np.ndarray,
    windows: list[np.ndarray],
    extent: Callable[[np.ndarray], BatchExtent],
) -> BatchExtent:
    """Return the extent of this rank's largest micro-batch in some optimizer steps.

    Args:
        costs: Of every row, as `micro_batches` takes them.
        extent: Of the rows of a micro-batch.
    """
    plan = context.plan
    largest = BatchExtent(tokens=0, padded_tokens=0, squares=0, last_tokens=0)
    for window in windows:
        for rows in micro_batches(
            window,
            costs,
            rank=context.rank,
            world_size=plan.world_size,
            per_device=plan.per_device_train_batch_size,
        ):
            if len(rows):
                largest = max(largest, extent(rows), key=lambda x: (x.tokens, x.squares))
    return largest
