"""Use a trained clone model: ask of two functions, or rank the pairs of whole folders; torch-free.

The model lives in a process of its own, as a detector does (`use.detector`). Each function is
encoded once; the pair head then scores all pairs. A pair's probability is the mean of both orders,
as the head is not symmetric; its threshold is the run's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbhelpers.common.code_words import code_words
from nbhelpers.common.display import Cell, Table
from nbhelpers.common.formatting import digits_apart, number, percent
from nbhelpers.common.result_files import Record, Result, Split
from nbhelpers.data.functions import LANGUAGES, functions_of, is_clean, language_of_code
from nbhelpers.data.languages import language_of
from nbhelpers.errors import ConfigError, DataError, NonFinite
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.code_files import CodeFile, Skipped, program_of
from nbhelpers.use.detector import BATCH_SIZE, progress_bar, split_parts
from nbhelpers.use.model_process import Loaded
from nbhelpers.use.results import (
    SHOWN,
    Block,
    Shown,
    checked_output,
    csv_text,
    facts_table,
    left_out,
)
from nbhelpers.use.similar import baseline_vectors, read_places
from nbhelpers.use.trained import TrainedClones, find_clones, path_of

# Getters and setters are alike everywhere: words and signs of a function that is compared.
MIN_WORDS = 20
TRAINED_ON = "java"
SAMPLE = (
    "The model learnt the bundled sample of small Java functions: its answers show how it works "
    "and say little about other code."
)
NO_EVIDENCE = (
    "A clone is no evidence of copying: functions with one purpose do the same. Read both before "
    "you ask anybody anything."
)


# ------------------------------------------------------------------------------------------------
# What is known of a clone model before it is loaded.


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneFacts:
    """A clone model as its files describe it.

    `threshold`: above it a pair is called clone; `chosen_on`: what it was chosen on, "" where the
    run has no result; `test`: what the run measured on its test pairs.
    """

    place: TrainedClones
    run_id: str
    model: str
    threshold: float
    chosen_on: str
    test: Split | None
    is_sample: bool

    def digits(self, shown: Iterable[float]) -> int:
        """Return the decimals with which P of each shown pair stands on its side."""
        return digits_apart(self.threshold, shown)

    def measured(self, shown: Iterable[float]) -> str:
        """Threshold, precision and recall of the run, as sentences; `shown`: P of the pairs."""
        chosen = {"valid": "chosen on validation pairs", "": "not chosen: the run has no result"}
        how = chosen.get(self.chosen_on, "fixed, not chosen")
        limit = f"{self.threshold:.{self.digits(shown)}f}"
        text = f"{self.run_id} calls a pair clone above {limit} ({how})."
        scores = self.test.orders.get("mean") or {} if self.test else {}
        precision, recall = scores.get("precision"), scores.get("recall")
        if self.test is None or precision is None or recall is None:
            return f"{text} What it finds was not measured."
        return (
            f"{text} On its {self.test.n_pairs:.0f} test pairs, {percent(self.test.prior or 0)} % "
            f"of them clones, precision was {precision:.3f} and recall {recall:.3f} (mean of both "
            "orders; a report's table has each pair as given). Where fewer pairs are clones, as "
            "among all pairs of a folder, fewer of its calls are right."
        )

    def to_dict(self) -> dict[str, Any]:
        """What a table of answers says about the model."""
        scores = self.test.orders.get("mean") if self.test else None
        return {
            "name": self.place.name,
            "run_id": self.run_id,
            "encoder": self.model,
            "threshold": self.threshold,
            "threshold_chosen_on": self.chosen_on or None,
            "seq_len": self.place.seq_len,
            "data_flow_length": self.place.data_flow_length,
            "test": dict(scores) if scores else None,
            "is_sample": self.is_sample,
        }


def clone_facts(place: TrainedClones) -> CloneFacts:
    """Return what the files of a clone model say.

    Raises:
        DataError: A file is damaged; names the field.
    """
    folders = [folder for folder in (place.scored, place.folder) if folder is not None]
    results = [result for each in folders if (result := Result.read(each / RESULT_NAME))]
    result = results[0] if results else Result()
    record = Record.read(place.run / "run.json") if place.run else None
    settings = record.preset.settings if record else {}
    data = settings.get("data") or result.settings.data
    value = result.threshold.value
    return CloneFacts(
        place=place,
        run_id=result.run_id or (place.run.name if place.run else place.name),
        model=result.model.name or str(settings.get("model") or "unknown"),
        threshold=0.5 if value is None else float(value),
        chosen_on=result.threshold.chosen_on or "",
        test=result.scores.get("test"),
        is_sample=data in SAMPLES,
    )


# ------------------------------------------------------------------------------------------------
# What asking returns.


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPair:
    """Two functions by number, and P(clone) as given and with the two swapped."""

    one: int
    other: int
    p_given: float
    p_reversed: float

    @property
    def p_clone(self) -> float:
        """The mean of both orders."""
        return (self.p_given + self.p_reversed) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneAnswer(Shown):
    """Whether two functions are clones; true in a condition where they are called so."""

    pair: ScoredPair
    facts: CloneFacts
    notes: tuple[str, ...]

    @property
    def p_clone(self) -> float:
        """The probability that they are, the mean of both orders."""
        return self.pair.p_clone

    @property
    def is_clone(self) -> bool:
        """Whether it lies above the run's threshold."""
        return self.p_clone > self.facts.threshold

    def __bool__(self) -> bool:
        return self.is_clone

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the answer, and what stands behind it."""
        digits = self.facts.digits([self.p_clone])
        rows = {
            "clones": "yes" if self.is_clone else "no",
            "P(clone)": f"{self.p_clone:.{digits}f}; {self.pair.p_given:.4f} as given, "
            f"{self.pair.p_reversed:.4f} with the two swapped",
        }
        return [facts_table(rows), "\n".join([*self.notes, self.facts.measured([self.p_clone])])]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "is_clone": self.is_clone,
            "p_clone": self.p_clone,
            "p_given": self.pair.p_given,
            "p_reversed": self.pair.p_reversed,
            "notes": list(self.notes),
            "measured": self.facts.measured([self.p_clone]),
            "model": self.facts.to_dict(),
        }

    def __repr__(self) -> str:
        called = "clones" if self.is_clone else "no clones"
        digits = self.facts.digits([self.p_clone])
        p, limit = f"{self.p_clone:.{digits}f}", f"{self.facts.threshold:.{digits}f}"
        return f"CloneAnswer({called}, P {p}, threshold {limit})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A function that is compared; `name` is file, line and its own name. `note`: or ""."""

    name: str
    code: str
    language: str
    note: str = ""


