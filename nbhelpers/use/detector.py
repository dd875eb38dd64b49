"""Use a trained detector: score code, rank a folder, fix a threshold on your people; torch-free.

The model lives in one persistent process: the notebook's stays without torch, and closing the
detector gives the GPU's memory back whole. Nothing is called AI before a threshold was fixed on
known-human code of the very people whose files are judged.
"""

from __future__ import annotations

import base64
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_file
from nbhelpers.errors import ConfigError, NonFinite
from nbhelpers.use.calibrate import (
    Calibration,
    came_with_export,
    fix_threshold,
    load_calibration,
    read_humans,
    require_same_model,
    require_shares,
)
from nbhelpers.use.calls import OF_OTHERS, Judge, Scored, Verdict
from nbhelpers.use.code_files import CHUNK_FILES, CodeFile, chunks, find_files, program_of
from nbhelpers.use.facts import CALIBRATION, DetectorFacts, detector_facts
from nbhelpers.use.model_process import Loaded
from nbhelpers.use.results import checked_output
from nbhelpers.use.sheets import (
    Batch,
    EditLogits,
    Evidence,
    by_score,
    evidence_of,
    ranked,
    sheet_name,
)
from nbhelpers.use.similar import Similar, baseline_vectors, best_pairs, read_members
from nbhelpers.use.trained import find_detector, path_of

if TYPE_CHECKING:
    import numpy as np
    from tqdm import tqdm

PART, PART_CHARACTERS = 1024, 8_000_000  # programs sent at once


def split_parts(codes: Sequence[str]) -> Iterator[list[str]]:
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


def _not_finite(facts: DetectorFacts) -> NonFinite:
    return NonFinite(
        f"The detector {facts.run_id} gives a score that is not finite.",
        fix="its weights are damaged, or the training broke: train it again",
    )


def progress_bar(total: int, unit: str, *, is_on: bool) -> tqdm:
    """Return a bar on stderr; it is rewritten often on a terminal, and seldom in a log."""
    from tqdm import tqdm

    seconds = 0.2 if sys.stderr.isatty() else 10.0
    return tqdm(total=total, unit=f" {unit}", disable=not is_on, mininterval=seconds)


BATCH_SIZE = 32
HEADS = {"classifier": ("both", "detect"), "projector": ("both", "similar")}
Known = Calibration | str | os.PathLike[str] | None


