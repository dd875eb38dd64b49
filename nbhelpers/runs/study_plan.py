"""The plan of a study: runs that differ only in adapter and seed, before any is started."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import DOES_NOT_FIT, MemoryBudget
from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.speeds import read_rows
from nbhelpers.budget.time import EVALUATION, TimeBudget, predict_time, total_time
from nbhelpers.common.display import Table
from nbhelpers.data.sources import count_rows
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.plan import BatchPlan, plan_batch
from nbhelpers.presets.adapters import (
    LARGEST_RANK,
    Variant,
    parse_seeds,
    parse_variants,
    plain_variant,
)
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.parameters import override_words
from nbhelpers.presets.preset import Preset
from nbhelpers.runs.identity import folder_stamp, run_id
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import is_fresh_by_default

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.schema import FinetuneSettings


# The basis of a time without phases: nothing will run. Why stands in the words.
FINISHED, REFUSED = "finished", "refused"
WORDS = {FINISHED: "finished: its result is used", REFUSED: "none: it does not fit"}


def saved_time(data: Mapping[str, Any]) -> TimeBudget:
    """Return the time of a row of study.json; 0.1.0 wrote a sum without phases."""
    if "phases" in data:
        return TimeBudget.from_dict(data)
    seconds = {name: data.get(name) for name in ("low_s", "expected_s", "high_s")}
    phases = [] if data.get("basis") in WORDS else [{"name": "run"} | seconds]
    plain = {"phases": phases, "basis": data.get("basis"), "notes": data.get("notes") or []}
    return TimeBudget.from_dict(plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a study before it starts; its name is its adapter, and the seed among several."""

    name: str
    adapter: str
    run_id: str
    preset: Preset
    plan: BatchPlan
    budget: MemoryBudget
    time: TimeBudget

    @property
    def is_base(self) -> bool:
        """Whether it is the model without an adapter."""
        return self.preset.settings.method == "base"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: v if isinstance(v, str) else v.to_dict() for n, v in values.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlannedRun:
        """Rebuild what `to_dict` wrote."""
        readers = {"preset": Preset.from_dict, "plan": BatchPlan.from_dict, "time": saved_time}
        readers |= {"budget": MemoryBudget.from_dict}
        names = [field.name for field in fields(cls)]
        return cls(**{name: readers.get(name, str)(data[name]) for name in names})

    def cells(self) -> tuple[str, ...]:
        """Return adapter, method, rank, alpha, seed, memory and time, as text."""
        s = self.preset.settings
        rank, alpha = ("-", "-") if self.is_base else (str(s.lora_r), f"{s.alpha:g}")
        memory = self.budget.verdict
        if self.budget.total_bytes:
            memory = f"{self.budget.need()}: {memory}"
        return (self.name, s.method, rank, alpha, str(s.seed), memory, self.time_words())

    def time_words(self) -> str:
        """Say how long it may take, or why nothing will run."""
        return WORDS.get(self.time.basis) or self.time.words()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Study:
    """Runs in the order in which they run; the same data in the same order, one adapter each."""

    id: str
    rows: tuple[PlannedRun, ...]
    notes: tuple[str, ...] = ()

    HEADS = ("adapter", "method", "rank", "alpha", "seed", "memory (predicted)", "time (predicted)")

    @property
    def time(self) -> TimeBudget:
        """How long all runs that are left may take, one after the other."""
        return total_time(row.time for row in self.rows if row.time.basis not in WORDS)

    @property
    def trained(self) -> tuple[PlannedRun, ...]:
        """The runs that train an adapter."""
        return tuple(row for row in self.rows if not row.is_base)

    @property
    def refused(self) -> tuple[PlannedRun, ...]:
        """The runs that are predicted not to fit, so that they will not start."""
        return tuple(row for row in self.rows if row.time.basis == REFUSED)

    def time_words(self) -> str:
        """Say how long what will run may take, and what will not."""
        words = self.time.words() if self.time.phases else WORDS[FINISHED]
        if not self.refused:
            return words
        names = ", ".join(row.name for row in self.refused)
        rest = [row.name for row in self.rows if row not in self.refused]
        if not rest:
            return "no run fits"
        if self.is_hopeless:
            return f"no adapter fits; {', '.join(rest)} alone: {words}"
        return f"without {names} (does not fit): {words}"

    @property
    def is_hopeless(self) -> bool:
        """Whether runs that train were planned, and none of them fits."""
        return bool(self.trained) and all(row in self.refused for row in self.trained)

    def require_fit(self) -> None:
        """Stop where no adapter fits.

        Raises:
            BudgetError: Names the settings that would fit.
        """
        if not self.is_hopeless:
            return
        needs = [f"{row.name} {row.budget.total_bytes / 2**30:.1f} GiB" for row in self.trained]
        largest = max(self.trained, key=lambda row: row.budget.total_bytes).budget
        has, advice = (largest.capacity_bytes or 0) / 2**30, largest.advice
        raise BudgetError(
            f"No adapter of the study fits (predicted: {', '.join(needs)}); the GPU has {has:.1f} "
            "GiB.",
            fix="set one of: " + "; or ".join(advice) if advice else "use a larger GPU",
        )

    def all_notes(self) -> tuple[str, ...]:
        """Return what the plan and its time assume."""
        answers = (p.note for p in self.time.phases if p.name == EVALUATION and p.note)
        return tuple(dict.fromkeys((*self.notes, *self.time.notes, *answers)))

    def __repr__(self) -> str:
        count = f"{len(self.rows)} run{'s' * (len(self.rows) != 1)}"
        names = ", ".join(row.name for row in self.rows)
        return f"Study({count}: {names}; time: {self.time_words()})"

    def text(self) -> str:
        """Return the table in aligned columns, with the total and what it assumes."""
        table = Table(self.HEADS, [row.cells() for row in self.rows]).text()
        assumed = [f"  - {note}" for note in self.all_notes()]
        return "\n".join([table, f"In total: {self.time_words()}", *assumed])

    def _repr_html_(self) -> str:
        total = ("in total", "", "", "", "", "", self.time_words())
        title = f"A study of {len(self.rows)} runs on the same data in the same order"
        rows = [*(row.cells() for row in self.rows), total]
        return Table(self.HEADS, rows, title, self.all_notes()).html()

    def command(self) -> str:
        """Return the shell's command for this study; empty where it varies what a name cannot say.

        An adapter given as a mapping has settings of its own, which only Python takes.
        """
        first, seeds = self.rows[0].preset, {row.preset.settings.seed for row in self.rows}
        for row in self.trained:
            s, like = row.preset.settings, first.settings
            ratio = s.alpha / s.lora_r == like.alpha / like.lora_r
            is_plain = ratio and s.lora_target_modules == like.lora_target_modules
            if row.adapter != s.adapter or not is_plain:
                return ""
        # The base keeps rank and alpha of the preset; a first adapter has its own.
        of_study = {"method", "seed"}
        if first.settings.method != "base" and first.provenance.get("lora_alpha") != "overrides":
            of_study |= {"lora_r"}
        names = dict.fromkeys(row.adapter for row in self.rows)
        words = ["nbhelpers", "study", "--preset", first.name, "--adapters", ",".join(names)]
        words += ["--seeds", ",".join(map(str, sorted(seeds)))]
        return shlex.join([*words, *override_words(first, leave_out=of_study)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        rows = [row.to_dict() for row in self.rows]
        return {"id": self.id, "rows": rows, "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Study:
        """Rebuild a study that `to_dict` wrote.

        Raises:
            ConfigError: A field of a preset, plan, budget or time is missing, unknown or of a
                wrong type.
        """
        rows = tuple(PlannedRun.from_dict(row) for row in data["rows"])
        return cls(id=data["id"], rows=rows, notes=tuple(map(str, data.get("notes") or ())))


def plan_study(
    preset: Preset,
    hardware: Hardware,
    *,
    adapters: str | Iterable[str | Mapping[str, Any]],
    seeds: str | int | Sequence[int] | None = None,
    run_dir: str | Path = "runs",
) -> Study:
    """Return the runs of a study with their memory and time; nothing is started.

    The model without an adapter is evaluated first, unless nothing is to be evaluated. It is the
    same for every seed, but where its weights are random.

    Args:
        preset: Of the job finetune; every run keeps all of it but its adapter and its seed.
        hardware: Where it will run.
        adapters: See `parse_variants`.
        seeds: One run of every adapter for each; None: the preset's seed.
        run_dir: Earlier runs there tell how long one takes.

    Raises:
        ConfigError: An adapter, a seed or a setting is wrong, or two adapters are the same run.
        HardwareError: As for `plan_batch`.
        DataError: Local data has too few rows, which every run would say.
    """
    if not JOBS[preset.job].has_adapters:
        fix = "load a preset of the job finetune; other jobs launch one run at a time"
        raise ConfigError(f"A study compares adapters, and {preset.job} has none.", fix=fix)
    _require_rows(preset.settings)
    variants, seed_list, notes = parse_variants(adapters), parse_seeds(seeds), []
    methods = [variant.changes["method"] for variant in variants]
    if preset.settings.evaluate == "none" and set(methods) != {"base"}:
        variants = [v for v in variants if v.changes["method"] != "base"]
        notes.append("evaluate=none: the model without an adapter has nothing to do")
    elif "base" not in methods:
        variants.insert(0, plain_variant("base", None))
    named = list(_named_presets(preset, variants, seed_list or [preset.settings.seed]))
    if (
        seed_list
        and len(seed_list) > 1
        and sum(p.settings.method == "base" for *_, p in named) == 1
    ):
        notes.append("base is evaluated once: no seed changes it")
    rows = _planned_rows(named, hardware, run_dir)
    for row in rows:
        if row.time.basis == REFUSED:
            advice = f": {row.budget.advice[0]}" if row.budget.advice else ""
            notes.append(f"{row.name} is predicted not to fit and will not start{advice}")
    if preset.quick:
        smaller = ", ".join(f"{name} {value}" for name, value in preset.quick.items())
        notes.append(f"a quick study, smaller than the preset: {smaller}")
    if preset.settings.lora_alpha is not None:
        notes.append("lora_alpha follows the rank: alpha / rank stays as in the preset")
    digest = hashlib.sha256("\n".join(row.run_id for row in rows).encode()).hexdigest()[:10]
    return Study(id=f"study-{digest}", rows=rows, notes=tuple(notes))


def _require_rows(s: FinetuneSettings) -> None:
    counts = count_rows(s.data)
    train = counts.get("train", counts.get(""))
    held_out = {"test": s.eval_samples, "valid": s.valid_samples}
    missing = {name: n for name, n in held_out.items() if name not in counts}
    if train is not None and missing and train < sum(missing.values()) + 1:
        from nbhelpers.data.instructions import too_few  # slow to import

        raise too_few(train, missing)


def _named_presets(
    preset: Preset, variants: list[Variant], seeds: list[int]
) -> Iterable[tuple[str, str, Preset]]:
    """Each run's name, adapter and preset; a seed at a time: whole comparisons are done early."""
    s = preset.settings  # an embedded model is pre-trained with a seed of its own
    is_seeded = s.random_weights and s.model not in JOBS[preset.job].models.embedded
    for position, seed in enumerate(seeds):
        for variant in variants:
            is_base = variant.changes["method"] == "base"
            if is_base and position and not is_seeded:
                continue
            is_once = len(seeds) == 1 or (is_base and not is_seeded)
            changed = preset.override(**_scaled(s, variant.changes), seed=seed)
            name = variant.name if is_once else f"{variant.name}-seed{seed}"
            yield name, variant.name, changed


def _scaled(s: FinetuneSettings, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes; an alpha that was chosen for the preset's own rank follows the rank."""
    if s.lora_alpha is None or "lora_alpha" in changes or "lora_r" not in changes:
        return changes
    rank = changes["lora_r"]
    if type(rank) is not int or not 1 <= rank <= LARGEST_RANK:  # told where the preset takes it
        return changes
    return changes | {"lora_alpha": s.lora_alpha * rank / s.lora_r}


def _planned_rows(
    named: list[tuple[str, str, Preset]], hardware: Hardware, run_dir: str | Path
) -> tuple[PlannedRun, ...]:
    first = named[0][-1].settings
    stamp = folder_stamp(first.data, first.model, None)  # as `launch` makes it
    speeds, rows, ids, same = read_rows(run_dir), [], {}, {}
    for name, adapter, preset in named:
        settings = preset.settings.model_dump(mode="json")
        ident = run_id(preset.job, settings, mode="train", stamp=stamp)
        if name in ids.values():
            fix = "give the adapter another name"
            raise ConfigError(f"Two runs of the study are named {name}.", fix=fix)
        key = _trains(preset.settings)
        if key in same:
            text = f"The adapters {same[key]} and {name} are the same run."
            raise ConfigError(text, fix="keep one of the two, or change its settings")
        ids[ident] = same[key] = name
        plan = plan_batch(preset, hardware)
        time = predict_time(preset, plan, hardware, rows=speeds)
        if not is_fresh_by_default() and Run(Path(run_dir) / ident).status == "finished":
            time = TimeBudget(phases=(), basis=FINISHED)
        budget = predict_memory(preset, plan, hardware)
        if budget.verdict == DOES_NOT_FIT and time.basis != FINISHED:
            time = TimeBudget(phases=(), basis=REFUSED)
        facts = {"run_id": ident, "preset": preset, "plan": plan, "budget": budget, "time": time}
        rows.append(PlannedRun(name=name, adapter=adapter, **facts))
    return tuple(rows)


def _trains(s: FinetuneSettings) -> tuple[Any, ...]:
    """What tells two runs of a study apart, however it is written."""
    if s.method == "base":
        return "base", s.seed
    return s.method, s.lora_r, s.alpha, frozenset(s.lora_target_modules), s.seed
