"""A threshold fixed on the user's own known-human code, and exactly what it promises there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbhelpers.common.files import expanded, is_number, kind_of, read_json, rebuilt, write_json
from nbhelpers.common.formatting import percent
from nbhelpers.common.result_files import DetectorFile
from nbhelpers.data.canonical import canonical
from nbhelpers.data.files import ENDINGS
from nbhelpers.data.findings import KINDS, Findings
from nbhelpers.data.languages import label_of
from nbhelpers.data.near_duplicates import ShingleIndex
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.intervals import clopper_pearson, humans_needed, promised_fpr
from nbhelpers.use.code_files import CodeFile, Entry, Skipped, chunks, code_file, find_files, shown
from nbhelpers.use.facts import DetectorFacts, Rate, ai_test_logits
from nbhelpers.use.results import SHOWN, Block, Shown, facts_table
from nbhelpers.use.trained import FACTS_FILE, TrainedDetector

# ------------------------------------------------------------------------------------------------
# Known-human code for a calibration: read from files or rows, each program counted once.


AI_WORDS = "labelled AI"


@dataclass(frozen=True, slots=True, kw_only=True)
class Humans:
    """Programs that people are known to have written, each once; `n_files` were read."""

    source: str
    files: tuple[CodeFile, ...]
    n_files: int
    skipped: tuple[Skipped, ...]

    @property
    def n_duplicates(self) -> int:
        """Copies and near copies of another, which were left out."""
        return self.n_files - len(self.files)


def read_humans(source: Any, form: str) -> Humans:
    """Return the distinct programs of a folder or file of code, or of a file of rows.

    What is labelled AI, by its row or by the name of its folder, is left out.

    Args:
        source: A folder or a file of code; a .jsonl, .csv or .parquet file of rows; a hub id.
        form: The canonical form in which programs are compared.

    Raises:
        ConfigError: There is nothing at the place.
        DataError: The rows cannot be read.
    """
    place = expanded(source, "humans")
    skipped: list[Skipped] = []
    kind, is_table = kind_of(place), place.suffix.lower() in ENDINGS
    if kind == "folder" or (kind == "file" and not is_table):
        entries, skipped = find_files(place)
        humans = [entry for entry in entries if _is_human(entry, skipped)]
        files = [file for chunk in chunks(humans, skipped) for file in chunk]
    else:
        files = _rows(str(source), skipped)
    distinct = tuple(_distinct(files, form))
    name, n_files = shown(str(source)), len(files)
    return Humans(source=name, files=distinct, n_files=n_files, skipped=tuple(skipped))


def _is_human(entry: Entry, skipped: list[Skipped]) -> bool:
    """Whether no folder that a file lies in is named for AI code."""
    parts = (part for part in entry.name.split("/")[:-1] if not part.isdigit())
    named = next((part for part in parts if label_of(part) == "ai"), None)
    if named is not None:
        detail = f"its folder is called {named}"
        skipped.append(Skipped(name=entry.name, reason=AI_WORDS, detail=detail))
    return named is None


def _rows(source: str, skipped: list[Skipped]) -> list[CodeFile]:
    from nbhelpers.data.detection import read_rows

    files, findings = [], Findings("drop", source)
    for row in read_rows(source, findings=findings, what="humans"):
        if row.label == "ai":
            place = shown(row.place or row.id)
            skipped.append(Skipped(name=place, reason=AI_WORDS, detail="by its row"))
            continue
        files.append(code_file(row.code, row.language, shown(row.place or row.id)))
    for kind in findings.kinds("problem"):
        n_more = findings.counts[kind] - len(findings.examples[kind])
        places = [example.place for example in findings.examples[kind]] + ["more rows"] * n_more
        skipped += [Skipped(name=shown(p), reason=KINDS[kind][1], detail="") for p in places]
    return files


def _distinct(files: list[CodeFile], form: str) -> list[CodeFile]:
    """Leave out each program that equals or nearly equals an earlier one."""
    index = ShingleIndex(canonical(file.code, form) for file in files)
    repeated = {match.row for match in index.repeats(range(len(files)))}
    return [file for row, file in enumerate(files) if row not in repeated]


# ------------------------------------------------------------------------------------------------
# A threshold fixed on the user's own known-human code, and exactly what it promises there.
#
# A threshold does not carry over to other people; on files that they are known to have written
# themselves it can be fixed anew. With n such files the threshold is one of their scores, and how
# often the next file by the same people lies above it has a known distribution, whatever the model.
#
# Source: Wilks 1941, Determination of Sample Sizes for Setting Tolerance Limits, Ann. Math. Stat.
# 12; the upper limit is Clopper and Pearson's for the files that were let lie above.


FORMAT = 1
_AGAIN = "write it again: nbhelpers calibrate --humans FOLDER --model RUN"
MAX_FPR = 0.2  # a promise of more protects nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Shown):
    """A threshold and what it promises, for people like those whose code it was fixed on.

    Attributes:
        weights_sha256: Of the model that it belongs to; another model's is refused.
        stack_sha256: Of what is summed with its score, likewise; "" where nothing is.
        n_files: Files of code that were read.
        n_duplicates: Of these, copies and near copies of another: counted once.
        left_out: By reason, how many files could not be scored or are never called anything.
        n: Programs that the threshold was fixed on.
        exceed: Of these, how many may lie above it.
        needed: Programs that `target_fpr` needs, where none lies above the threshold.
        promised_fpr: With `confidence`, at most this share of such people's code lies above it.
        languages: Programs per language.
        run_threshold: What the run's own threshold would have done to these people, or {}.
        run_ai: How many of the AI programs in the run's test lie above the threshold, or {}.
    """

    weights_sha256: str
    model: str
    run_id: str
    canonical: str
    target_fpr: float
    confidence: float
    n_files: int
    n_duplicates: int
    left_out: dict[str, int]
    n: int
    exceed: int
    needed: int
    threshold_logit: float
    threshold: float
    promised_fpr: float
    languages: dict[str, int]
    run_threshold: dict[str, float | list[float]]
    run_ai: dict[str, float]
    source: str
    created: str
    note: str = ""
    stack_sha256: str = ""

    @property
    def is_met(self) -> bool:
        """Whether what was asked for is promised; only then is anything called AI."""
        return self.promised_fpr <= self.target_fpr

    @property
    def held_promise(self) -> float:
        """The share that its counts promise."""
        return promised_fpr(self.n, self.exceed, self.confidence)

    @property
    def rate(self) -> Rate:
        """The false-positive rate to expect, and its 95 % interval."""
        interval = clopper_pearson(self.exceed, self.n)
        return Rate(
            on="known-human programs of your own",
            n=self.n,
            fpr=self.exceed / self.n,
            interval=interval,
            expected=(self.exceed + 1) / (self.n + 1),  # of an order statistic, exact
        )

    @property
    def promise(self) -> str:
        """What holds, as a sentence."""
        return (
            f"With {percent(self.confidence)} % confidence at most {percent(self.promised_fpr)} % "
            f"of the code that people like these write lies above the threshold"
        )

    @property
    def allows(self) -> str:
        """What so many programs can promise, whatever they score, as a sentence."""
        least = percent(promised_fpr(self.n, 0, self.confidence))
        return (
            f"{self.n} programs can promise {least} % at the least, with none of them above the "
            f"threshold; {percent(self.target_fpr)} % takes {self.needed}"
        )

    @property
    def lack(self) -> str:
        """What is missing where the promise that was asked for cannot be made; else ""."""
        if self.is_met:
            return ""
        return (
            f"{percent(self.target_fpr)} % was asked for, and {self.n} programs cannot promise it: "
            f"it takes {self.needed}, {self.needed - self.n} more. Nothing is called AI with it"
        )

    def rows(self) -> dict[str, str]:
        """Name and text of each figure."""
        spoken = ", ".join(f"{count} {name or 'unknown'}" for name, count in self.languages.items())
        rows = {
            "model": f"{self.model} ({self.run_id}), weights {self.weights_sha256[:12]}",
            "known-human code": f"{self.source}: {self.n_files} files read, {self.n_duplicates} "
            f"copies or near copies; {self.n} count",
            "left out": ", ".join(f"{n:.0f} {why}" for why, n in self.left_out.items()) or "none",
            "languages": spoken,
            "threshold": f"score above {self.threshold:.6g} (logit {self.threshold_logit:.4f}), "
            f"at most {self.exceed} of these {self.n} lie above it",
            "promise": f"{self.promise}.",
            "what so many allow": f"{self.allows}.",
        }
        if self.lack:
            rows["not promised"] = f"{self.lack}."
        if own := self.run_threshold:
            low, high = own["interval"]
            rows["the run's own threshold"] = (
                f"would have called {percent(own['fpr'])} % [{percent(low)}, {percent(high)}] of "
                "these programs AI"
            )
        if ai := self.run_ai:
            rows["what it finds"] = (
                f"{percent(ai['share_above'])} % of the {ai['n']:.0f} AI programs in the run's "
                "own test lie above it; AI code that is edited, or of other models, is found less"
            )
        if self.note:
            rows["note"] = f"{self.note.rstrip('.')}."
        rows["limits"] = (
            "The promise counts programs as independent: many files by few people promise less. "
            "It holds for people, tasks and languages like these, and for this model only."
        )
        return rows

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the figures as one table."""
        return [facts_table(self.rows())]

    def __repr__(self) -> str:
        met = "" if self.is_met else f" instead of {percent(self.target_fpr)} %: nothing is called"
        return (
            f"Calibration({self.n} programs, threshold {self.threshold:.4g}, at most "
            f"{percent(self.promised_fpr)} % false positives{met})"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"format": FORMAT, **asdict(self)}

    def save(self, path: str | Path) -> Path:
        """Write it as JSON.

        Raises:
            ConfigError: The place cannot be written.
        """
        place = Path(path)
        try:
            write_json(place, self.to_dict())
        except OSError as error:
            text = f"{place} cannot be written: {error.strerror or error}."
            raise ConfigError(text, fix="name another file (in a shell: --out FILE)") from error
        return place


