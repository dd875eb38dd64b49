"""Use what a run trained: ask it, compare it with its base, merge it, export it; torch-free."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.child import Report
from nbhelpers.common.display import Table
from nbhelpers.common.files import is_folder, is_number
from nbhelpers.common.formatting import size
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.secrets import HF_TOKEN, find_secret
from nbhelpers.presets.checks import is_hub_id
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.use.model_process import Loaded, require_device, start_process
from nbhelpers.use.results import facts_table
from nbhelpers.use.trained import (
    AnyTrained,
    Trained,
    TrainedDetector,
    find_any,
    find_trained,
    path_of,
    place_for,
    require_adapter,
    require_template,
)

if TYPE_CHECKING:
    from nbhelpers.use.clones import CloneModel
    from nbhelpers.use.detector import Detector

Show = Callable[[str, str], None]  # whose answer, and the text so far


# ------------------------------------------------------------------------------------------------
# What using a trained model returns: answers side by side, a merged model, an exported folder.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answers of the base and of the tuned model to the same prompts."""

    prompts: tuple[str, ...]
    base: tuple[str, ...]
    tuned: tuple[str, ...]
    title: str

    @property
    def changed(self) -> int:
        """How many answers differ."""
        return sum(a != b for a, b in zip(self.base, self.tuned, strict=True))

    def __repr__(self) -> str:
        return f"Comparison({self.title}: {self.changed} of {len(self.prompts)} answers differ)"

    def text(self) -> str:
        """Return prompt, base and tuned answer one below the other."""
        rows = zip(self.prompts, self.base, self.tuned, strict=True)
        blocks = (f"prompt: {p}\n--- base\n{b}\n--- tuned\n{t}" for p, b, t in rows)
        return "\n\n".join(blocks)

    def _repr_html_(self) -> str:
        rows = [*zip(self.prompts, self.base, self.tuned, strict=True)]
        return Table(("prompt", "base", "tuned"), rows, title=repr(self)).html()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """A merged model that agrees with its adapter, and how well.

    `top1` is the share of positions with the same most likely token, `kl` the mean KL divergence
    in nats of the merged model's next-token distribution from the adapter's, over `positions`
    positions of `samples` texts. `limits` are the thresholds; `kl` must also be below
    `adapter_kl`, by which the adapter differs from its base. `training_base` says the same of the
    4-bit base that a QLoRA run was trained on: to be far from that is no fault of the merge.
    """

    path: Path
    run_id: str
    adapter: str
    precision: str
    size_bytes: int
    top1: float
    kl: float
    kl_max: float
    adapter_kl: float
    positions: int
    samples: int
    held_out: bool
    limits: dict[str, float]
    training_base: dict[str, float] | None
    reused: bool
    url: str | None = None  # where it was pushed to

    def __repr__(self) -> str:
        notes = ", merged before" if self.reused else ""
        notes += f", pushed to {self.url}" if self.url else ""
        return (
            f"MergeResult({self.run_id}, {self.precision}, {size(self.size_bytes, least_gib=0.1)}, "
            f"top-1 agreement {100 * self.top1:.2f} %, KL {self.kl:.2g} nats{notes})"
        )

    def rows(self) -> dict[str, str]:
        """Name and text of each figure."""
        where = "held-out" if self.held_out else "given"
        rows = {
            "folder": str(self.path),
            "adapter": f"{self.adapter} of {self.run_id}",
            "weights": f"{self.precision}, {size(self.size_bytes, least_gib=0.1)}",
            "measured on": f"{self.positions} tokens of {self.samples} {where} texts",
            "top-1 agreement": f"{100 * self.top1:.2f} % (limit {100 * self.limits['top1']:.2f} %)",
            "mean KL": f"{self.kl:.3g} nats (limit {self.limits['kl']:g})",
            "largest KL": f"{self.kl_max:.3g} nats",
            "KL of base and adapter": f"{self.adapter_kl:.3g} nats",
        }
        if base := self.training_base:
            rows["against the 4-bit base of the training"] = (
                f"top-1 agreement {100 * base['top1']:.2f} %, mean KL {base['kl']:.3g} nats"
            )
        return rows

    def _repr_html_(self) -> str:
        return facts_table(self.rows()).html()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """An exported folder, and where it was pushed to.

    `kind`: adapter, detector or clones. `agreement`: of a whole model, how far each form of it is
    from the trained one at most. `left_out`: forms that it cannot have, and why.
    """

    path: Path
    files: tuple[str, ...]
    url: str | None
    kind: str = "adapter"
    agreement: tuple[Mapping[str, Any], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        pushed = f", pushed to {self.url}" if self.url else ""
        return f"ExportResult({self.path}, {len(self.files)} files{pushed})"

    def _repr_html_(self) -> str:
        rows = {"folder": str(self.path), "files": ", ".join(self.files)}
        rows |= {**self.measured(), "pushed to": self.url or "not pushed"}
        return facts_table(rows).html()

    def measured(self) -> dict[str, str]:
        """Return what each form was measured to differ by, in words."""
        return {
            row["form"]: f"largest difference of a logit {row['logit']:.2g}, of a vector "
            f"{row['vector']:.2g} (allowed {row['limit']:g}), on {row['programs']} programs in "
            f"{row['batches']} batches"
            for row in self.agreement
        }


# ------------------------------------------------------------------------------------------------
# Use what a run trained: ask it, compare it with its base, merge it, export it; torch-free.
#
# The model lives in one persistent process (`child.Child`): the notebook's stays without torch,
# and closing the model gives the GPU's memory back whole.


class LoadedModel(Loaded):
    """A model that answers; made by `load`. It loads again by itself when its process was lost."""

    def __init__(self, trained: Trained, *, adapter: bool, device: str) -> None:
        """Load it; use `load` instead, which finds out what a path means."""
        self.has_adapter = adapter and trained.adapter is not None
        options = {"adapter": adapter}
        super().__init__(
            trained, device=device, options=lambda: options | {"token": _token(trained)}
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Device, precision, memory, and what was checked when the adapter was put on its base."""
        return self.reply

    def ask(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        raw: bool = False,
        system: str = "",
        timeout_s: float | None = None,
        show: Show | None = None,
    ) -> Any:
        """Return the answer to a prompt, or the list of answers to a list of prompts.

        An interrupt stops the answer and leaves the model usable.

        Args:
            prompt: The instruction; it is dressed in the run's template.
            max_new_tokens: None: the run's own limit.
            temperature: 0: the most likely token each time; else sampling from all tokens.
            seed: Of the sampling.
            raw: Pass the text on as it is, without the template.
            system: What stands before the instruction, as a system column of the data does.
            timeout_s: Limit for the whole call.
            show: Of one prompt: called with "tuned" (or "base") and the answer so far, as it comes.

        Raises:
            ConfigError: An argument is wrong, a prompt too long, or the model is closed.
            OutOfMemory: The answer needs more memory than there is; the model stays loaded.
            Killed: The time is over, or the process was killed.
            JobFailed: The process failed; the end of its log is shown.
        """
        texts = _prompts(prompt)
        options = _decoding(max_new_tokens, temperature, seed, raw, system)
        if not texts:
            return []
        options |= {"report": _shown(show), "watch": show is not None}
        reply = self.call("ask", timeout_s=timeout_s, prompts=texts, **options)
        return reply["answers"][0] if isinstance(prompt, str) else reply["answers"]

    def compare(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        raw: bool = False,
        system: str = "",
        timeout_s: float | None = None,
        show: Show | None = None,
    ) -> Comparison:
        """Return the answers of the base (the adapter switched off) and of the tuned model.

        Both get the same text, so the base is asked in the run's template as well. `show` is called
        as in `ask`, for the base first.

        Raises:
            ConfigError: No adapter is loaded; and what `ask` raises.
        """
        texts = _prompts(prompt)
        options = _decoding(max_new_tokens, temperature, seed, raw, system)
        if not self.has_adapter:
            require_adapter(self.trained, "compare")
            raise ConfigError(
                f"{self.trained.name} was loaded with adapter=False: there is nothing to compare.",
                fix="load it with adapter=True",
            )
        options |= {"report": _shown(show), "watch": show is not None}
        reply = self.call("compare", timeout_s=timeout_s, prompts=texts, **options)
        return Comparison(
            prompts=tuple(texts),
            base=tuple(reply["base"]),
            tuned=tuple(reply["tuned"]),
            title=self.trained.title,
        )

    @property
    def _what(self) -> str:
        if self.has_adapter or self.trained.adapter is None:
            return self.trained.title
        return f"{self.trained.settings.model}, adapter left out"

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        where = f"{self.facts.get('device')}, {self.facts.get('precision')}"
        return f"LoadedModel({self.trained.name}: {self._what}, {where}, {state})"

    def _repr_html_(self) -> str:
        rows = {"model": self.trained.name, "what": self._what}
        rows["device"] = f"{self.facts.get('device')}, {self.facts.get('precision')}"
        rows["template"] = self.trained.template
        if check := self.facts.get("check"):
            rows["adapter"] = (
                f"{check['tensors']} tensors on {check['modules']} layers, all loaded; "
                f"B is zero in {check['zero_b']}; largest change of a logit on a probe "
                f"{check['logit_difference']:.3g}"
            )
        if used := self.facts.get("memory_bytes"):
            rows["GPU memory"] = f"{used / 2**30:.2f} GiB"
        rows |= {"state": "closed" if self.is_closed else "open"}
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.trained.notes)
        return facts_table(rows).html() + notes


def load(
    run: Any,
    *,
    adapter: bool = True,
    device: str = "auto",
    base: str | None = None,
    template: str | None = None,
    run_dir: str | Path = "runs",
) -> LoadedModel | Detector | CloneModel:
    """Load what a run trained once, in a process of its own, and return what can be asked.

    A fine-tuning gives a `LoadedModel` (`ask`, `compare`), a detector a `Detector` (`score_code`,
    `detect`, `similar`, `calibrate`), a clone detection a `CloneModel` (`are_clones`, `clones_of`).

    Args:
        run: A run of any job, its id or folder, a result; a checkpoint, an adapter's folder, a
            merged model, an exported folder.
        adapter: False: the base of a fine-tuning alone.
        device: auto, cpu or cuda; a run of QLoRA has its base in 4 bits on either.
        base: The base of an adapter whose configuration names none: a hub id or a folder.
        template: How prompts are dressed, where a folder does not say.

    Raises:
        ConfigError: There is no such run, or an argument is wrong or not of its job.
        DataError: Files are missing or damaged, or the adapter changes nothing.
        HardwareError: device="cuda" without a GPU.
        OutOfMemory: The base does not fit.
    """
    require_template(template)
    trained = find_any(path_of(run), run_dir, base=base, template=template)
    if isinstance(trained, Trained):
        return LoadedModel(trained, adapter=bool(adapter), device=require_device(device))
    if not adapter or base is not None or template is not None:
        text = f"{trained.name} is of the job {trained.job}, which has no adapter and no template."
        raise ConfigError(text, fix="leave out adapter, base and template")
    if isinstance(trained, TrainedDetector):
        from nbhelpers.use.detector import BATCH_SIZE, Detector
        from nbhelpers.use.facts import detector_facts

        return Detector(detector_facts(trained), device=device, batch_size=BATCH_SIZE)
    from nbhelpers.use.clones import CloneModel, clone_facts

    return CloneModel(clone_facts(trained), device=device)


def load_adapter(
    run: Any,
    *,
    device: str = "auto",
    base: str | None = None,
    template: str | None = None,
    run_dir: str | Path = "runs",
) -> LoadedModel:
    """Load a fine-tuned model as `load` does; another job's is refused before it is loaded."""
    require_template(template)
    trained = find_trained(path_of(run), run_dir, base=base, template=template)
    return LoadedModel(trained, adapter=True, device=require_device(device))


def merge(
    run: Any,
    out: str | Path,
    *,
    prompts: Sequence[str] | None = None,
    device: str = "auto",
    push_to: str | None = None,
    private: bool = True,
    run_dir: str | Path = "runs",
    report: Report | None = None,
) -> MergeResult:
    """Write base and adapter as one model, and prove that it answers as the two do.

    The adapter is added to the 16-bit base (fp32 on a CPU), also where it was trained on 4 bits.
    The folder gets its name only after it was read back and its next-token distributions agree
    with the adapter's on held-out prompts; else it is kept as `<out>.failed`. Merging the same
    adapter into the same folder again returns what was measured.

    Args:
        prompts: Instructions to measure on; None: the run's own held-out samples.
        push_to: A repository `owner/name` on the hub; None: nothing leaves this machine.
        private: Whether a new repository is private.
        report: Called with a line of text at each step.

    Raises:
        ConfigError: No adapter, a full disk, `out` holds something else, or the hub refuses.
        RequirementMissed: The merged model does not agree; the figures are told.
    """
    trained = find_trained(path_of(run), run_dir)
    require_adapter(trained, "merge")
    target, texts = place_for(out, trained), None if prompts is None else _prompts(prompts)
    if texts == []:
        fix = "give some instructions, or leave prompts out: the run's held-out samples are taken"
        raise ConfigError("prompts is empty: a merge is measured on texts.", fix=fix)
    token = _push_token(push_to) or _token(trained)
    with start_process(device) as child:
        reply = child.call(
            "merge",
            report=report,
            trained=trained.to_dict(),
            token=token,
            out=str(target),
            prompts=texts,
            device=device,
            push_to=push_to,
            private=private,
        )
    known = {field.name for field in fields(MergeResult)}
    return MergeResult(path=target, **{k: v for k, v in reply.items() if k in known - {"path"}})


def export(
    run: Any,
    out: str | Path,
    *,
    onnx: bool = False,
    push_to: str | None = None,
    private: bool = True,
    run_dir: str | Path = "runs",
    report: Report | None = None,
) -> ExportResult:
    """Write a folder for others: the model, its tokenizer and a card from the run's facts.

    An adapter is opened by PEFT. A detector and a clone model are opened by `AutoModel` with
    `trust_remote_code`, their encoder by `AutoModel` alone, a similarity space by
    sentence-transformers; such a folder gets its name only after each form was read back and
    agrees with the trained model.

    Args:
        onnx: Also write a detector as an ONNX graph, measured likewise.
        push_to: A repository `owner/name` on the hub; None: nothing leaves this machine.
        private: Whether a new repository is private.
        report: Called with a line of text at each step; of an adapter there is none.

    Raises:
        ConfigError: No adapter, `out` holds something else, or the hub refuses.
        DataError: The checkpoint is damaged.
        RequirementMissed: A form does not agree with the trained model.
    """
    trained = find_any(path_of(run), run_dir)
    require_exportable(trained, onnx=onnx)
    target, token = place_for(out, trained), _push_token(push_to)
    with start_process() as child:
        reply = child.call(
            "export",
            report=report,
            trained=trained.to_dict(),
            out=str(target),
            onnx=onnx,
            push_to=push_to,
            private=private,
            token=token,
        )
    return ExportResult(
        path=target,
        files=tuple(reply["files"]),
        url=reply["url"],
        kind=reply["kind"],
        agreement=tuple(reply.get("agreement", ())),
        left_out=reply.get("left_out", {}),
    )


def require_exportable(trained: AnyTrained, *, onnx: bool) -> None:
    """Stop where a fine-tuning has no adapter to export.

    Raises:
        ConfigError: It has none, or a graph is asked for that there is not.
    """
    if isinstance(trained, Trained):
        require_adapter(trained, "export")
    if onnx and not isinstance(trained, TrainedDetector):
        what = "an adapter of a language model" if isinstance(trained, Trained) else "a clone model"
        text = f"onnx is for detectors; {trained.name} is {what}."
        raise ConfigError(text, fix="leave onnx out (in a shell: --onnx)")


def _push_token(push_to: str | None) -> str | None:
    """The token for a push, before anything is loaded; None where there is none to make."""
    if push_to is None:
        return None
    if not is_hub_id(push_to):
        raise ConfigError(f"push_to={push_to!r} is no repository's name.", fix="write OWNER/NAME")
    return find_secret(HF_TOKEN)


def _token(trained: Trained) -> str | None:
    """The hub's token where the base may have to be fetched; Colab takes seconds to say no."""
    model = trained.settings.model
    is_own = model in (*FINETUNE.models.embedded, *FINETUNE.models.packaged)
    return None if is_own or is_folder(model) else find_secret(HF_TOKEN)


def _shown(show: Show | None) -> Report | None:
    """What the process reports is a name and the text so far."""
    return None if show is None else lambda pair: show(*pair)


def _prompts(prompt: str | Sequence[str]) -> list[str]:
    if not isinstance(prompt, Iterable):
        raise ConfigError(f"The prompt is {prompt!r}.", fix="give a text, or a list of texts")
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"A prompt is {text!r}.", fix="give texts that are not empty")
    # Half a character cannot be written as UTF-8.
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _decoding(
    limit: int | None, temperature: float, seed: int | None, raw: bool, system: str
) -> dict[str, Any]:
    wrong = []
    if limit is not None and (type(limit) is not int or limit < 1):
        wrong.append(f"max_new_tokens={limit!r}: a whole number from 1 on, or None")
    if not is_number(temperature) or temperature < 0:
        wrong.append(f"temperature={temperature!r}: a number from 0 on")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        wrong.append(f"seed={seed!r}: a whole number from 0 on, or None")
    if not isinstance(system, str):
        wrong.append(f"system={system!r}: a text")
    elif system and raw:
        wrong.append("raw and system: raw has no template; write the system text into the prompt")
    if wrong:
        count = f"{len(wrong)} arguments are" if len(wrong) > 1 else "1 argument is"
        raise ConfigError(f"{count} wrong.", fix="; ".join(wrong))
    options = {"max_new_tokens": limit, "temperature": float(temperature), "seed": seed}
    return options | {"raw": bool(raw), "system": system}
