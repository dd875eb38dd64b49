"""Programs as a task of the training loop: global batches by task, two losses, validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nbhelpers.budget.formulas import BatchExtent
from nbhelpers.jobs.batches import RowBatches, runs_ragged
from nbhelpers.jobs.compiling import Compiling, proof_rows
from nbhelpers.jobs.detector_inputs import ABSENT, Inputs
from nbhelpers.jobs.loop import PlainTask, listed
from nbhelpers.jobs.models.contrastive import anchors, cached_gradient
from nbhelpers.jobs.models.detector import DetectorModel, ProgramBatch, class_weights, label_loss
from nbhelpers.jobs.models.encoding import wide
from nbhelpers.jobs.models.inputs import TokenTable
from nbhelpers.metrics.detection import task_groups, threshold_at_fpr
from nbhelpers.metrics.ranking import Ranking
from nbhelpers.metrics.retrieval import rank_queries
from nbhelpers.presets.schema import DetectorSettings

# ------------------------------------------------------------------------------------------------
# Rows of the token table as batches on the device, and the scores of many rows.


MIN_BUCKET_TOKENS = 4096


class Batches(RowBatches):
    """Makes micro-batches of programs and scores rows."""

    def __init__(self, settings: DetectorSettings, table: TokenTable, accelerator: Any) -> None:
        """Prepare for this device."""
        super().__init__(
            settings,
            table,
            accelerator,
            min_tokens=MIN_BUCKET_TOKENS,
            is_ragged=runs_ragged(settings, accelerator),
        )

    def make(
        self, rows: np.ndarray, *, labels: np.ndarray, weights: np.ndarray, positions: np.ndarray
    ) -> ProgramBatch:
        """Return table rows on the device, each in a bucket of its length."""
        buckets, place, padded = self.buckets(rows)
        useful = int(self.lengths[rows].sum())
        place, at, is_ai, weight = self.put_all(
            [
                place,
                torch.from_numpy(positions.astype(np.int64)),
                torch.from_numpy((labels == 1).astype(np.float32)),
                torch.from_numpy(weights.astype(np.float32)),
            ]
        )
        return ProgramBatch(
            buckets=buckets,
            place=place,
            labels=is_ai,
            weights=weight,
            positions=at,
            useful_tokens=useful if len(positions) else 0,
            padded_tokens=padded,
        )

    def predict(
        self,
        model: DetectorModel,
        rows: np.ndarray,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows,) logits and (rows, size) unit vectors, the same on every rank.

        Without a classifier the logits are NaN.
        """

        def logit_and_vector(part: np.ndarray) -> torch.Tensor:
            bucket = self.bucket(part)
            with self.accelerator.autocast():
                states = model.states([bucket])
                logits, vectors = model.logits(states), model.project(states)
            if logits is None:
                logits = vectors.new_full((len(part),), float("nan"))
            return torch.cat([logits[:, None], vectors], dim=1)

        was_training = model.training
        model.eval()
        with torch.no_grad():
            size = self.settings.per_device_eval_batch_size
            outputs = self.score(rows, size, logit_and_vector, report=report)
        model.train(was_training)
        if outputs is None:
            return np.zeros(0), np.zeros((0, 1))
        values = outputs.cpu().numpy()
        return values[:, 0], values[:, 1:]

    def states(self, model: DetectorModel, rows: np.ndarray) -> torch.Tensor:
        """Return (rows, hidden) without dropout and gradients."""
        was_training = model.training
        model.eval()
        bucket = self.bucket(rows)
        with torch.no_grad(), self.accelerator.autocast():
            program_states = model.states([bucket])
        model.train(was_training)
        return program_states


# ------------------------------------------------------------------------------------------------
# Programs as a task of the training loop: global batches by task, two losses, validation.


STATES = 512  # programs whose states say how the heads' input is scaled


