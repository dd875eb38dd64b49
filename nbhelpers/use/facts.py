"""What is known of a detector before it is loaded, and the notice that stands beside each score."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbhelpers.common.formatting import percent
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import (
    DetectorFile,
    DetectorPrediction,
    OperatingPoint,
    Record,
    Result,
)
from nbhelpers.data.samples.styles import SAMPLE_NOTE
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.stack import ENCODER, Stack
from nbhelpers.metrics.stack import FILE as STACK_FILE
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.runs.run import RESULT_NAME, Run
from nbhelpers.use.trained import FACTS_FILE, TrainedDetector

# ------------------------------------------------------------------------------------------------
# What must stand beside every score: the one sentence for reports, cards, sheets and tables.


NO_EVIDENCE = (
    "A score is no evidence of misconduct. It says how much a program resembles the AI-written and "
    "the human programs of one training set; it cannot say who wrote it, and some human work is "
    "called AI by it. Nobody may be accused, graded or punished on it: talk with the author, "
    "and look at drafts, history and understanding."
)
NO_EVIDENCE_SIMILAR = (
    "Similarity is no evidence of misconduct: people who solve the same task write alike. Read "
    "both programs before you ask anybody anything."
)


# ------------------------------------------------------------------------------------------------
# What is known of a detector before it is loaded: its threshold, its test, its weights' hash.
#
# Read from the JSON files that the run or the exported folder holds.


WEIGHTS = "model.safetensors"
CALIBRATION = "calibration.json"
SCORES = {  # by what `score` of result.json says
    "stack": "the encoder, n-grams and n-grams of masked letters, one sum",
    "encoder": "the encoder alone",
    "tfidf": "n-grams of characters alone",
    "masked_tfidf": "n-grams of masked letters alone",
}
MIN_ROWS = 20  # train rows in a language, before a call is given in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A false-positive rate that was measured: on whom, how many, and its 95 % interval.

    `expected`: that of the next program by the same people, where it is known and differs.
    """

    on: str
    n: int
    fpr: float
    interval: tuple[float, float] | None
    expected: float | None = None

    @property
    def words(self) -> str:
        """The share with its interval."""
        if self.interval is None:
            return f"{percent(self.fpr)} %"
        low, high = map(percent, self.interval)
        return f"{percent(self.fpr)} %, 95 % interval {low} to {high} %"

    def __str__(self) -> str:
        return f"{round(self.fpr * self.n)} of {self.n} {self.on} ({self.words})"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        edges = None if self.interval is None else list(self.interval)
        return {"on": self.on, "n": self.n, "fpr": self.fpr, "interval": edges}


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFacts:
    """A detector as its files describe it.

    `threshold_logit`: above it the run called a program AI; `band_logit`: below it the run did not
    abstain; both None for a detector without a threshold. `rates`: false-positive rates measured at
    that threshold. `languages`: those it was trained on; () where that is not known. `data_note`:
    what must be said about its training data, or "". `uses`: what the score is made of, `stack` or
    the name of a member; `why`: the reason. `has_result`: False where score and temperature are not
    known, which `why` says then.
    """

    place: TrainedDetector
    run_id: str
    model: str
    objective: str
    canonical: str
    seq_len: int
    temperature: float = 1.0
    threshold_logit: float | None = None
    band_logit: float | None = None
    target_fpr: float | None = None
    rates: tuple[Rate, ...] = ()
    languages: tuple[str, ...] = ()
    pair_threshold: float | None = None
    data_note: str = ""
    uses: str = ENCODER
    why: str = ""
    has_result: bool = True
    sha256: dict[str, str] = field(default_factory=dict)

    @property
    def weights_sha256(self) -> str:
        """Hash of the file of weights, as `sha256sum` prints it; computed once."""
        if "weights" not in self.sha256:
            self.sha256["weights"] = file_sha256(self.place.folder / WEIGHTS)
        return self.sha256["weights"]

    @property
    def stack_sha256(self) -> str:
        """Hash of the file of what is summed with the encoder's logits; "" where nothing is."""
        if "stack" not in self.sha256:
            path = self.place.stack
            self.sha256["stack"] = "" if path is None else file_sha256(path)
        return self.sha256["stack"]

    @property
    def score_words(self) -> str:
        """What the score is made of, and why that; "" where nothing is known of it."""
        return f"{SCORES.get(self.uses, self.uses)}; {self.why}" if self.why else ""

    @property
    def is_sample(self) -> bool:
        """Whether it learnt the bundled sample, so that its scores say nothing about real code."""
        return self.data_note == SAMPLE_NOTE

    @property
    def sample_note(self) -> str:
        """What must stand above a table of a model that learnt the bundled sample; else ""."""
        return self.data_note if self.is_sample else ""

    @property
    def home(self) -> Path:
        """Where a calibration is kept: beside the run, in an export, or in a checkpoint."""
        return self.place.scored or self.place.folder

    def probability(self, logit: float) -> float:
        """Return `p_ai` of a logit, in (0, 1)."""
        return sigmoid(logit / self.temperature)

    def to_dict(self) -> dict[str, Any]:
        """What an evidence sheet says about the model."""
        return {
            "name": self.place.name,
            "run_id": self.run_id,
            "encoder": self.model,
            "weights_sha256": self.weights_sha256,
            **({"stack_sha256": self.stack_sha256} if self.stack_sha256 else {}),
            "score": {"uses": self.uses, "reason": self.why},
            "canonical": self.canonical,
            "seq_len": self.seq_len,
            "temperature": self.temperature,
            "data_note": self.data_note,
        }


