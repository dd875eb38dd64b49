"""What the process that holds a model can do: load it, ask it in its job's way, merge, export."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbhelpers.data.canonical import canonical
from nbhelpers.errors import ConfigError, OutOfMemory, Stopped, is_out_of_memory
from nbhelpers.jobs.generate import continuations, dressed
from nbhelpers.jobs.load import (
    Loaded,
    LoadedClones,
    LoadedDetector,
    choose_device,
    load_clones,
    load_detector,
    load_trained,
    set_token,
)
from nbhelpers.use.facts import read_stack
from nbhelpers.use.trained import RAW, Trained, TrainedClones, TrainedDetector, from_dict


def operations(line: Any) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return the operations of one process by name; `load` comes before those of its model.

    Args:
        line: The `serve.Line` to report on; it says whether the request at hand is cancelled.
    """
    models: list[ServedModel | ServedDetector | ServedClones] = []

    def load(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
        source = from_dict(trained)
        models[:] = [SERVED[source.job](source, line, **options)]
        return models[0].facts

    def merge(trained: dict[str, Any], token: str | None, **options: Any) -> dict[str, Any]:
        from nbhelpers.jobs.merge import merge_adapter

        set_token(token)
        options["out"] = Path(options["out"])
        return merge_adapter(from_dict(trained), report=line.report, token=token, **options)

    def export(trained: dict[str, Any], **options: Any) -> dict[str, Any]:
        from nbhelpers.jobs.export import export_folder

        options["out"] = Path(options["out"])
        return export_folder(from_dict(trained), report=line.report, **options)

    def of_model(name: str) -> Callable[..., dict[str, Any]]:
        return lambda **options: getattr(models[0], name)(**options)

    names = ("ask", "compare", "score", "encode", "best_pairs")
    of_models = {name: of_model(name) for name in names}
    return {"load": load, "merge": merge, "export": export, **of_models}


# ------------------------------------------------------------------------------------------------
# A language model, with its adapter or without.


BASE, TUNED = "base", "tuned"
WATCH_EVERY_S = 0.1


class ServedModel:
    """One loaded language model and how it is asked."""

    def __init__(
        self, trained: Trained, line: Any, *, adapter: bool, device: str, token: str | None
    ) -> None:
        """Load it; takes as long as reading the weights does."""
        set_token(token)
        self.trained, self.line = trained, line
        self.loaded: Loaded = load_trained(
            trained,
            device=choose_device(device),
            quantised=trained.settings.method == "qlora",
            with_adapter=adapter,
            report=line.report,
        )
        self.facts = self.loaded.to_dict()

    def ask(self, **options: Any) -> dict[str, Any]:
        """Return an answer to each prompt; the options are those of `_answers`."""
        return {"answers": self._answers(**options)}

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
            base = self._answers(name=BASE, **options)
        return {"base": base, "tuned": self._answers(**options)}

    def _answers(
        self,
        prompts: list[str],
        *,
        max_new_tokens: int | None,
        temperature: float,
        seed: int | None,
        raw: bool,
        system: str = "",
        watch: bool = False,
        name: str = "",
    ) -> list[str]:
        """Return an answer to each prompt; `watch` reports the first one as it is written.

        Raises:
            Stopped: It was cancelled.
            ConfigError: A prompt is too long.
        """
        settings, template = self.trained.settings, self.trained.template
        dressing = RAW if raw else template
        texts = [dressed(prompt, dressing, self.loaded.tokenizer, system) for prompt in prompts]
        if seed is not None:
            torch.manual_seed(seed)
        answers: list[str] = []
        for start in range(0, len(texts), settings.generation_batch_size):
            answers += continuations(
                self.loaded,
                texts[start : start + settings.generation_batch_size],
                template=template,
                limit=max_new_tokens or settings.max_new_tokens,
                temperature=temperature,
                stop=self._stopper(watch and (name or self._name)),
            )
            if self.line.is_cancelled():
                raise Stopped("The answer was stopped.", fix="ask again")
        if watch:
            self.line.report([name or self._name, answers[0]])
        return answers

    @property
    def _name(self) -> str:
        return BASE if self.loaded.check is None else TUNED

    def _stopper(self, name: str | bool) -> Callable[..., torch.Tensor]:
        """Return what says for each row that it ends, once the request is cancelled.

        With a name it also reports the text so far of the first row, now and then.
        """
        start, shown = 0, 0.0  # tokens of the prompt; when the text was reported last

        def stop(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            nonlocal start, shown
            start = start or ids.shape[1] - 1
            if name and time.monotonic() - shown > WATCH_EVERY_S:
                text = self.loaded.tokenizer.decode(ids[0, start:], skip_special_tokens=True)
                self.line.report([name, text])
                shown = time.monotonic()
            return torch.full((len(ids),), self.line.is_cancelled(), device=ids.device)

        return stop


# ------------------------------------------------------------------------------------------------
# A detector.


PART = 512  # programs whose tokens are held at once
HEAD_CHARACTERS, HEAD_CHARACTERS_PER_TOKEN = 64_000, 32


class ServedDetector:
    """One loaded detector and how programs are scored."""

    def __init__(self, trained: TrainedDetector, line: Any, *, device: str) -> None:
        """Load it."""
        self.line = line
        self.loaded: LoadedDetector = load_detector(trained.folder, device=choose_device(device))
        self.stack = read_stack(trained.stack) if trained.stack else None
        self.facts = {"device": str(self.loaded.device)}

    def score(self, codes: list[str], batch_size: int, vectors: bool) -> dict[str, Any]:
        """Return logits, token counts, and unit vectors as base64 of float32, (programs, d).

        Raises:
            Stopped: It was cancelled.
            OutOfMemory: A batch does not fit.
        """
        logits: list[float] = []
        tokens: list[int] = []
        rows: list[np.ndarray] = []
        for start in range(0, len(codes), PART):
            heads, counts = read_heads(self.loaded, codes[start : start + PART])
            part_logits, part_vectors = self._scored(heads, batch_size)
            if self.stack is not None:
                whole = [canonical(code, self.stack.form) for code in codes[start : start + PART]]
                part_logits = self.stack.score(whole, part_logits)
            logits += part_logits.tolist()
            tokens += counts
            rows.append(part_vectors)
        scores: dict[str, Any] = {"logits": logits, "tokens": tokens}
        if vectors:
            table = np.ascontiguousarray(np.concatenate(rows), "<f4")
            packed = base64.b64encode(table.tobytes()).decode("ascii")
            scores |= {"vectors": packed, "dimensions": table.shape[1]}
        return scores

    def _scored(self, codes: list[str], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        with _batches(batch_size):
            return self.loaded.score(codes, batch_size=batch_size, report=_stopper(self.line))


def _stopper(line: Any) -> Callable[[int, int], None]:
    """Return what is called between batches: it ends a request that was cancelled."""

    def stop(done: int, total: int) -> None:
        if line.is_cancelled():
            raise Stopped("Scoring was stopped.", fix="ask again")

    return stop


@contextmanager
def _batches(size: int) -> Iterator[None]:
    """Say of an exhausted memory what helps: smaller batches."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"Scoring {size} programs at once needs more memory than there is.",
            fix="give a smaller batch_size, close other models, or load with device='cpu'",
            details=str(error)[:2000],
        ) from None  # the frames of the error hold the batch


def read_heads(loaded: LoadedDetector, codes: list[str]) -> tuple[list[str], list[int]]:
    """Return the part of each program that has to be read, and the tokens of the whole.

    A file of megabytes would take half a minute for the few hundred tokens that the model sees. Of
    a program longer than its head the tokens are estimated from those of the head.
    """
    seq_len, form = loaded.facts.seq_len, loaded.facts.canonical
    limit = max(HEAD_CHARACTERS, HEAD_CHARACTERS_PER_TOKEN * seq_len)
    texts = [canonical(code, form) for code in codes]
    # The canonical form drops blanks at the end: a letter there keeps those that are in the middle.
    heads = [text if len(text) <= limit else f"{text[:limit]}x" for text in texts]
    counts = _token_counts(loaded, heads)
    for row, text in enumerate(texts):
        if len(text) <= limit:
            continue
        if counts[row] > 2 * seq_len:
            counts[row] = round(counts[row] * len(text) / limit)
        else:  # tokens of hundreds of characters: nothing can be left out
            heads[row], counts[row] = text, _token_counts(loaded, [text])[0]
    return heads, counts


def _token_counts(loaded: LoadedDetector, texts: list[str]) -> list[int]:
    """Tokens of each text, special ones too, none cut off."""
    table = loaded.table(texts)
    special = 1 if table.bos_id is None else 2
    return [int(end - begin) + special for begin, end in pairwise(table.offsets)]


# ------------------------------------------------------------------------------------------------
# A clone model.


BLOCK = 256  # rows of pairs at once


class ServedClones:
    """One loaded clone model, and the states of the functions that were encoded last."""

    def __init__(self, trained: TrainedClones, line: Any, *, device: str) -> None:
        """Load it."""
        self.line = line
        self.loaded: LoadedClones = load_clones(trained, device=choose_device(device))
        self.facts = {"device": str(self.loaded.device)}
        self.states: list[torch.Tensor] = []

    def encode(
        self, codes: list[str], languages: list[str], start: int, batch_size: int
    ) -> dict[str, Any]:
        """Encode functions and keep their states; return a note on each, or "".

        Args:
            start: How many were encoded before that belong to these; 0 begins anew.

        Raises:
            Stopped: It was cancelled.
            OutOfMemory: A batch does not fit.
            ConfigError: The functions before these are lost.
        """
        if not start:
            self.states = []
        if sum(map(len, self.states)) != start:
            raise ConfigError("The model was loaded again meanwhile.", fix="ask again")
        with _batches(batch_size):
            states, notes = self.loaded.encode(
                codes, languages, batch_size=batch_size, report=_stopper(self.line)
            )
        self.states.append(states)
        return {"notes": notes}

    def best_pairs(
        self, rows: list[int], split_at: int | None, top: int, threshold: float
    ) -> dict[str, Any]:
        """Return the pairs with the highest mean of both orders; equal ones in order of rows.

        Args:
            rows: Which of the encoded functions each one is.
            split_at: Where the second group begins, whose pairs with the first are wanted; None:
                all pairs.

        Returns:
            `pairs`: (first, second, P(clone) as given, P(clone) reversed) of each; `n_pairs` and
            `n_clones`: all, and those above the threshold; `is_finite`.
        """
        states = torch.cat(self.states)[rows]
        last = len(states) if split_at is None else split_at
        best = torch.zeros(0, 4, dtype=torch.float64)
        n_pairs = n_clones = 0
        is_finite = True
        for start in range(0, last, BLOCK):
            stop = min(start + BLOCK, last)
            first = start if split_at is None else split_at
            given = self.loaded.probabilities(states[start:stop], states[first:])
            turned = self.loaded.probabilities(states[first:], states[start:stop]).T
            one = torch.arange(start, stop)[:, None].expand(given.shape)
            other = torch.arange(first, len(states))[None].expand(given.shape)
            is_pair = (other > one).to(given.device)
            table = torch.stack([x.double().cpu() for x in (one, other)], -1)[is_pair.cpu()]
            p = torch.stack([given[is_pair], turned[is_pair]], -1).double().cpu()
            is_finite &= bool(torch.isfinite(p).all())
            n_pairs, n_clones = n_pairs + len(p), n_clones + int((p.mean(1) > threshold).sum())
            best = torch.cat([best, torch.cat([table, p], 1)])
            order = best[:, 2:].mean(1).argsort(descending=True, stable=True)
            best = best[order[:top]]
            _stopper(self.line)(stop, last)
        pairs = [(int(one), int(other), *p) for one, other, *p in best.tolist()]
        counts = {"n_pairs": n_pairs, "n_clones": n_clones}
        return {"pairs": pairs if is_finite else [], "is_finite": is_finite, **counts}


SERVED: dict[str, Callable[..., ServedModel | ServedDetector | ServedClones]] = {
    "finetune": ServedModel,
    "detector": ServedDetector,
    "clones": ServedClones,
}
