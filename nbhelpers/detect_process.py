"""The process that holds a detector: started once, anew when it was lost, and asked."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.detect_calls import Scored
from nbhelpers.detect_facts import DetectorFacts
from nbhelpers.detect_files import CodeFile
from nbhelpers.errors import ConfigError, NonFinite
from nbhelpers.use_child import Child

if TYPE_CHECKING:
    import numpy as np

DEVICES = ("auto", "cpu", "cuda")
MODULE = "nbhelpers.jobs.serve_detector"
PART, PART_CHARACTERS = 1024, 8_000_000  # programs sent at once


class Scorer:
    """Scores of programs, from a process of its own."""

    def __init__(self, facts: DetectorFacts, *, device: str, batch_size: int) -> None:
        """Start it and load the model.

        Raises:
            ConfigError: `device` or `batch_size` is wrong.
            HardwareError: device="cuda" without a GPU.
        """
        if device not in DEVICES:
            text = f"device={device!r} is not known."
            raise ConfigError(text, fix=f"choose one of: {', '.join(DEVICES)}")
        if type(batch_size) is not int or batch_size < 1:
            text = f"batch_size={batch_size!r} is no number of programs."
            raise ConfigError(text, fix="give a number from 1 on")
        self.facts, self.wanted, self.batch_size = facts, device, batch_size
        self.device, self.is_closed = "", False
        self._child: Child | None = None
        self._ready()

    def scored(self, files: Sequence[CodeFile]) -> list[Scored]:
        """Return what the model says of programs, in their order."""
        return self._asked([file.code for file in files])

    def logits(self, codes: Sequence[str]) -> list[float]:
        """Return the logits of texts, in their order."""
        return [scored.logit for scored in self._asked(codes)]

    def vectors(self, codes: Sequence[str]) -> np.ndarray:
        """Return (programs, dimensions) float32 unit vectors of the similarity space."""
        import numpy as np

        found = []
        for part in _parts(codes):
            told = self._call(part, vectors=True)
            flat = np.frombuffer(base64.b64decode(told["vectors"]), dtype="<f4")
            found.append(flat.reshape(-1, told["dimensions"]))
        table = np.concatenate(found)
        if not np.isfinite(table).all():
            raise _not_finite(self.facts)
        return table

    def _asked(self, codes: Sequence[str]) -> list[Scored]:
        found: list[Scored] = []
        for part in _parts(codes):
            told = self._call(part, vectors=False)
            for logit, tokens in zip(told["logits"], told["tokens"], strict=True):
                if logit is None or not math.isfinite(logit):
                    raise _not_finite(self.facts)
                found.append(Scored(logit=float(logit), tokens=int(tokens)))
        return found

    def _call(self, codes: list[str], *, vectors: bool) -> dict[str, Any]:
        options = {"batch_size": self.batch_size, "vectors": vectors}
        return self._ready().call("score", codes=codes, **options)

    def _ready(self) -> Child:
        """The process, started anew where the last one was lost."""
        if self.is_closed:
            text = f"The detector {self.facts.run_id} is closed."
            raise ConfigError(text, fix="load it again: load_detector(...)")
        if self._child is None or not self._child.is_alive:
            self._child = Child(use_gpu=_wants_gpu(self.wanted), module=MODULE)
            try:
                folder = str(self.facts.place.folder)
                told = self._child.call("load", folder=folder, device=self.wanted)
            except BaseException:
                self._child.close()
                raise
            self.device = str(told["device"])
        return self._child

    def close(self) -> None:
        """End the process and give the memory back; harmless when it is closed."""
        self.is_closed = True
        if self._child is not None:
            self._child.close()


def _parts(codes: Sequence[str]) -> Iterator[list[str]]:
    """Split programs into parts that fit into one message."""
    part: list[str] = []
    size = 0
    for code in codes:
        if part and (len(part) >= PART or size + len(code) > PART_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(code)
        size += len(code)
    if part:
        yield part


def _wants_gpu(device: str) -> bool:
    if device != "auto":
        return device == "cuda"
    from nbhelpers.hardware import detect_hardware

    return detect_hardware().gpu is not None


def _not_finite(facts: DetectorFacts) -> NonFinite:
    return NonFinite(
        f"The detector {facts.run_id} gives a score that is not finite.",
        fix="its weights are damaged, or the training broke: train it again",
    )