class Detector(Loaded):
    """A detector that answers; made by `load_detector`. It loads again if its process was lost."""

    def __init__(self, facts: DetectorFacts, *, device: str, batch_size: int) -> None:
        """Load it; use `load_detector` instead, which finds out what a path means."""
        if type(batch_size) is not int or batch_size < 1:
            text = f"batch_size={batch_size!r} is no number of programs."
            raise ConfigError(text, fix="give a number from 1 on")
        self.facts, self.batch_size = facts, batch_size
        super().__init__(facts.place, device=device)

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
        return self._sheets(judge, [file], self._scored([file]), edits=edits)[0]

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
            evidence: A folder for an evidence sheet of each file, named by its rank; takes about
                five times as long.
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
        verdicts: list[tuple[CodeFile, Verdict]] = []
        made: list[Evidence] = []
        start = time.monotonic()
        with progress_bar(len(entries), "files", is_on=progress and len(entries) > 1) as bar:
            for files in chunks(entries, skipped):
                scores = self._scored(files)
                if sheets is not None:
                    made += self._sheets(judge, files, scores)
                verdicts += [(f, judge.verdict(f, s)) for f, s in zip(files, scores, strict=True)]
                bar.update(len(files))
        batch = Batch(
            place=str(place),
            rows=ranked(verdicts),
            skipped=tuple(skipped),
            judge=judge,
            seconds=time.monotonic() - start,
            device=self.device,
        )
        by_rank = sorted(made, key=lambda sheet: by_score(sheet.file, sheet.verdict))
        for rank, sheet in enumerate(by_rank, 1):
            _write_sheet(sheets, rank, sheet)
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
        known = read_humans(humans, self.facts.canonical)
        left_out = Counter(file.reason for file in known.skipped)
        scored = self._callable(known.files, left_out, progress)
        counts = {"n_files": known.n_files, "n_duplicates": known.n_duplicates}
        counts |= {"left_out": dict(left_out)}
        calibration = fix_threshold(
            [score.logit for _, score in scored],
            [file.language for file, _ in scored],
            self.facts,
            target_fpr=target_fpr,
            confidence=confidence,
            source=known.source,
            counts=counts,
        )
        if calibration.is_met or out is not None:
            calibration.save(target)
        return calibration

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
        start = time.monotonic()
        places = [place] if other is None else [place, other]
        members, skipped, first = read_members(places, starter, language)
        codes = [member.code for member in members]
        pairs = best_pairs(
            self._vectors(codes),
            baseline_vectors(codes),
            top=top,
            split_at=None if other is None else first,
        )
        similar = Similar(
            place=" and ".join(map(str, places)),
            pairs=tuple(pairs),
            members=tuple(members),
            skipped=tuple(skipped),
            facts=self.facts,
            n_pairs=pairs[0].n,
            seconds=time.monotonic() - start,
        )
        if target is not None:
            similar.save(target)
        return similar

    def judge(self, calibration: Known = None) -> Judge:
        """Return the model with the calibration that is in force.

        Raises:
            DataError: The calibration cannot be read, or is of another model.
        """
        if isinstance(calibration, Calibration):
            require_same_model(calibration, self.facts, "this calibration")
            return Judge(facts=self.facts, calibration=calibration)
        place = self.facts.home / CALIBRATION
        if calibration is not None:
            place = expanded(calibration, "calibration")
        elif not is_file(place):
            return Judge(facts=self.facts, calibration=None)
        saved = require_same_model(load_calibration(place), self.facts, place)
        if calibration is None and came_with_export(saved, self.facts.place):
            return Judge(facts=self.facts, calibration=None, why_none=OF_OTHERS)
        return Judge(facts=self.facts, calibration=saved)

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
        judge, scored = Judge(facts=self.facts, calibration=None), []
        with progress_bar(len(files), "programs", is_on=progress) as bar:
            for start in range(0, len(files), CHUNK_FILES):
                part = files[start : start + CHUNK_FILES]
                for file, score in zip(part, self._scored(part), strict=True):
                    if doubts := judge.doubts(file, score):
                        left_out[doubts[0].partition(":")[0]] += 1
                    else:
                        scored.append((file, score))
                bar.update(len(part))
        return scored

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
        return [evidence_of(judge, file, score, edits) for file, score, edits in rows]

    def _edit_scores(self, files: Sequence[CodeFile]) -> list[EditLogits]:
        """Return the logits of the edited copies of each program."""
        from nbhelpers.data.canonical import canonical
        from nbhelpers.data.edits import EDITS, edit_rows

        form = self.facts.canonical
        codes, spoken = [file.code for file in files], [file.language for file in files]
        copies = {edit: edit_rows(codes, spoken, edit) for edit in EDITS}
        texts = [text for row in copies.values() for text in row if text is not None]
        logits = iter(self._logits(texts))
        edited = [EditLogits() for _ in files]
        for edit, row in copies.items():
            for scores, code, text in zip(edited, codes, row, strict=True):
                scores.logits[edit] = None if text is None else next(logits)
                if text is not None and canonical(text, form) == canonical(code, form):
                    scores.unchanged.add(edit)
        return edited

    @property
    def device(self) -> str:
        """Where the model is: cpu, cuda:0."""
        return str(self.reply["device"])

    def _scored(self, files: Sequence[CodeFile]) -> list[Scored]:
        """Return what the model says of programs, in their order."""
        return self._asked([file.code for file in files])

    def _logits(self, codes: Sequence[str]) -> list[float]:
        """Return the logits of texts, in their order."""
        return [scored.logit for scored in self._asked(codes)]

    def _vectors(self, codes: Sequence[str]) -> np.ndarray:
        """Return (programs, dimensions) float32 unit vectors of the similarity space."""
        import numpy as np

        tables = []
        for part in split_parts(codes):
            reply = self._score(part, vectors=True)
            numbers = np.frombuffer(base64.b64decode(reply["vectors"]), dtype="<f4")
            tables.append(numbers.reshape(-1, reply["dimensions"]))
        table = np.concatenate(tables)
        if not np.isfinite(table).all():
            raise _not_finite(self.facts)
        return table

    def _asked(self, codes: Sequence[str]) -> list[Scored]:
        scores: list[Scored] = []
        for part in split_parts(codes):
            reply = self._score(part, vectors=False)
            for logit, tokens in zip(reply["logits"], reply["tokens"], strict=True):
                if logit is None or not math.isfinite(logit):
                    raise _not_finite(self.facts)
                scores.append(Scored(logit=float(logit), tokens=int(tokens)))
        return scores

    def _score(self, codes: list[str], *, vectors: bool) -> dict[str, Any]:
        options = {"batch_size": self.batch_size, "vectors": vectors}
        return self.call("score", codes=codes, **options)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        what = f"{self.facts.place.name}: {self.facts.model}"
        return f"Detector({what}, {self.device}, {state})"


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
    facts = detector_facts(find_detector(path_of(run_or_folder), run_dir))
    return Detector(facts, device=device, batch_size=batch_size)


def _folder(place: str | os.PathLike[str]) -> Path:
    """Return a folder for sheets, made where it is not there."""
    path = expanded(place, "evidence")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{path} cannot be made: {error.strerror or error}."
        raise ConfigError(text, fix="name another folder for the sheets") from error
    return path


def _write_sheet(folder: Path, rank: int, sheet: Evidence) -> None:
    name = sheet_name(rank, sheet.file)
    sheet.save(folder / f"{name}.html")
    sheet.save(folder / f"{name}.json")