COLUMNS = ("rank", "p_clone", "is_clone", "floor", "function_a", "function_b", "language_a")
COLUMNS += ("language_b", "p_given", "p_reversed", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clones(Shown):
    """The likeliest clones among functions; of `n_pairs`, `n_clones` lie above the threshold."""

    ENDINGS = (".csv", ".json")

    place: str
    pairs: tuple[ScoredPair, ...]
    floors: tuple[float, ...]
    members: tuple[Member, ...]
    skipped: tuple[Skipped, ...]
    facts: CloneFacts
    n_files: int
    n_pairs: int
    n_clones: int
    seconds: float

    def rows(self) -> list[dict[str, Any]]:
        """JSON values of each pair, in the order of `COLUMNS`."""
        ranked = enumerate(zip(self.pairs, self.floors, strict=True), 1)
        return [self._row(rank, pair, floor) for rank, (pair, floor) in ranked]

    def _row(self, rank: int, pair: ScoredPair, floor: float) -> dict[str, Any]:
        one, other = self.members[pair.one], self.members[pair.other]
        notes = ["the same text"] * (one.code == other.code)
        notes += dict.fromkeys(member.note for member in (one, other) if member.note)
        values = {
            "rank": rank,
            "p_clone": pair.p_clone,
            "is_clone": pair.p_clone > self.facts.threshold,
            "floor": floor,
            "function_a": one.name,
            "function_b": other.name,
            "language_a": one.language,
            "language_b": other.language,
            "p_given": pair.p_given,
            "p_reversed": pair.p_reversed,
            "note": "; ".join(notes),
        }
        return {name: values[name] for name in COLUMNS}

    def summary(self) -> list[str]:
        """What must be read before the table, as sentences."""
        spoken = {member.language for member in self.members}
        lines = [
            f"{number(len(self.members), 'function')} of {number(self.n_files, 'file')}, "
            f"{number(self.n_pairs, 'pair')} scored, {self.n_clones} of them above the threshold; "
            f"functions and files left out or read in part: {len(self.skipped)}.",
            "P(clone): mean of both orders; floor: cosine of character n-grams (shared text).",
            self.facts.measured(pair.p_clone for pair in self.pairs),
        ]
        if spoken != {TRAINED_ON}:
            lines.append(_FOREIGN)
        if self.facts.is_sample:
            lines.append(SAMPLE)
        return [*lines, NO_EVIDENCE]

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the summary and the pairs."""
        heads = ("rank", "P(clone)", "clone", "floor", "function", "function", "note")
        digits = self.facts.digits(pair.p_clone for pair in self.pairs)
        rows = [
            (
                row["rank"],
                Cell(row["p_clone"], f".{digits}f"),
                "yes" if row["is_clone"] else "no",
                Cell(row["floor"], ".4f"),
                row["function_a"],
                row["function_b"],
                row["note"],
            )
            for row in self.rows()[:top]
        ]
        return ["\n".join(self.summary()), Table(heads, rows), *left_out(self.skipped)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "format": 1,
            "notice": NO_EVIDENCE,
            "place": self.place,
            "summary": self.summary(),
            "model": self.facts.to_dict(),
            "n_functions": len(self.members),
            "n_files": self.n_files,
            "n_pairs": self.n_pairs,
            "n_clones": self.n_clones,
            "pairs": self.rows(),
            "skipped": [each.to_dict() for each in self.skipped],
            "seconds": self.seconds,
        }

    def csv(self) -> str:
        """Return the pairs as CSV."""
        return csv_text(self.rows(), COLUMNS, SAMPLE if self.facts.is_sample else "")

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return (
            f"Clones({self.place}: {len(self.members)} functions, {self.n_clones} of "
            f"{self.n_pairs} pairs above the threshold)"
        )


_FOREIGN = f"The model learnt {TRAINED_ON.title()} functions alone: of others it knows less."


# ------------------------------------------------------------------------------------------------
# Asking.


class CloneModel(Loaded):
    """A clone model that answers; made by `use.load`. It loads again if its process was lost."""

    def __init__(self, facts: CloneFacts, *, device: str, batch_size: int = BATCH_SIZE) -> None:
        """Load it; use `use.load` instead, which finds out what a path means."""
        if type(batch_size) is not int or batch_size < 1:
            text = f"batch_size={batch_size!r} is no number of functions."
            raise ConfigError(text, fix="give a number from 1 on")
        self.facts, self.batch_size = facts, batch_size
        super().__init__(facts.place, device=device)

    def are_clones(
        self, a: str | os.PathLike[str], b: str | os.PathLike[str], *, language: str = ""
    ) -> CloneAnswer:
        """Return whether two functions do the same, and how sure the model is.

        Args:
            a: A function as text, or the path of a file that holds it alone.
            b: Likewise.
            language: java or python; "" asks the file's ending, else what the text parses as.

        Raises:
            ConfigError: There is no code, no such file, or no such language.
            DataError: There is no function in it, or it is in another language.
        """
        language = _readable(language)
        members = [_given(name, code, language) for name, code in (("a", a), ("b", b))]
        members, rows = self._encode(members, progress=False)
        (pair,), _ = self._best(rows, split_at=1, top=1)
        notes = [f"{name}: {m.note}." for name, m in zip("ab", members, strict=True) if m.note]
        notes += [_FOREIGN] * any(member.language != TRAINED_ON for member in members)
        notes += [SAMPLE] * self.facts.is_sample
        return CloneAnswer(pair=pair, facts=self.facts, notes=tuple(notes))

    def clones_of(
        self,
        place: str | os.PathLike[str],
        other: str | os.PathLike[str] | None = None,
        *,
        top: int = 100,
        language: str = "",
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Clones:
        """Rank pairs of functions by P(clone): all of a place, or those between two places.

        The functions are cut out of Java and Python files by their syntax trees.

        Args:
            place: A folder or a file.
            other: Compare only pairs of one function here and one there.
            top: How many pairs to return.
            language: What every file is written in; "" asks the endings.
            out: Write the table there too, as .csv or .json.
            progress: Show how far it is.

        Raises:
            ConfigError: There is nothing at a place, one lies in the other, or no such language.
            DataError: There are not two functions to compare.
        """
        if type(top) is not int or top < 1:
            raise ConfigError(f"top={top!r} is no number of pairs.", fix="give a number from 1 on")
        language = _readable(language)
        target = None if out is None else checked_output(out)
        start = time.monotonic()
        places = [place] if other is None else [place, other]
        skipped: list[Skipped] = []
        groups = read_places(places, language, skipped)
        by_file = [[_members(file, skipped) for file in files] for files in groups]
        cut = [[member for members in group for member in members] for group in by_file]
        if sum(map(len, cut)) < 2 or not all(cut):
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in skipped[:5])
            raise DataError(
                f"There are not two functions to compare{f' ({reasons})' if reasons else ''}.",
                fix="name folders or files with functions in Java or Python",
            )
        functions = [member for each in cut for member in each]
        members, rows = self._encode(functions, progress=progress)
        split_at = None if other is None else len(cut[0])
        pairs, counts = self._best(rows, split_at=split_at, top=top)
        clones = Clones(
            place=" and ".join(map(str, places)),
            pairs=tuple(pairs),
            floors=tuple(_floors([member.code for member in members], pairs)),
            members=tuple(members),
            skipped=tuple(skipped),
            facts=self.facts,
            n_files=sum(bool(members) for group in by_file for members in group),
            seconds=time.monotonic() - start,
            **counts,
        )
        if target is not None:
            clones.save(target)
        return clones

    def _encode(
        self, members: Sequence[Member], *, progress: bool
    ) -> tuple[list[Member], list[int]]:
        """Have each distinct function encoded once; return all with notes, and the place of each.

        A note says what of a function was cut off or not read.
        """
        distinct: dict[tuple[str, str], int] = {}
        rows = [distinct.setdefault((m.code, m.language), len(distinct)) for m in members]
        notes: list[str] = []
        with progress_bar(len(distinct), "functions", is_on=progress) as bar:
            for part in split_parts([code for code, _ in distinct]):
                languages = [language for _, language in distinct][len(notes) :][: len(part)]
                options = {"languages": languages, "batch_size": self.batch_size}
                notes += self.call("encode", codes=part, start=len(notes), **options)["notes"]
                bar.update(len(part))
        noted = [
            replace(m, note="; ".join(filter(None, (m.note, notes[row]))))
            for m, row in zip(members, rows, strict=True)
        ]
        return noted, rows

    def _best(
        self, rows: list[int], *, split_at: int | None, top: int
    ) -> tuple[list[ScoredPair], dict[str, int]]:
        options = {"rows": rows, "split_at": split_at, "top": top}
        reply = self.call("best_pairs", threshold=self.facts.threshold, **options)
        if not reply["is_finite"]:
            raise NonFinite(
                f"The clone model {self.facts.run_id} gives a probability that is not finite.",
                fix="its weights are damaged, or the training broke: train it again",
            )
        names = ("one", "other", "p_given", "p_reversed")
        pairs = [ScoredPair(**dict(zip(names, row, strict=True))) for row in reply["pairs"]]
        return pairs, {"n_pairs": reply["n_pairs"], "n_clones": reply["n_clones"]}

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        what = f"{self.facts.place.name}: {self.facts.model}"
        return f"CloneModel({what}, {self.reply.get('device')}, {state})"


def load_clones(
    run_or_folder: Any,
    *,
    device: str = "auto",
    run_dir: str | os.PathLike[str] = "runs",
    batch_size: int = BATCH_SIZE,
) -> CloneModel:
    """Load a trained clone model once, in a process of its own, and return what can be asked.

    Args:
        run_or_folder: A run, its id or folder, a result; a checkpoint, or an exported folder.
        device: auto, cpu or cuda.
        run_dir: The folder that holds the run folders.
        batch_size: Functions encoded at once; smaller needs less memory.

    Raises:
        ConfigError: There is no such run, or it is of another job.
        DataError: Files are missing or damaged.
        HardwareError: device="cuda" without a GPU.
    """
    facts = clone_facts(find_clones(path_of(run_or_folder), run_dir))
    return CloneModel(facts, device=device, batch_size=batch_size)


def _readable(language: str) -> str:
    """Return a language whose functions can be cut out, in one spelling; "" where none is named.

    Raises:
        ConfigError: It is another.
    """
    name = language_of(language)
    if name not in ("", *LANGUAGES):
        text = f"language={language!r} is not read by a clone model."
        raise ConfigError(text, fix=f"give {' or '.join(LANGUAGES)}, or nothing")
    return name


def _given(side: str, code: str | os.PathLike[str], language: str) -> Member:
    """Return one of two functions; a note says where it is not one function, and whole.

    Raises:
        DataError: No function is found in it.
    """
    file = program_of(code, language)
    spoken = file.language or language_of_code(file.code)
    functions = functions_of(file.code, spoken) if spoken in LANGUAGES else []
    if not functions:
        known = " or ".join(name.title() for name in LANGUAGES)
        raise DataError(
            f"{side} holds no function with a body that can be read as "
            f"{language.title() or known}.",
            fix=f"give a function in {known} as text, or the path of a file that holds it alone",
        )
    note = ""
    if not is_clean(file.code, spoken):
        note = "it does not parse as a whole"
    elif len(code_words(functions[0].code)) < len(code_words(file.code)):
        note = "it is more than a function alone; all of it was compared"
    return Member(name=file.name, code=file.code, language=spoken, note=note)


def _members(file: CodeFile, skipped: list[Skipped]) -> list[Member]:
    """Return the functions of a file that are compared; the rest is told in `skipped`."""

    def skip(name: str, reason: str, detail: str) -> None:
        skipped.append(Skipped(name=name, reason=reason, detail=detail))

    if language_of(file.language) not in LANGUAGES:
        known = " and ".join(name.title() for name in LANGUAGES)
        skip(file.name, "another language", f"{file.language}; functions of {known} are cut out")
        return []
    members = []
    functions = functions_of(file.code, file.language)
    for function in functions:
        name = f"{file.name}:{function.line} {function.name}"
        if function.fault:
            skip(name, "not parsed", function.fault)
        elif (n_words := len(code_words(function.code))) < MIN_WORDS:
            skip(name, "too short", f"{n_words} words and signs, fewer than {MIN_WORDS}")
        else:
            members.append(Member(name=name, code=function.code, language=file.language))
    is_whole = is_clean(file.code, file.language)
    if not functions:
        why = "" if is_whole else ", and parts of it do not parse"
        skip(file.name, "no function", f"no function with a body was found in it{why}")
    elif not is_whole:
        detail = "parts of it do not parse: functions there are not found, or cut wrongly"
        skip(file.name, "not parsed", detail)
    return members


def _floors(codes: list[str], pairs: Sequence[ScoredPair]) -> list[float]:
    """Return the cosine of character n-grams of each pair."""
    rows = baseline_vectors(codes)
    return [min(1.0, float(rows[pair.one].multiply(rows[pair.other]).sum())) for pair in pairs]