def load_calibration(path: str | Path) -> Calibration:
    """Return the calibration that `Calibration.save` wrote.

    Raises:
        DataError: It is no such file, a field is missing, or it was changed.
    """
    data = read_json(path)
    if data is None or data.pop("format", None) != FORMAT:
        raise DataError(f"{path} is no calibration.", fix=_AGAIN)
    what = f"calibration ({path})"
    saved = rebuilt(Calibration, data, what, ignore_unknown=True, error=DataError, fix=_AGAIN)
    if not 0 <= saved.exceed < saved.n or abs(saved.promised_fpr - saved.held_promise) > 1e-9:
        text = f"{path} promises what its counts do not bear; it was changed."
        raise DataError(text, fix=_AGAIN)
    return saved


def require_same_model(
    calibration: Calibration, facts: DetectorFacts, place: str | Path
) -> Calibration:
    """Return a calibration that belongs to a model.

    Raises:
        DataError: It was fixed with other weights.
    """
    theirs, own = calibration.weights_sha256, facts.weights_sha256
    if theirs == own and calibration.canonical == facts.canonical:
        if calibration.stack_sha256 == facts.stack_sha256:
            return calibration
        raise DataError(
            f"{place} was fixed on another sum of scores of the same weights.",
            fix="calibrate this model: nbhelpers calibrate --humans FOLDER --model RUN",
        )
    raise DataError(
        f"{place} was fixed with another model ({calibration.run_id}, weights "
        f"{theirs[:12]}); this one is {facts.run_id}, weights "
        f"{own[:12]}. Scores of two models do not compare.",
        fix="calibrate this model: nbhelpers calibrate --humans FOLDER --model RUN",
    )


