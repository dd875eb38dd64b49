"""The detector's task with compiled encoder blocks, proven against the plain ones before use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.models.detector import ProgramBatch

PROOF_ROWS = 16
NOISE = 0.01  # of the norm of all gradients: below it a tensor's own is rounding
TOLERANCE = {"bf16": 0.05, "fp16": 0.02, "no": 1e-4}  # see `largest_difference`


class CompiledTask(DetectorTask):
    """Compiles after the unfreeze, when the first batch has shown equal gradients.

    A frozen encoder is never compiled, so no graph can hold parameters that do not learn.
    """

    _proof: dict[str, Any] | None = None
    _counted_from = 0
    tell: Callable[[dict[str, Any]], None] | None = None  # is given the proof

    def start_epoch(self, epoch: int) -> bool:
        """Also compile, or fall back, when the encoder begins to learn."""
        changed = super().start_epoch(epoch)
        if not self.raw.is_frozen and self._proof is None:
            self._proof = self._prove()
            if self.tell is not None:
                self.tell(self._proof)
        return changed

    def _prove(self) -> dict[str, Any]:
        """Return how far gradients of compiled and plain blocks differ on a few programs."""
        if self.device.type != "cuda" and self.settings.compile_layers != "on":
            return {"is_on": False}
        self.raw.to(self.device)
        rows = np.argsort(self.costs[: self.examples], kind="stable")
        rows = rows[np.linspace(0, len(rows) - 1, min(PROOF_ROWS, len(rows))).astype(int)]
        began = time.perf_counter()
        batch = self._proof_batch(rows)
        try:
            plain, compiled = (self._gradients(batch, is_on) for is_on in (False, True))
        except Exception as error:  # whatever a compiler raises: the run goes on without it
            self.raw.compile_blocks(False)
            return {"is_on": False, "reason": f"{type(error).__name__}: {str(error)[:300]}"}
        worst = largest_difference(plain, compiled)
        limit = TOLERANCE[self.accelerator.mixed_precision]
        is_on = worst <= limit
        self.raw.compile_blocks(is_on)
        self._counted_from = graphs()
        found = {"is_on": is_on, "largest_difference": worst, "tolerance": limit}
        return found | {"parameters": len(plain), "took_s": time.perf_counter() - began}

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.accelerator.device

    def _proof_batch(self, rows: np.ndarray) -> ProgramBatch:
        labels = np.arange(len(rows)) % 2
        return self.batches.make(
            self.forms[0, rows], labels=labels, weights=np.ones(len(rows)), positions=rows
        )

    def _gradients(self, batch: ProgramBatch, is_on: bool) -> dict[str, torch.Tensor]:
        """Return the encoder's gradients of a sum of squares, without dropout."""
        model = self.raw
        model.compile_blocks(is_on)
        was_training = model.training
        model.eval()  # the two forms draw their dropout in different orders
        model.zero_grad()
        with self.accelerator.autocast():
            states = model.states(batch.buckets)
        weight = torch.linspace(-1.0, 1.0, states.shape[1], device=states.device)
        (states.float() * weight).sum(1).tanh().sum().backward()
        found = {
            name: p.grad.detach().float().clone()
            for name, p in model.encoder.named_parameters()
            if p.grad is not None
        }
        model.zero_grad()
        model.train(was_training)
        return found

    def facts(self) -> dict[str, Any]:
        """Return what became of the compiling, for the result."""
        proof = self._proof or {"is_on": False, "reason": "the encoder stayed frozen"}
        recompiles = max(0, graphs() - self._counted_from) if proof["is_on"] else 0
        return {"is_on": proof["is_on"], "recompiles": recompiles, "self_test": proof}


def graphs() -> int:
    """Return how many graphs have been compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest norm of a tensor's difference, over its norm and a part of the whole's.

    A key's bias shifts all scores of a row alike, so its gradient is nothing but rounding: measured
    by itself it would always differ.
    """
    whole = torch.stack([x.norm() for x in one.values()]).norm()
    gaps = [(one[n] - other[n]).norm() / (one[n].norm() + NOISE * whole) for n in one]
    return float(torch.stack(gaps).max())
