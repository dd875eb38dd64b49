"""The preset: checked settings that remember where every value came from.

`loading.py` reads files and makes presets; `checks.py` says what is wrong with them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.display import Table
from nbhelpers.common.formatting import gib
from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError
from nbhelpers.presets.catalog import GPT2_MODELS
from nbhelpers.presets.checks import (
    Problem,
    cross_problems,
    raise_problems,
    resolve_model,
    respelt,
    settings_class,
    source_problems,
    type_problems,
    unknown_names,
)
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.hardware.gpus import Gpu
    from nbhelpers.presets.schema import Settings

EXPERIMENT_FIELDS = ("global_batch_size", "learning_rate", "seq_len", "data_flow_length")
OVERRIDES = "overrides"
OF_MODEL = "(models: "  # in the origin of a value that stands under `models:` in a file
DERIVED = "derived"
QUICK = "quick"  # the origin of a value that makes the experiment small
QUICK_CHOICES = ("auto", "on", "off")
QUICK_BELOW_BYTES = 24 * 2**30
DEFAULTS = "nbhelpers/presets/schema.py (default)"
# Cards of one class differ by some percent: an L40S shows 6 % less memory than an RTX 6000 Ada, of
# which ECC hides as much. The presets leave that much room: a test plans every GPU.
MEMORY_TOLERANCE = 0.07
SMALLEST = "t4"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Preset:
    """Checked settings of one job, with the place and the reason of every value.

    `per_device_limit` is the per-device batch that the files ask for, where several GPUs share the
    global batch and take less of it each.
    """

    job: str
    name: str
    settings: Settings
    provenance: dict[str, str]
    why: dict[str, str]
    notes: tuple[str, ...]
    gpu: str | None
    num_target_gpus: int
    about: str
    base: dict[str, Any]
    per_device_limit: int | None = None

    def __repr__(self) -> str:
        s = self.settings
        nodes = getattr(s, "data_flow_length", None)  # each job has fields of its own
        extra = f" + {nodes} data-flow nodes" if nodes else ""
        adapter = f"{s.adapter}, " if JOBS[self.job].has_adapters else ""
        return (
            f"Preset({self.job}/{self.name}: {s.model}, {adapter}{s.seq_len:,} tokens{extra}, "
            f"global batch "
            f"{s.global_batch_size}, learning rate {s.learning_rate:g}, epochs {s.epochs}, "
            f"{len(self.changed())} values changed from base)"
        )

    def changed(self) -> list[tuple[str, Any, Any, str]]:
        """Return (field, base value, value, why) for every value that differs from the base."""
        values = self.settings.model_dump()
        return [
            (name, self.base[name], value, self.why.get(name, ""))
            for name, value in values.items()
            if name in self.base and self.base[name] != value
        ]

    def where(self, field: str) -> str:
        """Say in one sentence where the value of a field came from, and why.

        Raises:
            ConfigError: There is no such field.
        """
        if field not in self.provenance:
            fix = did_you_mean(field, self.provenance)
            raise ConfigError(f"There is no setting `{field}` in {self.job}.", fix=fix)
        value = getattr(self.settings, field)
        text = f"{field} = {value!r} comes from {self.provenance[field]}"
        if field in self.base and self.base[field] != value:
            text += f" (base: {self.base[field]!r})"
        return f"{text}: {self.why[field]}" if self.why.get(field) else text

    @property
    def quick(self) -> dict[str, Any]:
        """The settings that make a small experiment of it; none for the full one."""
        values = self.settings.model_dump()
        return {name: values[name] for name, place in self.provenance.items() if place == QUICK}

    def override(self, /, **changes: Any) -> Preset:
        """Return a copy with some settings changed; None means unchanged.

        Raises:
            ConfigError: A name or a value is wrong; all problems are listed.
        """
        new_values = {name: value for name, value in changes.items() if value is not None}
        new_values, problems = respelt(new_values, lambda _: OVERRIDES)
        of_model = {n for n, origin in self.provenance.items() if OF_MODEL in origin}
        draft = Draft(
            values=self.settings.model_dump() | new_values,
            provenance=self.provenance | dict.fromkeys(new_values, OVERRIDES),
            places=dict.fromkeys(new_values, OVERRIDES),
            why={k: v for k, v in self.why.items() if k not in new_values},
            reference=self.base | {n: getattr(self.settings, n) for n in of_model},
        )
        changed = build_preset(draft, origin=self, problems=problems)
        if "per_device_train_batch_size" not in new_values:
            changed = replace(changed, per_device_limit=self.per_device_limit)
        old, new = (JOBS[self.job].models.short_name(p.settings.model) for p in (self, changed))
        if old == new:
            return changed
        note = (
            f"the other values were chosen for {old or 'another model'}: nb.load_preset("
            f"{self.job!r}, {self.name!r}, overrides={{'model': …}}) takes those for the new one"
        )
        return replace(changed, notes=(*changed.notes, note))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps; `from_dict` reads them back."""
        plain = {f.name: getattr(self, f.name) for f in dataclass_fields(self)}
        plain |= {"settings": self.settings.model_dump(mode="json"), "notes": list(self.notes)}
        return {k: dict(v) if isinstance(v, dict) else v for k, v in plain.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preset:
        """Rebuild a preset that `to_dict` wrote; paths are not looked up again.

        Raises:
            ConfigError: Something is missing, unknown or of a wrong type.
        """
        known = dataclass_fields(cls)
        needed = {f.name for f in known if f.default is MISSING}  # others came in later versions
        odd = (needed - set(data)) | (set(data) - {f.name for f in known})
        if odd:
            odd = ", ".join(sorted(odd))
            fix = "use the version of nbhelpers that wrote it (`versions` in run.json)"
            raise ConfigError(f"A saved preset lacks or adds: {odd}.", fix=fix)
        raise_problems("the saved preset", type_problems(data["job"], data["settings"], {}))
        settings = settings_class(data["job"]).model_validate(data["settings"], strict=True)
        return cls(**{**data, "settings": settings, "notes": tuple(data["notes"])})

    def _repr_html_(self) -> str:
        heads = ("setting", "value", "from", "why")
        rows = {
            name: (name, str(value), self.provenance[name], self.why.get(name, ""))
            for name, value in self.settings.model_dump().items()
        }
        first = {name for name, *_ in self.changed()}
        first |= {n for n in rows if self.provenance[n].startswith((OVERRIDES, DERIVED))}
        shown = [row for name, row in rows.items() if name in first]
        rest = [row for name, row in rows.items() if name not in first]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        title = html.escape(f"Preset {self.job}/{self.name}: {self.about}")
        top = Table(heads, shown).html() if shown else "<p>Nothing differs from the base.</p>"
        below = f"<summary>{len(rest)} settings as in the base</summary>{Table(heads, rest).html()}"
        return f"<p><b>{title}</b></p>{notes}{top}<details>{below}</details>"


@dataclass(slots=True, kw_only=True)
class Draft:
    """Values on their way to a preset: not checked yet.

    `reference` holds what the base says for this model: an override that differs from it is noted.
    """

    values: dict[str, Any]
    provenance: dict[str, str]
    places: dict[str, str]
    why: dict[str, str]
    reference: dict[str, Any]


def build_preset(draft: Draft, *, origin: Any, problems: Iterable[Problem] = ()) -> Preset:
    """Check a draft and make the preset; `origin` gives job, name, notes, gpu, about and base.

    Raises:
        ConfigError: Lists all problems, those handed in and those found here.
    """
    job, places, known = origin.job, draft.places, settings_class(origin.job).model_fields
    where = {name: places.get(name, "the preset") for name in draft.values}
    odd = unknown_names(job, where, values=draft.values)
    draft.values = {name: value for name, value in draft.values.items() if name in known}
    wrong = type_problems(job, draft.values, places)
    notes = [*origin.notes, *_derive(job, draft)]
    values = draft.values
    crossed = cross_problems(job, values, places)
    crossed += source_problems(job, values, places)
    raise_problems(f"preset {job}/{origin.name}", [*problems, *odd, *wrong, *crossed])
    settings = settings_class(job).model_validate(values, strict=True)
    notes += _experiment_notes(draft)
    return Preset(
        job=job,
        name=origin.name,
        settings=settings,
        provenance={n: draft.provenance.get(n, DEFAULTS) for n in settings.model_dump()},
        why={name: text for name, text in draft.why.items() if name in known},
        notes=tuple(dict.fromkeys(notes)),
        gpu=origin.gpu,
        num_target_gpus=origin.num_target_gpus,
        about=origin.about,
        base=dict(origin.base),
    )


def _derive(job: str, draft: Draft) -> list[str]:
    """Resolve the model's alias, and drop from the files what the model cannot use."""
    values, provenance = draft.values, draft.provenance
    model = values.get("model")
    if isinstance(model, str) and model in JOBS[job].models.aliases:
        values["model"] = resolve_model(model, job)
        provenance["model"] += f" (alias {model})"
    notes = []
    if values.get("pretrain_steps") and model not in JOBS[job].models.embedded:
        why = (
            f"it is for the smoke models; the other values of this preset, learning_rate "
            f"{values.get('learning_rate')} among them, were chosen for them"
        )
        notes += _drop(draft, "pretrain_steps", 0, "the model is not built here", why)
    if values.get("engine") == "trl" and values.get("packing"):
        why = "TRL counts packed rows of seq_len tokens: packing=true would make another batch"
        notes += _drop(draft, "packing", False, "engine=trl", why)
    name = JOBS[job].models.short_name(model)
    if values.get("data_flow_length") is not None and name in GPT2_MODELS:
        notes += _drop(draft, "data_flow_length", None, "a GPT-2", f"{name} reads plain text")
    return notes


def _drop(draft: Draft, name: str, value: Any, origin: str, why: str) -> list[str]:
    """Replace a value of the files, and return the note; what was typed on purpose stays."""
    if draft.provenance.get(name) == OVERRIDES:
        return []
    note = f"{name} {draft.values[name]} -> {value}: {why}"
    draft.values[name] = value
    draft.provenance[name] = f"{DERIVED}: {origin}"
    draft.why.pop(name, None)
    return [note]


def _experiment_notes(draft: Draft) -> list[str]:
    base = draft.reference
    return [
        f"the override {name}={draft.values[name]!r} changes the experiment (base: {base[name]!r})"
        for name in EXPERIMENT_FIELDS
        if draft.provenance.get(name) == OVERRIDES
        and base.get(name, draft.values[name]) != draft.values[name]
    ]


def quick_reason(quick: str, hardware: Hardware | None) -> tuple[bool, str]:
    """Return whether the small experiment of a job is made, and why.

    Args:
        quick: `on`, `off`, or `auto`: without a GPU and on a card below 24 GiB.
        hardware: Decides for `auto`.

    Raises:
        ConfigError: `quick` is none of these.
    """
    if quick not in QUICK_CHOICES:
        fix = 'write quick="auto", "on" or "off"'
        raise ConfigError(f"quick is {quick!r}, which is no choice.", fix=fix)
    if quick != "auto":
        return quick == "on", "as asked for"
    gpu = hardware.gpu if hardware is not None else None
    if gpu is None:
        return True, "there is no GPU"
    is_small = _memory(gpu) < QUICK_BELOW_BYTES * (1 - MEMORY_TOLERANCE)
    size = f"{gpu.name} has {gib(_memory(gpu))}"
    return is_small, f"{size}, less than {gib(QUICK_BELOW_BYTES)}" if is_small else size


def make_quick(job: str, draft: Draft, typed: Container[str]) -> list[str]:
    """Make the small experiment of a draft: limits below its own values, and fewer rows.

    What was typed stays, and so does the share of rows where the data is somebody's own.
    """
    values, changed = draft.values, []
    for name, limit in JOBS[job].quick.items():
        now = values.get(name)
        if name in typed or (name == "train_fraction" and "data" in typed):
            continue
        new = round(now * limit, 6) if name == "train_fraction" else min(now or limit, limit)
        if new != now:
            values[name], draft.provenance[name] = new, QUICK
            draft.why.pop(name, None)
            changed.append(f"{name} {new}")
    return changed


class Candidate(NamedTuple):
    """A preset that `auto` may choose, and the GPU that it was made for."""

    name: str
    gpu: str
    gpus: int
    memory_bytes: int
    capability: tuple[int, int]


def choose(
    candidates: list[Candidate], hardware: Hardware | None, num_gpus: object = None
) -> tuple[str, tuple[str, ...]]:
    """Return the name of the preset for this hardware, and notes that say why it is this one.

    The GPU and count of a preset, else one GPU of that kind, else the nearest smaller GPU by memory
    among those that need no number format that this GPU lacks.
    """
    gpu = hardware.gpu if hardware is not None else None
    if hardware is None or gpu is None:
        reason = getattr(hardware, "reason", "") or "no hardware was given"
        return "smoke", (f"preset smoke: {reason}",)
    count = num_gpus if type(num_gpus) is int else len(hardware.gpus)
    notes = []
    if len({other.name for other in hardware.gpus}) > 1:
        notes.append(f"unlike GPUs: the smallest by memory, {gpu.name}, decides")
    weakest = ("fp32", "fp16", "bf16").index(hardware.precision)
    usable = [c for c in candidates if _format(c.capability) <= weakest and c.gpus in (1, count)]
    same = [c for c in usable if c.gpu == gpu.key]
    fitting = [c for c in usable if c.memory_bytes * (1 - MEMORY_TOLERANCE) <= _memory(gpu)]
    if same:
        chosen = _best(same, gpu, count)
    elif fitting:
        chosen = _best(fitting, gpu, count)
        notes.append(
            f"no preset was made for {gpu.name} ({gib(_memory(gpu))}): {chosen.name} is the "
            f"nearest by memory and capability ({chosen.gpu}, {gib(chosen.memory_bytes)})"
        )
    else:
        text = (
            f"warning: {gpu.name} ({gib(_memory(gpu))}, capability {_dotted(gpu)}) is below "
            f"every GPU that a preset was made for; {SMALLEST} is the smallest: see its budget"
        )
        return SMALLEST, (*notes, text)
    if chosen.gpus != count:
        notes.append(f"{chosen.name} is for one GPU; {count} GPUs share the same global batch")
    return chosen.name, tuple(notes)


def _best(candidates: list[Candidate], gpu: Gpu, count: int) -> Candidate:
    """The largest memory; within the tolerance not newer than the GPU, then newest, then count."""
    largest = max(c.memory_bytes for c in candidates) * (1 - MEMORY_TOLERANCE)
    near = [c for c in candidates if c.memory_bytes >= largest]
    return max(
        near, key=lambda c: (c.capability <= gpu.compute_capability, c.capability, c.gpus == count)
    )


def _format(capability: tuple[int, int]) -> int:
    """2: bf16 and fp16 tensor cores; 1: fp16 only; 0: neither."""
    return (capability >= (7, 0)) + (capability >= (8, 0))


def _memory(gpu: Gpu) -> int:
    return gpu.memory_total_bytes


def _dotted(gpu: Gpu) -> str:
    return ".".join(str(part) for part in gpu.compute_capability)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a whole number, ascending, in the time of its square root.

    >>> divisors(12), divisors(1_000_000_007)
    ((1, 2, 3, 4, 6, 12), (1, 1000000007))
    """
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(dict.fromkeys([*small, *(number // n for n in reversed(small))]))


def shared_size(total: int, wanted: int, world_size: int) -> int | None:
    """Return the largest per-device batch up to `wanted` that splits `total` evenly.

    >>> [shared_size(64, 16, n) for n in (1, 4, 8, 3)]
    [16, 16, 8, None]
    """
    per_gpu, rest = divmod(total, world_size)
    if rest or not per_gpu:
        return None
    return max(size for size in divisors(per_gpu) if size <= wanted)


def share(preset: Preset, world_size: int) -> Preset:
    """Return the preset with a per-device batch that lets `world_size` GPUs share the global batch.

    The global batch and so the experiment stay; without such a size the preset stays as it is, and
    `plan_batch` says what is possible.
    """
    total, wanted = preset.settings.global_batch_size, preset.settings.per_device_train_batch_size
    size = shared_size(total, wanted, world_size)
    if size in (None, wanted):
        return preset
    note = (
        f"per_device_train_batch_size {wanted} -> {size}: {world_size} GPUs share the global batch "
        f"of {total}"
    )
    changed = preset.override(per_device_train_batch_size=size)
    origin = f"{DERIVED} for {world_size} GPUs"
    provenance = changed.provenance | {"per_device_train_batch_size": origin}
    notes = (*preset.notes, note)
    return replace(changed, provenance=provenance, notes=notes, per_device_limit=wanted)
