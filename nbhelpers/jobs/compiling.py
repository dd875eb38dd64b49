"""Compiled or fused encoder blocks, proven against the plain ones before a run uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbhelpers.jobs.context import RunContext

PROOF_ROWS = 16
NOISE = 0.01  # of the norm of all gradients: below it a tensor's own is rounding
ROUNDING = 1.5  # times as far from fp32's gradients as plain blocks are
LEAST = 1e-4  # of `largest_difference`: sums in another order, in fp32
LONG_RUN_TOKENS = 20_000_000  # compiling and proving it take about half a minute


class Compiling:
    """Turns compiled blocks on, if gradients of a first batch are about as exact as plain ones."""

    def __init__(
        self,
        model: Any,
        switch: Callable[[bool], None],
        accelerator: Any,
        tell: Callable[[dict[str, Any]], None] = lambda proof: None,
    ) -> None:
        """Prepare for a bare model with an `encoder`.

        Args:
            switch: Turns the compiled form on or off.
            tell: Is given the proof.
        """
        self.model, self.switch, self.accelerator = model, switch, accelerator
        self.tell = tell
        self.proof: dict[str, Any] | None = None
        self._counted_from = 0

    def prove_once(self, states: Callable[[], Tensor]) -> None:
        """Find how far compiled and plain gradients are from fp32's; leave it on, or off, for good.

        Args:
            states: Returns (rows, hidden) of a few rows, in the form that is on.
        """
        if self.proof is None:
            self.proof = self._proof(states)
            self.tell(self.proof)

    def _proof(self, states: Callable[[], Tensor]) -> dict[str, Any]:
        began, autocast = time.perf_counter(), self.accelerator.autocast
        try:
            exact = self._gradients(states, False, nullcontext())
            plain, compiled = (
                largest_difference(exact, self._gradients(states, is_on, autocast()))
                for is_on in (False, True)
            )
        except Exception as error:  # whatever a compiler raises: the run goes on without it
            self.switch(False)
            return {"is_on": False, "reason": f"{type(error).__name__}: {str(error)[:300]}"}
        limit = max(ROUNDING * plain, LEAST)
        is_on = compiled <= limit
        self.switch(is_on)
        self._counted_from = graphs()
        facts = {"is_on": is_on, "largest_difference": compiled, "plain": plain, "tolerance": limit}
        return facts | {"parameters": len(exact), "took_s": time.perf_counter() - began}

    def _gradients(
        self, states: Callable[[], Tensor], is_on: bool, precision: AbstractContextManager[Any]
    ) -> dict[str, Tensor]:
        """Return the encoder's gradients of a bounded sum of its states, without dropout."""
        model = self.model
        self.switch(is_on)
        was_training = model.training
        model.eval()  # the two forms draw their dropout in different orders
        model.zero_grad()
        try:
            with precision:
                outputs = states()
            weight = torch.linspace(-1.0, 1.0, outputs.shape[1], device=outputs.device)
            sums = (outputs.float() * weight).sum(1)
            # Scaled: where all of them are large, the slope of each is 0 and nothing is compared.
            (sums / sums.detach().abs().mean()).tanh().sum().backward()
            return {
                name: p.grad.detach().float().clone()
                for name, p in model.encoder.named_parameters()
                if p.grad is not None
            }
        finally:
            model.zero_grad()
            model.train(was_training)

    def facts(self) -> dict[str, Any]:
        """Return what became of the compiling, for the result."""
        proof = self.proof or {"is_on": False, "reason": "the encoder stayed frozen"}
        recompiles = max(0, graphs() - self._counted_from) if proof["is_on"] else 0
        return {"is_on": proof["is_on"], "recompiles": recompiles, "self_test": proof}


def graphs() -> int:
    """Return how many graphs have been compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest norm of a tensor's difference, over its norm and a part of the whole's.

    A key's bias shifts all scores of a row alike, so its gradient is nothing but rounding: measured
    by itself it would always differ.
    """
    whole = torch.stack([x.norm() for x in one.values()]).norm()
    gaps = [(one[n] - other[n]).norm() / (one[n].norm() + NOISE * whole) for n in one]
    return float(torch.stack(gaps).max())


def proof_rows(costs: np.ndarray) -> np.ndarray:
    """Return a few rows of all lengths."""
    rows = np.argsort(costs, kind="stable")
    return rows[np.linspace(0, len(rows) - 1, min(PROOF_ROWS, len(rows))).astype(int)]


def wants_compiling(context: RunContext, tokens: int) -> bool:
    """Whether blocks are compiled if they can be: by the settings, or in a run that is long.

    Args:
        tokens: That the encoder learns from, in all epochs.
    """
    wish = context.settings.compile_layers
    if wish != "auto":
        return wish == "on"
    return context.plan.use_gpu and context.precision != "fp32" and tokens > LONG_RUN_TOKENS


def tell_proof(context: RunContext, proof: dict[str, Any]) -> None:
    """Write the event of a proof, and a warning where the blocks stay plain."""
    context.emit("compile", **proof)
    if not proof["is_on"]:
        gap, limit = (proof.get(name, 0.0) for name in ("largest_difference", "tolerance"))
        why = proof.get("reason") or f"their gradients are {gap:.3f} from fp32's, above {limit:.3f}"
        context.warn(f"The blocks are not compiled: {why}.")
