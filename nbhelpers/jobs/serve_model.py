"""What the process that holds a model can do: load, ask, compare, merge, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nbhelpers.errors import ConfigError, Stopped
from nbhelpers.jobs.generate import continuations, dressed
from nbhelpers.jobs.load import Loaded, choose_device, load_trained, set_token
from nbhelpers.use.trained import RAW, Trained

Report = Callable[[str], None]


def operations(
    report: Report, is_cancelled: Callable[[], bool]
) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the operations of one process by name; `load` comes before `ask` and `compare`.

    Args:
        report: Called with a text that says how far it is.
        is_cancelled: Whether the request at hand is to be stopped.
    """
    models: dict[str, Served] = {}

    def load(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
        models["model"] = Served(
            Trained.from_dict(trained), report=report, is_cancelled=is_cancelled, **options
        )
        return models["model"].loaded.to_dict()

    def ask(**options: Any) -> dict[str, Any]:
        return {"answers": models["model"].ask(**options)}

    def compare(**options: Any) -> dict[str, Any]:
        return models["model"].compare(**options)

    return {
        "load": load,
        "ask": ask,
        "compare": compare,
        "merge": _merge(report),
        "export": _export,
    }


def _merge(report: Report) -> Callable[..., dict[str, Any]]:
    def merge(trained: dict[str, Any], token: str | None, **options: Any) -> dict[str, Any]:
        from nbhelpers.jobs.export import merge_adapter

        set_token(token)
        source = Trained.from_dict(trained)
        options["out"] = Path(options["out"])
        return merge_adapter(source, report=report, **options)

    return merge


def _export(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
    from nbhelpers.jobs.export import export_adapter

    options["out"] = Path(options["out"])
    return export_adapter(Trained.from_dict(trained), **options)


class Served:
    """One loaded model and how it is asked."""

    def __init__(
        self,
        trained: Trained,
        *,
        report: Report,
        is_cancelled: Callable[[], bool],
        adapter: bool,
        device: str,
        token: str | None,
    ) -> None:
        """Load it; takes as long as reading the weights does."""
        set_token(token)
        self.trained, self.is_cancelled = trained, is_cancelled
        self.loaded: Loaded = load_trained(
            trained,
            device=choose_device(device),
            quantised=trained.settings.method == "qlora",
            with_adapter=adapter,
            report=report,
        )

    def ask(
        self,
        prompts: list[str],
        *,
        max_new_tokens: int | None,
        temperature: float,
        seed: int | None,
        raw: bool,
    ) -> list[str]:
        """Return an answer to each prompt.

        Raises:
            Stopped: It was cancelled.
            ConfigError: A prompt is too long.
        """
        limit = max_new_tokens or self.trained.settings.max_new_tokens
        template = self.trained.template
        how = RAW if raw else template
        texts = [dressed(prompt, how, self.loaded.tokenizer) for prompt in prompts]
        if seed is not None:
            torch.manual_seed(seed)
        size, answers = self.trained.settings.generation_batch_size, []
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            answers += continuations(
                self.loaded,
                batch,
                template=template,
                limit=limit,
                temperature=temperature,
                stop=self._stop,
            )
            if self.is_cancelled():
                raise Stopped("The answer was stopped.", fix="ask again")
        return answers

    def compare(self, **options: Any) -> dict[str, Any]:
        """Return the answers of the base and of the tuned model.

        Raises:
            ConfigError: No adapter is loaded.
        """
        if self.loaded.check is None:
            raise ConfigError(
                f"{self.trained.name} was loaded without an adapter: there is nothing to compare.",
                fix="load a run of method=lora or qlora, with adapter=True",
            )
        with self.loaded.model.disable_adapter():
            base = self.ask(**options)
        return {"base": base, "tuned": self.ask(**options)}

    def _stop(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Say for each row that it ends, once the request is cancelled."""
        return torch.full((len(ids),), self.is_cancelled(), device=ids.device)