def came_with_export(calibration: Calibration, place: TrainedDetector) -> bool:
    """Whether a calibration was put into an exported folder by the one who exported it."""
    if place.kind != "export":
        return False
    facts = DetectorFile.read(place.folder / FACTS_FILE)
    exported = facts.calibration if facts else {}
    names = ("created", "source", "threshold_logit", "n")
    return all(exported.get(name) == getattr(calibration, name) for name in names)


def allowed_above(n: int, target_fpr: float, confidence: float) -> int | None:
    """Return how many of n humans may lie above the threshold; None where even none promises it.

    The number depends on n alone, never on the scores: that keeps the promise exact.

    >>> allowed_above(298, 0.01, 0.95), allowed_above(299, 0.01, 0.95)
    (None, 0)
    >>> allowed_above(1000, 0.01, 0.95)
    4
    """
    if promised_fpr(n, 0, confidence) > target_fpr:
        return None
    allowed = 0
    while promised_fpr(n, allowed + 1, confidence) <= target_fpr:
        allowed += 1
    return allowed


def fix_threshold(
    logits: Sequence[float],
    languages: Sequence[str],
    facts: DetectorFacts,
    *,
    target_fpr: float,
    confidence: float,
    source: str,
    counts: Mapping[str, Any],
) -> Calibration:
    """Return the calibration of distinct known-human programs.

    Args:
        logits: One for each program.
        languages: Likewise.
        facts: Of the model.
        target_fpr: False-positive rate to promise.
        confidence: How sure the promise is to hold.
        source: Where the programs come from.
        counts: `n_files`, `n_duplicates` and `left_out`.

    Raises:
        ConfigError: A share is out of range.
        DataError: There is no program.
    """
    require_shares(target_fpr, confidence)
    n = len(logits)
    if not n:
        raise DataError(
            f"{source} holds no program to calibrate on.",
            fix=f"give {humans_needed(target_fpr, confidence)} files of code that people are known "
            "to have written themselves",
        )
    allowed = allowed_above(n, target_fpr, confidence) or 0
    threshold = sorted(logits, reverse=True)[allowed]
    exceed = sum(logit > threshold for logit in logits)  # equal scores stay below together
    notes = [facts.data_note.rstrip(".")] if facts.data_note else []
    notes += [] if exceed == allowed else [f"{exceed} lie above it: others have the same score"]
    return Calibration(
        weights_sha256=facts.weights_sha256,
        stack_sha256=facts.stack_sha256,
        model=facts.model,
        run_id=facts.run_id,
        canonical=facts.canonical,
        target_fpr=float(target_fpr),
        confidence=float(confidence),
        n=n,
        exceed=allowed,
        needed=humans_needed(target_fpr, confidence),
        threshold_logit=float(threshold),
        threshold=facts.probability(threshold),
        promised_fpr=promised_fpr(n, allowed, confidence),
        languages=dict(Counter(languages).most_common()),
        run_threshold=_run_threshold(logits, facts),
        run_ai=_run_ai(threshold, facts),
        source=source,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        note=". ".join(notes),
        **counts,
    )


def _run_threshold(logits: Sequence[float], facts: DetectorFacts) -> dict[str, Any]:
    if facts.threshold_logit is None:
        return {}
    n, exceed = len(logits), sum(logit > facts.threshold_logit for logit in logits)
    interval = list(clopper_pearson(exceed, n))
    return {"n": n, "exceed": exceed, "fpr": exceed / n, "interval": interval}


def _run_ai(threshold: float, facts: DetectorFacts) -> dict[str, Any]:
    logits = ai_test_logits(facts.place)
    above = sum(logit > threshold for logit in logits)
    return {"n": len(logits), "share_above": above / len(logits)} if logits else {}


def require_shares(target_fpr: float, confidence: float) -> None:
    """Stop on shares that promise nothing.

    Raises:
        ConfigError: One is out of range.
    """
    if not is_number(target_fpr) or not 0 < target_fpr <= MAX_FPR:
        text = f"target_fpr={target_fpr!r} is not between 0 and {MAX_FPR}."
        raise ConfigError(text, fix="give a share such as 0.01")
    if not is_number(confidence) or not 0.5 <= confidence < 1:
        text = f"confidence={confidence!r} is not between 0.5 and 1."
        raise ConfigError(text, fix="give a share such as 0.95")
