"""Training of adapters: samples as a task of the loop, and what is decided before the first step.

A global batch has the same samples, packed or padded, on one GPU or several; its loss is the mean
over all their supervised tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.budget.formulas import CausalExtent, finetune_ledger, may_graph
from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.budget.shapes import find_shape
from nbhelpers.data.coding_tasks import CodingTask
from nbhelpers.data.instructions import InstructionData
from nbhelpers.errors import is_out_of_memory
from nbhelpers.jobs.context import Forecast, RunContext
from nbhelpers.jobs.equivalence import prove, reason, rehearse
from nbhelpers.jobs.forecast import estimate, largest_extent
from nbhelpers.jobs.loop import PlainTask, Trainer, listed
from nbhelpers.jobs.models.causal import (
    DTYPES,
    Adapted,
    adapter_tensors,
    load_adapter_tensors,
)
from nbhelpers.jobs.models.causal_batches import (
    MicroBatch,
    TextTable,
    make_batch,
    padded_width,
    row_multiple,
)
from nbhelpers.jobs.models.causal_forward import TrainingForward
from nbhelpers.jobs.models.causal_graphs import GraphedSteps
from nbhelpers.jobs.schedule import micro_batches
from nbhelpers.jobs.training import SavedWeights, Training, train_task
from nbhelpers.plan import BatchPlan

if TYPE_CHECKING:
    from nbhelpers.presets.schema import FinetuneSettings

FIRST_SCALE = 2.0**10  # of fp16's loss: at PyTorch's 2^16 the first steps of Gemma are all skipped
# Of a micro-step's gradients, replayed and launched singly. Source: bf16's own rounding is .014 of
# them on an H200, and products may be summed in another order; two replays were equal.
REPLAY_ROUNDING = 0.05
NO_GRAPHS, SINGLY = "CUDA graphs fail on this machine", "blocks are launched singly"
MOST_NAMED = 8  # samples in a message


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run: texts, their tokens by split, and the problems of pass@1.

    `refusal` says why no program is run here, where problems were asked for.
    """

    data: InstructionData
    tables: dict[str, TextTable]
    tokenizer: Any
    tasks: dict[str, list[CodingTask]] = field(default_factory=dict)
    refusal: str = ""