class DetectorTask(PlainTask):
    """Batches, losses and validation of the detector, as `loop.Task` wants them.

    A row that a global batch names is `form * examples + example`: which form of a program is read,
    as it is (form 0) or edited, is drawn with it, so that it is the same however it is split.
    """

    def __init__(
        self,
        settings: DetectorSettings,
        inputs: Inputs,
        accelerator: Any,
        model: DetectorModel | None,
    ) -> None:
        """Prepare the train rows; `model` is the bare model, None where only shapes are asked."""
        self.settings, self.inputs, self.raw = settings, inputs, model
        self.accelerator = accelerator
        self.batches = Batches(settings, inputs.table, accelerator)
        train = inputs.data.splits.get("train", np.zeros(0, dtype=np.int64))
        self._train = train
        plain = inputs.rows[train]
        self.forms = np.stack([plain, *inputs.forms.values()])  # (1 + edits, examples)
        self._has_form = self.forms != ABSENT
        self.forms = np.where(self._has_form, self.forms, plain)
        self.costs = inputs.table.lengths[self.forms.reshape(-1)]
        self.labels = inputs.labels("train") if len(train) else np.zeros(0, dtype=np.int64)
        rows = [inputs.data.rows[row] for row in train]
        self.tasks = task_groups([row.task for row in rows], len(rows))
        self._languages = task_groups([row.language or "?" for row in rows], len(rows))
        balanced = settings.class_weights == "balanced"
        groups = [f"{row.source}\0{row.language}" if balanced else "" for row in rows]
        self._weights = class_weights(self.labels, groups) if balanced else self.labels >= 0
        is_similar = settings.objective == "similar"
        self.selects_by = "mrr" if is_similar else "roc_auc"
        self.weight = 1.0 if is_similar else settings.contrastive_weight
        self.contrasts = settings.objective != "detect" and self.weight > 0
        self.loss_names = ("classification_loss", "contrastive_loss")
        self.first_full_step = min(settings.freeze_epochs, settings.epochs - 1) * -(
            -self.examples // settings.global_batch_size
        )
        self._batch_rows = np.zeros(0, dtype=np.int64)
        self._cached: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._groups: torch.Tensor | None = None
        self._anchors = 0
        self._is_whole = False
        self._ready: tuple[bytes, ProgramBatch] | None = None
        self.compiling: Compiling | None = None

    @property
    def examples(self) -> int:
        """Training programs of an epoch."""
        return len(self._train)

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each optimizer step: each program once, those of a task together."""
        s = self.settings
        draw = np.random.default_rng([s.seed, epoch])
        order = task_order(self.tasks, self._languages, s.members_per_task, draw)
        variants = self._drawn_forms(draw)
        rows = variants[order] * self.examples + order
        size = s.global_batch_size
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def _drawn_forms(self, draw: np.random.Generator) -> np.ndarray:
        """Return (examples,) the form in which each program is read; 0 is as it is."""
        n = self.examples
        edited = self._has_form[1:]
        if not len(edited):
            return np.zeros(n, dtype=np.int64)
        ticket = np.where(edited, draw.random(edited.shape), -1.0)
        chosen = ticket.argmax(0) + 1
        is_edited = (draw.random(n) < self.settings.augment_share) & edited.any(0)
        return np.where(is_edited, chosen, 0)

    def start_epoch(self, epoch: int) -> bool:
        """Freeze or unfreeze the encoder; True when that changed.

        It is compiled, where that is wanted, when it learns: no graph can hold parameters that do
        not.
        """
        is_frozen = epoch < self.settings.freeze_epochs
        is_changed = is_frozen != self.raw.is_frozen
        if is_changed:
            self.raw.freeze(is_frozen)
        if self.compiling is not None and not is_frozen:
            rows = self.forms[0, proof_rows(self.costs[: self.examples])]
            self.compiling.prove_once(lambda: self.raw.states(self.batches.buckets(rows)[0]))
        return is_changed

    def start_step(
        self, batch_rows: np.ndarray, micro_batches: list[np.ndarray], seed: Callable[[int], None]
    ) -> None:
        """Gather the vectors of the whole optimizer step before its micro-steps are differentiated.

        With one micro-step that happens inside it (`loss_sum`), without a second forward pass.
        """
        self._batch_rows, self._is_whole = batch_rows, len(micro_batches) == 1
        self._cached = []
        if not self.contrasts:
            return
        device = self.accelerator.device
        groups = self.tasks[self._batch_rows % self.examples]
        self._anchors = anchors(groups)
        self._groups = self.batches.put(torch.from_numpy(groups))
        if self._is_whole:
            return
        whole = torch.zeros(len(self._batch_rows), self.settings.projection_size, device=device)
        whole = whole.to(next(self.raw.parameters()).dtype)
        placed = []
        with torch.no_grad(), self.accelerator.autocast():
            for number, rows in enumerate(micro_batches):
                seed(number)
                batch = self.batch(rows)
                _, vectors = self.raw(batch)
                placed.append(batch.positions)
                whole[batch.positions] = wide(vectors)[: len(batch.positions)]
        gradient, losses = self._differentiated(whole)
        self._cached = [(gradient[at], losses[at]) for at in placed]

    def _differentiated(self, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradient and losses of the whole step, given this rank's vectors in their places.

        Both are times the rows of the step: the loop divides by them.
        """
        whole = self.accelerator.reduce(own, "sum")
        gradient, losses = cached_gradient(
            whole, self._groups, self.settings.temperature, self._anchors
        )
        n = len(self._batch_rows)
        return gradient * n, losses * (n / max(1, self._anchors))

    def prepare(self, rows: np.ndarray) -> None:
        """Make a micro-batch that `batch` will be asked for next, and send it on its way."""
        # Places in an optimizer step are known when it begins; those of a stand-in are none.
        self._ready = rows.tobytes(), self._batch(rows, np.arange(len(rows)))

    def batch(self, rows: np.ndarray) -> ProgramBatch:
        """Return the programs of these rows on the device; none: a stand-in of weight 0."""
        order = np.argsort(self._batch_rows, kind="stable")
        at = order[np.searchsorted(self._batch_rows, rows, sorter=order)] if len(rows) else rows
        ready, self._ready = self._ready, None
        if ready is None or ready[0] != rows.tobytes():
            return self._batch(rows, at)
        ready[1].positions = self.batches.put(torch.from_numpy(at.astype(np.int64)))
        return ready[1]

    def _batch(self, rows: np.ndarray, positions: np.ndarray) -> ProgramBatch:
        is_real = len(rows) > 0
        used = rows if is_real else np.array([int(np.argmin(self.costs[: self.examples]))])
        example, variant = used % self.examples, used // self.examples
        return self.batches.make(
            self.forms[variant, example],
            labels=self.labels[example],
            weights=self._weights[example] * float(is_real),
            positions=positions,
        )

    def loss_sum(self, model: Any, batch: ProgramBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is differentiated, and the loss with its two parts, summed over the rows."""
        logits, vectors = model(batch)
        zero = torch.zeros((), device=self.accelerator.device)
        reported_label = label = zero if logits is None else label_loss(wide(logits), batch)
        surrogate = reported_similar = zero
        if self.contrasts:
            rows = len(batch.positions)
            gradient, losses = self._next_gradient(batch, vectors)
            # A stand-in row adds 0, and takes part in the collectives of the backward pass.
            inner = (wide(vectors)[:rows] * gradient).sum() + 0.0 * wide(vectors).sum()
            surrogate, reported_similar = self.weight * inner, losses.sum()
        elif vectors is not None:
            surrogate = 0.0 * wide(vectors).sum()  # DDP waits for every head
        total = reported_label + self.weight * reported_similar
        reported_loss = torch.stack([total, reported_label, reported_similar]).detach()
        return label + surrogate, reported_loss

    def _next_gradient(
        self, batch: ProgramBatch, vectors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._is_whole:
            return self._cached.pop(0)
        own = wide(vectors.detach())
        own = own.new_zeros(len(self._batch_rows), own.shape[1])
        own[batch.positions] = wide(vectors.detach())[: len(batch.positions)]
        gradient, losses = self._differentiated(own)
        return gradient[batch.positions], losses[batch.positions]

    def extent(self, rows: np.ndarray) -> BatchExtent:
        """Return how large the micro-batch of these rows is when it is computed."""
        return self.batches.extent(self.forms.reshape(-1)[rows])

    def state_rows(self) -> list[np.ndarray]:
        """Return table rows of some train programs, the same on all ranks, in batches."""
        draw = np.random.default_rng(self.settings.seed)
        rows = draw.permutation(self.examples)[:STATES]
        return [self.forms[0, part] for part in np.array_split(rows, max(1, len(rows) // 64))]

    def some_states(self) -> torch.Tensor:
        """Return (rows, width) states of some train programs, the same on all ranks."""
        return torch.cat([self.batches.states(self.raw, rows) for rows in self.state_rows()])

    def evaluate(self, step: int) -> dict[str, float]:
        """Return scores on valid: areas and TPR at the promised FPR, and retrieval."""
        logits, vectors = self.batches.predict(self.raw, self.inputs.rows[self._valid])
        scores: dict[str, float] = {}
        if self.settings.objective != "similar":
            labels = self.inputs.labels("valid")
            line = threshold_at_fpr(logits[labels == 0], self.settings.target_fpr)
            counts = Ranking(labels, logits.astype(np.float64), line).counts(None)
            scores |= {"roc_auc": float(counts[4]), "pr_auc": float(counts[5])}
            scores["tpr"] = float(counts[0] / max(1.0, counts[0] + counts[2]))
        if self.settings.objective != "detect":
            tasks = [row.task for row in self.inputs.split_rows("valid")]
            scores["mrr"] = mean_reciprocal_rank(vectors, tasks)
        return scores

    @property
    def _valid(self) -> np.ndarray:
        return self.inputs.data.splits["valid"]

    def describe(self, rows: np.ndarray) -> str:
        """Name programs by their place in the data."""
        shown = [self._train[row % self.examples] for row in rows[:8]]
        places = [self.inputs.data.rows[row].place for row in shown]
        return listed("train programs", places, len(rows))


def mean_reciprocal_rank(vectors: np.ndarray, tasks: Sequence[str]) -> float:
    """Return the MRR of programs that look for others of their task; 0 where none has one."""
    ranks = rank_queries(vectors, tasks, vectors, tasks, same=np.arange(len(tasks)))
    known = ranks.reciprocal_rank[~np.isnan(ranks.reciprocal_rank)]
    return float(known.mean()) if len(known) else 0.0


def task_order(
    tasks: np.ndarray, languages: np.ndarray, members: int, draw: np.random.Generator
) -> np.ndarray:
    """Return a random order of all rows in which `members` rows of a task stand together.

    They are of as many languages as there are: what two languages share of a task is not its
    spelling. The last group of a task may be smaller; a lone row joins the group before it.

    >>> tasks, languages = np.array([0, 0, 0, 0, 1]), np.array([0, 0, 1, 1, 0])
    >>> order = task_order(tasks, languages, 2, np.random.default_rng(0)).tolist()
    >>> sorted(order)
    [0, 1, 2, 3, 4]
    """
    by_task: dict[int, list[int]] = defaultdict(list)
    turn: dict[tuple[int, int], int] = defaultdict(int)
    turns = np.empty(len(tasks), dtype=np.int64)
    shuffled = draw.permutation(len(tasks))
    for row in shuffled.tolist():
        key = int(tasks[row]), int(languages[row])
        turns[row] = turn[key]
        turn[key] += 1
    # The first program of every language, then the second of each, and so on.
    for row in shuffled[np.argsort(turns[shuffled], kind="stable")].tolist():
        by_task[int(tasks[row])].append(row)
    groups: list[list[int]] = []
    for rows in by_task.values():
        cuts = list(range(0, len(rows), members))
        if len(cuts) > 1 and len(rows) - cuts[-1] == 1:
            cuts.pop()
        ends = [*cuts[1:], len(rows)]
        groups += [rows[one:two] for one, two in zip(cuts, ends, strict=True)]
    mixed = [groups[at] for at in draw.permutation(len(groups))]
    return np.array([row for group in mixed for row in group], dtype=np.int64)