def detector_facts(place: TrainedDetector) -> DetectorFacts:
    """Return what the files of a detector say.

    Raises:
        DataError: A file is damaged, or lacks what scoring needs; names the field.
    """
    facts = DetectorFile.read(place.folder / FACTS_FILE)
    if facts is None:
        text = f"{place.folder} has no {FACTS_FILE}."
        raise DataError(text, fix=DetectorFile.FIX)
    result = _result(place)
    is_known, result = result is not None, result or Result()
    point = result.operating_point
    temperature = point.temperature or 1.0
    uses = result.score.uses or (ENCODER if is_known or place.stack is None else "stack")
    require_stack(place.scored or place.folder, uses)
    return DetectorFacts(
        place=place,
        run_id=result.run_id or (place.run.name if place.run else place.name),
        model=result.model.name or "unknown",
        objective=facts.objective,
        canonical=facts.canonical,
        seq_len=facts.seq_len,
        temperature=temperature,
        threshold_logit=_logit(point, temperature),
        band_logit=_band(point, temperature),
        target_fpr=point.target_fpr,
        rates=tuple(_rates(result)),
        languages=tuple(_languages(result)),
        data_note=_data_note(place, result),
        pair_threshold=result.similarity.pairs.threshold,
        uses=uses,
        why=result.score.reason or "" if is_known else _unknown(place),
        has_result=is_known,
    )


def require_stack(home: Path, uses: str | None) -> None:
    """Stop where the score of a result is a sum, and its file is not beside it.

    Raises:
        DataError: It is missing.
    """
    if (uses or ENCODER) != ENCODER and not (home / STACK_FILE).is_file():
        text = f"{home} lacks {STACK_FILE}: its score is {SCORES.get(uses or '', uses)}."
        raise DataError(text, fix=DetectorFile.FIX)


def read_stack(path: Path) -> Stack:
    """Return the sum of scores that a file holds.

    Raises:
        DataError: It is damaged.
    """
    try:
        return Stack.load(path)
    except ValueError as error:
        raise DataError(str(error), fix=DetectorFile.FIX) from error


def _unknown(place: TrainedDetector) -> str:
    """Say what is not known of weights without a result."""
    home = place.scored or place.folder
    scored = f"{STACK_FILE} and the encoder" if place.stack else "the encoder alone"
    return (
        f"{home} has no {RESULT_NAME} of these weights: what their score is and its temperature "
        f"are not known, and {scored} at temperature 1 is taken; a finished run may score otherwise"
    )


def _result(place: TrainedDetector) -> Result | None:
    for folder in (place.scored, place.folder):
        if folder is not None and (result := Result.read(folder / RESULT_NAME)):
            return result
    return None


def _data_note(place: TrainedDetector, result: Result) -> str:
    """The note on the training data; of a checkpoint without a result, what its run was told."""
    note = result.data.note
    if note or place.run is None:
        return note or ""
    record = Record.read(place.run / "run.json")
    is_sample = record is not None and record.preset.settings.get("data") in SAMPLES
    return SAMPLE_NOTE if is_sample else ""


def _logit(point: OperatingPoint, temperature: float) -> float | None:
    if point.threshold_logit is not None:
        return float(point.threshold_logit)
    return logit(point.threshold, temperature) if point.threshold else None


def _band(point: OperatingPoint, temperature: float) -> float | None:
    edges = point.abstain
    return logit(edges[0], temperature) if edges and edges[0] is not None else None


def _rates(result: Result) -> list[Rate]:
    people = {
        "test": "human programs of the run's own test",
        "held_out": "human programs that the run left out of training",
        "unseen_humans": "programs by people that the run had never seen",
    }
    rates = []
    for split, on in people.items():
        scores = result.scores.get(split)
        fpr, n = (scores.metrics.get("fpr"), scores.n_human) if scores else (None, None)
        if fpr is not None and n:
            edges = scores.intervals.get("fpr")
            interval = (edges[0], edges[1]) if edges and None not in edges else None
            rates.append(Rate(on=on, n=int(n), fpr=float(fpr), interval=interval))
    return rates


def _languages(result: Result) -> list[str]:
    """Languages with enough train rows to have been learnt."""
    train = result.data.splits.get("train")
    counts = train.languages.items() if train else ()
    rows = {name: sum(n or 0 for n in labels.values()) for name, labels in counts}
    return sorted(name for name, n in rows.items() if n >= MIN_ROWS and name != "unknown")


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)) without overflow.

    >>> sigmoid(0.0), sigmoid(-1000.0)
    (0.5, 0.0)
    """
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    grown = math.exp(value)
    return grown / (1.0 + grown)


def logit(probability: float, temperature: float = 1.0) -> float:
    """Return the logit whose `p_ai` this is; infinite at 0 and 1.

    >>> logit(0.5), logit(0.0)
    (0.0, -inf)
    """
    if probability <= 0:
        return -math.inf
    if probability >= 1:
        return math.inf
    return temperature * math.log(probability / (1.0 - probability))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}."
        raise ConfigError(text, fix="check its permissions, or copy the folder again") from error


def ai_test_logits(place: TrainedDetector) -> list[float]:
    """Return the logits of the AI programs in the run's own test; [] where that is not known."""
    if place.scored is None:
        return []
    rows = read_lines(DetectorPrediction, Run(place.scored).predictions_path)
    of_ai = (row for row in rows if row["split"] == "test" and row.get("label") == "ai")
    return [float(row["logit"]) for row in of_ai if row.get("logit") is not None]
