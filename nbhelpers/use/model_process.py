"""The process that holds one model: started once, anew when it was lost, and asked.

The notebook's own process stays without torch, and closing the model gives the GPU's memory back
whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from nbhelpers.common.child import Child, Closing
from nbhelpers.errors import ConfigError
from nbhelpers.use.trained import Trained, TrainedDetector

DEVICES = ("auto", "cpu", "cuda")
MODULE = "nbhelpers.jobs.serve"
OPEN: weakref.WeakSet[Loaded] = weakref.WeakSet()


def close_models() -> None:
    """Close all models that this process holds open, and give their memory back to the GPU."""
    for model in list(OPEN):
        model.close()


def start_process(device: str = "cpu") -> Child:
    """Start a process for a model on `auto`, `cpu` or `cuda`."""
    return Child(use_gpu=_wants_gpu(require_device(device)), module=MODULE)


def require_device(device: str) -> str:
    """Return a device that is known.

    Raises:
        ConfigError: It is none of `DEVICES`.
    """
    if device not in DEVICES:
        text = f"device={device!r} is not known."
        raise ConfigError(text, fix=f"choose one of: {', '.join(DEVICES)}")
    return device


def _wants_gpu(device: str) -> bool:
    if device != "auto":
        return device == "cuda"
    from nbhelpers.hardware.detection import detect_hardware

    return detect_hardware().gpu is not None


class Loaded(Closing):
    """A model in a process of its own, which can be asked and is closed at the end of a `with`.

    `reply`: what the process said when it had loaded it.
    """

    def __init__(
        self,
        trained: Trained | TrainedDetector,
        *,
        device: str,
        options: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Load it.

        Args:
            trained: What is loaded.
            device: auto, cpu or cuda.
            options: Returns what `load` needs beside the two, each time it is loaded.
        """
        self.trained, self._device, self._options = trained, require_device(device), options
        self.is_closed = False
        OPEN.add(self)
        self.reply: dict[str, Any] = {}
        self.child: Child | None = None
        self._ready()

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Return what the process answers; it is started anew where it was lost.

        Raises:
            ConfigError: The model is closed.
            NbhelpersError: What went wrong there.
        """
        return self._ready().call(op, **arguments)

    def _ready(self) -> Child:
        if self.is_closed:
            text = f"{self.trained.name} is closed and cannot be asked."
            fix = "run the notebook's cell under Try it again; in Python: model = load(RUN)"
            raise ConfigError(text, fix=fix)
        if self.child is None or not self.child.is_alive:
            self.child = start_process(self._device)
            try:
                arguments = {"trained": self.trained.to_dict(), "device": self._device}
                self.reply = self.child.call("load", **arguments, **self._options())
            except BaseException:
                self.child.close()
                raise
        return self.child

    def close(self) -> None:
        """End the process and give the memory back; harmless when it is closed."""
        self.is_closed = True
        if self.child is not None:
            self.child.close()
