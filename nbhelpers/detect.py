"""Use a trained detector: score code, rank a folder, fix a threshold on your people; torch-free.

The model lives in one persistent process (`use_child.Child`): the notebook's stays without torch,
and closing the detector gives the GPU's memory back whole. Nothing is called AI before a threshold
was fixed on known-human code of the very people whose files are judged.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nbhelpers.detect_batch import Batch, checked_output, ranked
from nbhelpers.detect_calibrate import (
    Calibration,
    came_with_export,
    fix_threshold,
    load_calibration,
    require_same_model,
    require_shares,
)
from nbhelpers.detect_calls import OF_OTHERS, Judge, Scored
from nbhelpers.detect_evidence import EditLogits, Evidence, evidence_of, sheet_name
from nbhelpers.detect_facts import CALIBRATION, DetectorFacts, detector_facts
from nbhelpers.detect_files import (
    CHUNK_FILES,
    CodeFile,
    chunks,
    find_files,
    program_of,
)
from nbhelpers.detect_process import Scorer
from nbhelpers.detect_progress import progress as show_progress
from nbhelpers.detect_similar import Similar, read_members
from nbhelpers.errors import ConfigError
from nbhelpers.paths import expanded, is_file
from nbhelpers.trained_detector import find_detector

BATCH_SIZE = 32
HEADS = {"classifier": ("both", "detect"), "projector": ("both", "similar")}
Known = Calibration | str | os.PathLike[str] | None


class Detector:
    """A detector that answers; made by `load_detector`. It loads again if its process was lost."""

    def __init__(self, facts: DetectorFacts, scorer: Scorer) -> None:
        """Take a scorer; use `load_detector` instead, which finds out what a path means."""
        self.facts, self.scorer = facts, scorer

    def score_code(
        self,
        code: str | os.PathLike[str],
        *,
        language: str = "",
        calibration: Known = None,
        edits: bool = True,
    ) -> Evidence:
        """Return the evidence sheet of one program.

        Args:
            code: A program as text, or the path of a file with one.
            language: What it is written in; "" asks the file's ending.
            calibration: A threshold fixed on your own people, or its file; None: the one that
                `calibrate` left beside the model, if any.
            edits: Also score copies that do the same but are written otherwise.

        Raises:
            ConfigError: There is no code, or no such file.
            DataError: The file is no program, or the calibration is of another model.
        """
        self._require("classifier", "score code")
        judge = self.judge(calibration)
        file = program_of(code, language)
        return self._sheets(judge, [file], self.scorer.scored([file]), edits=edits)[0]

    def detect(
        self,
        place: str | os.PathLike[str],
        *,
        out: str | os.PathLike[str] | None = None,
        calibration: Known = None,
        evidence: str | os.PathLike[str] | None = None,
        language: str = "",
        progress: bool = True,
    ) -> Batch:
        """Score a file, or all files of code in a folder, and rank them.

        Args:
            place: A file or a folder.
            out: Write the table there too, as .csv or .json.
            calibration: As for `score_code`.
            evidence: A folder for an evidence sheet of each file; takes about five times as long.
            language: What every file is written in; "" asks the endings.
            progress: Show how far it is.

        Raises:
            ConfigError: There is nothing at the place, or an output cannot be written.
            DataError: The calibration is of another model.
        """
        self._require("classifier", "detect")
        target = None if out is None else checked_output(out)
        sheets = None if evidence is None else _folder(evidence)
        judge = self.judge(calibration)
        entries, skipped = find_files(place, language=language)
        tick = show_progress("files", is_on=progress and len(entries) > 1)
        found: list[tuple[CodeFile, Any]] = []
        n_left_out, start = len(skipped), time.monotonic()
        for files in chunks(entries, skipped):
            scored = self.scorer.scored(files)
            if sheets is not None:
                for number, sheet in enumerate(self._sheets(judge, files, scored), len(found) + 1):
                    _write_sheet(sheets, number, sheet)
            found += [(f, judge.verdict(f, s)) for f, s in zip(files, scored, strict=True)]
            tick(len(found) + len(skipped) - n_left_out, len(entries))
        batch = Batch(
            place=str(place),
            rows=ranked(found),
            skipped=tuple(skipped),
            judge=judge,
            seconds=time.monotonic() - start,
            device=self.scorer.device,
        )
        if target is not None:
            batch.save(target)
        return batch

    def calibrate(
        self,
        humans: str | os.PathLike[str],
        *,
        target_fpr: float = 0.01,
        confidence: float = 0.95,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Calibration:
        """Fix the threshold on code that your own people are known to have written themselves.

        It is saved beside the run, or in the exported folder, and used from then on. Where there
        are too few programs for the promise it says how many are missing; such a calibration
        calls nothing AI and is written to a named `out` alone, so that it replaces no good one.

        Args:
            humans: A folder of code, or a .jsonl, .csv or .parquet file of rows.
            target_fpr: The false-positive rate to promise.
            confidence: How sure the promise is to hold.
            out: Another file for it; None: `calibration.json` beside the model.
            progress: Show how far it is.

        Raises:
            ConfigError: An argument is wrong, or the file cannot be written.
            DataError: There is no program to calibrate on.
        """
        self._require("classifier", "calibrate")
        require_shares(target_fpr, confidence)
        target = self.facts.home / CALIBRATION if out is None else Path(out).expanduser()
        from nbhelpers.detect_humans import read_humans

        known = read_humans(humans, self.facts.canonical)
        left_out = Counter(each.reason for each in known.skipped)
        scored = self._callable(known.files, left_out, progress)
        counts = {"n_files": known.n_files, "n_duplicates": known.n_duplicates}
        counts |= {"left_out": dict(left_out)}
        found = fix_threshold(
            [each.logit for _, each in scored],
            [file.language for file, _ in scored],
            self.facts,
            target_fpr=target_fpr,
            confidence=confidence,
            source=known.source,
            counts=counts,
        )
        if found.is_met or out is not None:
            found.save(target)
        return found

    def similar(
        self,
        place: str | os.PathLike[str],
        other: str | os.PathLike[str] | None = None,
        *,
        starter: str | os.PathLike[str] | None = None,
        top: int = 100,
        language: str = "",
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Similar:
        """Rank pairs of programs by similarity: all of a folder, or those between two places.

        Given code is taken out first: `starter`, and what most of eight or more files share.

        Args:
            place: A folder; with `other`, a file or a folder.
            other: Compare only pairs of one program here and one there.
            starter: A file or folder that was handed out.
            top: How many pairs to return.
            language: What every file is written in; "" asks the endings.
            out: Write the table there too, as .csv or .json.
            progress: Show how far it is.

        Raises:
            ConfigError: There is nothing at a place, or the detector has no similarity head.
            DataError: There are not two programs to compare.
        """
        self._require("projector", "compare programs")
        if type(top) is not int or top < 1:
            raise ConfigError(f"top={top!r} is no number of pairs.", fix="give a number from 1 on")
        target = None if out is None else checked_output(out)
        from nbhelpers.detect_pairs import best_pairs, floor_vectors

        start = time.monotonic()
        places = [place] if other is None else [place, other]
        members, skipped, first = read_members(places, starter, language)
        codes = [member.code for member in members]
        tick = show_progress("programs", is_on=progress and len(codes) > 2)
        pairs = best_pairs(
            self.scorer.vectors(codes),
            floor_vectors(codes),
            top=top,
            split_at=None if other is None else first,
            progress=tick,
        )
        found = Similar(
            place=" and ".join(map(str, places)),
            pairs=tuple(pairs),
            members=tuple(members),
            skipped=tuple(skipped),
            facts=self.facts,
            n_pairs=pairs[0].n,
            seconds=time.monotonic() - start,
        )
        if target is not None:
            found.save(target)
        return found

    def judge(self, calibration: Known = None) -> Judge:
        """Return the model with the calibration that is in force.

        Raises:
            DataError: The calibration cannot be read, or is of another model.
        """
        if isinstance(calibration, Calibration):
            found = require_same_model(calibration, self.facts, "this calibration")
            return Judge(facts=self.facts, calibration=found)
        place = self.facts.home / CALIBRATION
        if calibration is not None:
            place = expanded(calibration, "calibration")
        elif not is_file(place):
            return Judge(facts=self.facts, calibration=None)
        found = require_same_model(load_calibration(place), self.facts, place)
        if calibration is None and came_with_export(found, self.facts.place):
            return Judge(facts=self.facts, calibration=None, why_none=OF_OTHERS)
        return Judge(facts=self.facts, calibration=found)

    def close(self) -> None:
        """End the process and give the memory back; harmless when it is closed."""
        self.scorer.close()

    def _require(self, head: str, what: str) -> None:
        """Stop where the training made no such head."""
        if self.facts.objective in HEADS[head]:
            return
        raise ConfigError(
            f"{self.facts.run_id} was trained with objective={self.facts.objective}: it cannot "
            f"{what}.",
            fix="name a run of objective=both",
        )

    def _callable(
        self, files: Sequence[CodeFile], left_out: Counter[str], progress: bool
    ) -> list[tuple[CodeFile, Scored]]:
        """Score known-human programs; those on which no call is ever given are counted apart."""
        judge = Judge(facts=self.facts, calibration=None)
        tick, found = show_progress("programs", is_on=progress), []
        for start in range(0, len(files), CHUNK_FILES):
            part = files[start : start + CHUNK_FILES]
            for file, each in zip(part, self.scorer.scored(part), strict=True):
                if doubts := judge.doubts(file, each):
                    left_out[doubts[0].partition(":")[0]] += 1
                else:
                    found.append((file, each))
            tick(start + len(part), len(files))
        return found

    def _sheets(
        self,
        judge: Judge,
        files: Sequence[CodeFile],
        scored: Sequence[Scored],
        *,
        edits: bool = True,
    ) -> list[Evidence]:
        """Return the evidence sheets of programs that were scored."""
        edited = self._edit_scores(files) if edits else [EditLogits() for _ in files]
        rows = zip(files, scored, edited, strict=True)
        return [evidence_of(judge, file, each, told) for file, each, told in rows]

    def _edit_scores(self, files: Sequence[CodeFile]) -> list[EditLogits]:
        """Return the logits of the edited copies of each program."""
        from nbhelpers.data.canonical import canonical
        from nbhelpers.data.code_edits import EDITS, edit_rows

        form = self.facts.canonical
        codes, spoken = [file.code for file in files], [file.language for file in files]
        made = [(edit, edit_rows(codes, spoken, edit)) for edit in EDITS]
        texts = [text for _, row in made for text in row if text is not None]
        logits = iter(self.scorer.logits(texts))
        found = [EditLogits() for _ in files]
        for edit, row in made:
            for told, code, text in zip(found, codes, row, strict=True):
                told.logits[edit] = None if text is None else next(logits)
                if text is not None and canonical(text, form) == canonical(code, form):
                    told.unchanged.add(edit)
        return found

    def __enter__(self) -> Detector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.scorer.is_closed else "open"
        what = f"{self.facts.place.name}: {self.facts.model}"
        return f"Detector({what}, {self.scorer.device}, {state})"


def load_detector(
    run_or_folder: Any,
    *,
    device: str = "auto",
    run_dir: str | os.PathLike[str] = "runs",
    batch_size: int = BATCH_SIZE,
) -> Detector:
    """Load a trained detector once, in a process of its own, and return what can be asked.

    Args:
        run_or_folder: A run, its id or folder, a result; a checkpoint, or an exported folder.
        device: auto, cpu or cuda.
        run_dir: The folder that holds the run folders.
        batch_size: Programs scored at once; smaller needs less memory.

    Raises:
        ConfigError: There is no such run, or it is of another job.
        DataError: Files are missing or damaged.
        HardwareError: device="cuda" without a GPU.
    """
    given = run_or_folder
    path = given if isinstance(given, str | os.PathLike) else getattr(given, "path", given)
    facts = detector_facts(find_detector(path, run_dir))
    return Detector(facts, Scorer(facts, device=device, batch_size=batch_size))


def _folder(place: str | os.PathLike[str]) -> Path:
    """Return a folder for sheets, made where it is not there."""
    path = expanded(place, "evidence")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{path} cannot be made: {error.strerror or error}."
        raise ConfigError(text, fix="name another folder for the sheets") from error
    return path


def _write_sheet(folder: Path, number: int, sheet: Evidence) -> None:
    name = sheet_name(number, sheet.file)
    sheet.save(folder / f"{name}.html")
    sheet.save(folder / f"{name}.json")