class AdapterTask(PlainTask):
    """Batches, loss and validation of a fine-tuning, as `loop.Task` wants them."""

    selects_by = None  # the model is the one after the last step

    def __init__(
        self,
        settings: FinetuneSettings,
        plan: BatchPlan,
        tables: dict[str, TextTable],
        adapted: Adapted | None,
        accelerator: Any,
        *,
        kernel: str,
        precision: str,
        is_compiled: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        """Prepare the samples.

        Args:
            settings: With `packing` as the kernel allows it.
            tables: Of `train`, and of `valid` for the validation loss.
            adapted: None where only shapes are asked.
            kernel: Of attention: eager, sdpa or flex.
            is_compiled: The blocks are; on a GPU micro-steps may then be CUDA graphs.
            names: Of the train samples, for messages.
        """
        self.settings, self.plan, self.accelerator = settings, plan, accelerator
        self.adapted, self.kernel, self.names = adapted, kernel, names
        self.train, self.valid = tables["train"], tables.get("valid")
        self.costs, self.supervised = self.train.lengths, self.train.supervised
        self.warmup_steps = settings.warmup_steps
        self.multiple, self.dtype = row_multiple(kernel, settings.packing), DTYPES[precision]
        self.is_graphed = is_compiled and may_graph(settings, plan, precision)
        self._ready: tuple[bytes, MicroBatch] | None = None

    @property
    def averages_gradients(self) -> bool:
        """Whether DDP is left out: a pass that is captured may not wait for its streams."""
        return self.is_graphed

    @cached_property
    def forward(self) -> TrainingForward:
        """How the model computes in training."""
        loss = "plain" if self.settings.loss == "plain" else "chunked"
        return TrainingForward(
            self.adapted.bare,
            kernel=self.kernel,
            loss=loss,
            dtype=self.dtype,
            checkpointing=self.settings.gradient_checkpointing,
        )

    @cached_property
    def graphs(self) -> GraphedSteps:
        """The micro-steps that were captured."""
        learned = [p for p in self.adapted.model.parameters() if p.requires_grad]
        batches = [b for epoch in range(self.settings.epochs) for b in self.global_batches(epoch)]
        return GraphedSteps(
            self.forward,
            learned,
            self.accelerator.device,
            most_tokens=max(self.extent(x).tokens for b in batches for x in self.micro_batches(b)),
        )

    def total_weight(self, batch_rows: np.ndarray) -> int:
        """Return the supervised tokens of the samples: each token weighs the same."""
        return int(self.supervised[batch_rows].sum())

    def micro_batches(self, batch_rows: np.ndarray) -> list[np.ndarray]:
        """Return this rank's samples of each micro-step of a global batch."""
        return micro_batches(
            batch_rows,
            self.costs,
            rank=self.accelerator.process_index,
            world_size=self.plan.world_size,
            per_device=self.plan.per_device_train_batch_size,
        )

    def host_batch(self, rows: np.ndarray) -> MicroBatch:
        """Return samples as a micro-batch on the host."""
        s = self.settings
        return make_batch(
            self.train,
            rows,
            pad_id=self.adapted.base.pad_id,
            packed=s.packing,
            width=s.seq_len if s.padding == "fixed" else None,
            multiple=self.multiple,
            is_graphed=self.is_graphed,
        )

    def prepare(self, rows: np.ndarray) -> None:
        """Make a micro-batch on the host that `batch` will be asked for next."""
        self._ready = rows.tobytes(), self.host_batch(rows)

    def batch(self, rows: np.ndarray) -> MicroBatch:
        """Return samples as a micro-batch, on the device where no graph takes it from the host."""
        key, batch = self._ready or (b"", None)
        if batch is None or key != rows.tobytes():
            batch = self.host_batch(rows)
        self._ready = None
        return batch if self.is_graphed else batch.to(self.accelerator.device)

    def backward(
        self, trainer: Trainer, batch: MicroBatch, factor: float, is_last: bool
    ) -> torch.Tensor:
        """Add the gradients of `factor` times the loss; return the summed loss, (1,)."""
        if not self.is_graphed:
            return super().backward(trainer, batch, factor, is_last)
        graphs, mark = self.graphs, trainer.hooks.phases.mark
        try:
            loss = graphs.micro_step(batch, factor, mark)
        except RuntimeError as error:  # a shape that cannot be captured
            if is_out_of_memory(error) or not graphs.captures:
                raise
            graphs.captures = False
            trainer.hooks.emit("warning", message=f"{NO_GRAPHS} ({reason(error)}): {SINGLY}.")
            loss = graphs.micro_step(batch, factor, mark)
        if is_last and self.plan.world_size > 1:
            graphs.average()
        return loss[None]

    def loss_sum(self, model: Any, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed cross-entropy of the supervised tokens, also to be reported."""
        loss = model(**self.forward.inputs(batch)).loss
        return loss, loss.detach()[None]

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the mean loss over the supervised tokens of valid; every rank does its share."""
        table, s, accelerator = self.valid, self.settings, self.accelerator
        if table is None or not len(table):
            return {}
        model = self.adapted.model
        order = longest_first(table)[accelerator.process_index :: self.plan.world_size]
        sums = torch.zeros(2, dtype=torch.float64)
        was_training = model.training
        model.eval()
        with torch.no_grad(), accelerator.autocast():
            for start in range(0, len(order), s.per_device_eval_batch_size):
                rows = order[start : start + s.per_device_eval_batch_size]
                batch = make_batch(
                    table,
                    rows,
                    pad_id=self.adapted.base.pad_id,
                    packed=s.packing,
                    multiple=self.multiple,
                ).to(accelerator.device)
                loss = model(**self.forward.inputs(batch)).loss
                sums += torch.tensor([float(loss), float(table.supervised[rows].sum())])
        model.train(was_training)
        loss, tokens = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
        return {"loss": loss / tokens}

    def extent(self, rows: np.ndarray) -> CausalExtent:
        """Return how large the micro-batch of these samples is when it is computed."""
        s, lengths = self.settings, self.costs[rows] if len(rows) else np.array([2])  # a stand-in
        longest = s.seq_len if s.padding == "fixed" else int(lengths.max())
        count, width = (1, int(lengths.sum())) if s.packing else (len(lengths), longest)
        width = padded_width(width, self.multiple, is_graphed=self.is_graphed)
        return CausalExtent(
            tokens=count * width,
            squares=count * width**2,
            supervised=int(self.supervised[rows].sum()),
        )

    def describe(self, rows: np.ndarray) -> str:
        """Name samples by their ids."""
        return listed("train samples", [self.names[row] for row in rows[:MOST_NAMED]], len(rows))


def longest_first(table: TextTable) -> np.ndarray:
    """Return the samples in the order in which they are scored."""
    return np.argsort(-table.lengths, kind="stable")


def learning(model: Any) -> list[dict[str, Any]]:
    """Return the optimizer's group: the adapters alone."""
    return [{"params": [p for p in model.parameters() if p.requires_grad]}]


ADAPTER = SavedWeights(
    file="adapter_model.safetensors", tensors=adapter_tensors, load=load_adapter_tensors
)


def train_adapter(context: RunContext, inputs: Inputs, adapted: Adapted) -> Training:
    """Choose attention, layout and compiling, then train the adapters to the last step.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: A loss or gradients that are not finite.
        ConfigError: Too little disk.
    """
    device = context.accelerator.device
    # What building the model took, before anything else is tried on the GPU.
    load_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    samples, table = inputs.data.splits["train"], inputs.tables["train"]

    def task_for(kernel: str, packed: bool, is_compiled: bool) -> AdapterTask:
        return AdapterTask(
            context.settings.model_copy(update={"packing": packed}),
            context.plan,
            inputs.tables,
            adapted,
            context.accelerator,
            kernel=kernel,
            precision=context.precision,
            is_compiled=is_compiled,
            names=[samples[row].id for row in table.rows],
        )

    is_compiled = context.forecast.is_compiled
    if is_compiled is None:  # nothing was simulated
        is_compiled = context.settings.compile_layers == "on"
    planned = adapted.base.facts["attention"], context.settings.packing, is_compiled
    kernel, packed, proof = proven_kernel(context, inputs, adapted, DTYPES[context.precision])
    if on_any_rank(context, kernel != planned[0]) and kernel == planned[0] != "eager":
        context.warn(f"attention={kernel} fails on another rank: eager is used there and here.")
        kernel, packed = "eager", False
    is_compiled &= kernel == planned[0] or context.settings.compile_layers == "on"
    task = task_for(kernel, packed, is_compiled)
    if context.plan.use_gpu and (is_compiled or kernel == "flex"):
        chosen = rehearsed(context, task, is_compiled=is_compiled)
        if chosen != (kernel, packed, is_compiled):
            task = task_for(*chosen)
        kernel, packed, is_compiled = chosen
    adapted.base.facts |= {"attention": kernel, "compiled": is_compiled, "parity": proof}
    if (kernel, packed, is_compiled) != planned:  # not what was simulated
        context = replace(context, forecast=Forecast())

    def predict(batches: list[np.ndarray]) -> MemoryBudget | None:
        # Trained to the end before: what the last step needed.
        batches = batches or task.global_batches(context.settings.epochs - 1)[-1:]
        return cpu_estimate(context, task, batches, is_compiled=is_compiled)

    prepare(adapted, context.settings, context.accelerator)
    with task.forward.active(compiled=is_compiled):
        training = train_task(
            context,
            task,
            adapted.model,
            predict=predict,
            save_files=lambda folder: save_files(folder, adapted, context.settings.model),
            groups=learning,
            weights=ADAPTER,
            load_bytes=load_bytes,
        )
    training.model = {"attention": kernel, "compiled": is_compiled}
    if task.is_graphed and task.graphs.captures:  # still: no shape failed on the way
        training.model["cuda_graphs"] = adapted.base.facts["cuda_graphs"] = True
    if vars(task).pop("graphs", None) is not None:
        torch.cuda.empty_cache()  # what graphs keep is for the answers now
    return training


def prepare(adapted: Adapted, settings: FinetuneSettings, accelerator: Any) -> None:
    """Let inputs of checkpointed blocks need gradients, and fp16's scale begin lower."""
    if settings.gradient_checkpointing:
        adapted.model.enable_input_require_grads()  # as peft and trl do
    if accelerator.scaler is not None:
        accelerator.scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE)


def save_files(folder: Path, adapted: Adapted, base_name: str) -> None:
    """Write what makes a checkpoint folder a PEFT adapter, and the tokenizer."""
    config = adapted.model.peft_config[adapted.model.active_adapter]
    before = config.base_model_name_or_path, config.inference_mode
    config.base_model_name_or_path, config.inference_mode = base_name, True
    config.save_pretrained(folder)
    config.base_model_name_or_path, config.inference_mode = before
    adapted.base.tokenizer.save_pretrained(folder)


def proven_kernel(
    context: RunContext, inputs: Inputs, adapted: Adapted, dtype: torch.dtype
) -> tuple[str, bool, dict[str, Any]]:
    """Return the attention that may be used, whether samples are packed, and what was measured.

    Where another kernel fails, eager is used, and samples are padded: eager attention computes the
    whole square of a packed row.
    """
    kernel = adapted.base.facts["attention"]
    table, packed = inputs.tables["train"], context.settings.packing
    problem = ""
    try:
        proof = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    except Exception as error:
        if kernel == "eager" or is_out_of_memory(error):
            raise
        problem, proof = f"fails on this machine ({reason(error)})", {"passed": False}
    if not proof["passed"] and kernel != "eager":
        problem = problem or (
            "does not agree with eager attention on this machine (relative error "
            f"{proof['relative_error']:.2g})"
        )
        context.warn(
            f"attention={kernel} {problem}: eager is used, and samples are padded instead of "
            "packed; the samples of each update stay the same."
        )
        kernel, packed = "eager", False
        proof = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    if not proof["passed"]:
        error = proof["relative_error"]
        context.warn(
            f"Samples in one batch do not agree with the same samples one by one (relative error "
            f"{error:.2g}): set packing=false."
            if math.isfinite(error)
            else f"The base's hidden states are not finite in {context.precision}."
        )
    context.emit("parity", **proof)
    return kernel, packed, proof


def rehearsed(
    context: RunContext, task: AdapterTask, *, is_compiled: bool
) -> tuple[str, bool, bool]:
    """Return the kernel, whether samples are packed, and whether blocks are compiled, as it works.

    The ways are tried in turn on the first micro-batch: as planned, without CUDA graphs (the task
    then has none), not compiled, eager.
    """
    batch = task.host_batch(task.micro_batches(task.global_batches(0)[0])[0])
    task.is_graphed &= is_compiled and _graphs_work(context, task, batch)
    if task.is_graphed:
        return task.kernel, task.settings.packing, True
    for compiled in (True, False) if is_compiled else (False,):
        problem = rehearse(
            task.adapted,
            task.forward,
            batch,
            accelerator=context.accelerator,
            compiled=compiled,
        )
        if not problem:
            return task.kernel, task.settings.packing, compiled
        what = "Compiled blocks fail" if compiled else f"attention={task.kernel} fails"
        context.warn(f"{what} on this machine ({problem}): a slower way is used.")
    return "eager", False, False


def _graphs_work(context: RunContext, task: AdapterTask, batch: MicroBatch) -> bool:
    """Whether a micro-step as a CUDA graph gives what single launches give; no gradient stays."""
    if not task.is_graphed:
        return False
    task.adapted.model.train()
    try:
        with task.forward.active(compiled=True):
            apart = task.graphs.check(batch)
        problem = "" if apart <= REPLAY_ROUNDING else f"gradients are {apart:.2g} apart"
    except Exception as error:
        if is_out_of_memory(error):
            raise
        problem = reason(error)
    if on_any_rank(context, bool(problem)):  # graphs on all ranks or on none
        problem = problem or "on another rank"
        task.adapted.model.zero_grad()
        vars(task).pop("graphs", None)  # and their memory
        context.warn(f"{NO_GRAPHS} ({problem}): {SINGLY}.")
    return not problem


def on_any_rank(context: RunContext, fact: bool) -> bool:
    """Whether something is so on this rank or another; all ranks ask at the same time."""
    if context.plan.world_size == 1:
        return fact
    count = torch.tensor([float(fact)], device=context.accelerator.device)
    return float(context.accelerator.reduce(count, "sum")) > 0


def cpu_estimate(
    context: RunContext, task: AdapterTask, steps: list[np.ndarray], *, is_compiled: bool
) -> MemoryBudget | None:
    """Return what the largest micro-batch of some optimizer steps needs, by formulas.

    The loaded model says how many words there are: before the run only a nominal number is known of
    a model whose tokenizer is trained on the data.
    """
    shape = find_shape(context.settings)
    if shape is None:
        return None
    lines = finetune_ledger(
        task.settings,
        context.plan,
        replace(shape, vocab=int(task.adapted.base.config.vocab_size)),
        precision=context.precision,
        kernel=task.kernel,
        is_compiled=is_compiled,
        extent=largest_extent(context, task, steps),
    )
    return estimate(lines)
