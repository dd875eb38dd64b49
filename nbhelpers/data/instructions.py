"""Instructions and their answers, ready for training: read, split, compared, put in a template."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbhelpers.common.display import Table
from nbhelpers.data.detection_splits import components, numbers_of
from nbhelpers.data.files import (
    MAIN_SPLITS,
    SMOKE,
    SMOKE_LICENCE,
    Record,
    check_choice,
    check_whole,
    read_records,
)
from nbhelpers.data.findings import Findings, Policy
from nbhelpers.data.hub import Files
from nbhelpers.data.instruction_rows import InstructionReader, PlacedRow
from nbhelpers.data.near_duplicates import THRESHOLD, Match, ShingleIndex
from nbhelpers.data.sources import find_files, open_file, sort_files
from nbhelpers.data.templates import AS_WRITTEN, render, resolve_template
from nbhelpers.errors import DataError

# ------------------------------------------------------------------------------------------------
# Which rows train and which are held out.
#
# Draws follow from the text of a row and a seed, not from its place: a row more or less, or another
# order, leaves the rest of a draw as it is. The held-out rows depend on `split_seed` alone.


Splits = dict[str, list[PlacedRow]]
SIZES = {"valid": "valid_samples", "test": "eval_samples"}  # the arguments that say how many rows

# task_id of MBPP, both ends included. Source: github.com/google-research/google-research, mbpp,
# README ("Evaluation Details").
MBPP_RANGES = {"prompt": (1, 10), "test": (11, 510), "valid": (511, 600), "train": (601, 974)}


def one_line(text: str) -> str:
    """A text with runs of white space taken as one blank."""
    return " ".join(text.split())


def question_key(placed: PlacedRow) -> str:
    """What two rows of one question share."""
    return one_line(placed.row.question)


def row_key(placed: PlacedRow) -> str:
    """What two equal rows share."""
    return f"{question_key(placed)}\0{one_line(placed.row.answer)}"


def _draw_key(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def official_splits(splits: Splits, findings: Findings) -> Splits:
    """MBPP in one file, sorted by its authors' ranges of task_id; other data as it is.

    The 10 problems for prompts are left out. Held-out rows drawn at random would train on problems
    that pass@1 is measured on.
    """
    rows = splits.get("train", [])
    if len(splits) != 1 or not rows or any(placed.task_id is None for placed in rows):
        return splits
    official: Splits = {name: [] for name in ("train", "valid", "test", "prompt")}
    for placed in rows:
        name = mbpp_split(placed.task_id)
        if name is None:
            return splits
        official[name].append(placed)
    if not all(official[name] for name in ("train", "valid", "test")):
        return splits
    n_prompt = len(official.pop("prompt"))
    detail = ", ".join(f"{name} {len(part)}" for name, part in official.items())
    file = rows[0].file
    findings.add(
        "official_splits", file, None, f"{detail}; {n_prompt} for prompts left out", n=len(rows)
    )
    return official


def mbpp_split(task_id: int | None) -> str | None:
    """Split of an MBPP problem.

    >>> mbpp_split(11), mbpp_split(510), mbpp_split(974), mbpp_split(975)
    ('test', 'test', 'train', None)
    """
    ranges = MBPP_RANGES.items()
    return next((n for n, (low, high) in ranges if task_id and low <= task_id <= high), None)


def hold_out(
    splits: Splits, *, valid_samples: int, eval_samples: int, split_seed: int, findings: Findings
) -> Splits:
    """Splits with a validation and a test part, held out of train where the data has none.

    Rows of one question, or of one task_id, stay on one side. An evaluation split of the data
    itself is cut to the number asked for.

    Args:
        splits: With at least "train".
        valid_samples: Rows of "valid" at most.
        eval_samples: Rows of "test" at most.
        split_seed: Of both draws.
        findings: Get notes on what was done.

    Raises:
        DataError: Too few rows; the error says what fits.
    """
    wanted = {"test": eval_samples, "valid": valid_samples}
    missing = {name: n for name, n in wanted.items() if name not in splits}
    train = splits["train"]
    if missing and len(train) < sum(missing.values()) + 1:
        raise too_few(len(train), missing)
    done = {
        name: _cut(splits[name], n, name, split_seed, findings)
        for name, n in wanted.items()
        if name in splits
    }
    left = train
    for name, n in missing.items():
        done[name], left = _take(left, n, split_seed, name)
        findings.add(
            "held_out", train[0].file, None, f"{len(done[name])} for {name}", n=len(done[name])
        )
        if len(done[name]) < n:
            findings.add(
                "short_split",
                name,
                None,
                f"{len(done[name])} of {n}: {_tied(train)} stay together",
            )
    if not left or not all(done.values()):
        raise _too_alike(train, missing)
    return {"train": left, "valid": done["valid"], "test": done["test"]}


def _take(
    rows: list[PlacedRow], n: int, seed: int, name: str
) -> tuple[list[PlacedRow], list[PlacedRow]]:
    """Draw whole groups of one question or task until n rows are drawn; both keep their order."""
    keys = group_keys(rows)
    sizes = Counter(keys)
    chosen: set[str] = set()
    room = n
    for key in sorted(sizes, key=lambda key: _draw_key(seed, f"{name}\0{key}")):
        if sizes[key] <= room:
            chosen.add(key)
            room -= sizes[key]
        if not room:
            break
    taken = [placed for placed, key in zip(rows, keys, strict=True) if key in chosen]
    return taken, [placed for placed, key in zip(rows, keys, strict=True) if key not in chosen]


def group_keys(rows: list[PlacedRow]) -> list[str]:
    """Of each row one question of all the rows that share a question or a task with it."""
    questions = [question_key(placed) for placed in rows]
    if not any(placed.task for placed in rows):
        return questions
    groups = components(
        len(rows), [numbers_of(questions), numbers_of(placed.task for placed in rows)]
    ).tolist()
    first: dict[int, str] = {}
    for group, question in zip(groups, questions, strict=True):
        first[group] = min(question, first.get(group, question))
    return [first[group] for group in groups]


def _cut(
    rows: list[PlacedRow], n: int, name: str, seed: int, findings: Findings
) -> list[PlacedRow]:
    if len(rows) <= n:
        if len(rows) < n:
            findings.add("short_split", name, None, f"{len(rows)} of {n}")
        return rows
    findings.add("split_cut", rows[0].file, None, f"{name}: {n} of {len(rows):,}", n=len(rows) - n)
    return draw(rows, n, seed)


def draw(rows: list[PlacedRow], n: int, seed: int) -> list[PlacedRow]:
    """Draw n rows and keep their order; a smaller draw is part of a larger one."""
    if n >= len(rows):
        return rows
    met: Counter[str] = Counter()
    order = []
    for at, placed in enumerate(rows):
        key = row_key(placed)
        order.append((_draw_key(seed, f"{key}\0{met[key]}"), at))
        met[key] += 1
    return [rows[at] for at in sorted(at for _, at in sorted(order)[:n])]


def too_few(n_rows: int, missing: dict[str, int]) -> DataError:
    """The error of data with too few rows to hold these splits out of; says what fits."""
    asked = " and ".join(f"{SIZES[name]}={n}" for name, n in missing.items())
    fits = max(1, n_rows // 10)
    parts = " and ".join(f"{SIZES[name]}={min(n, fits)}" for name, n in missing.items())
    is_hopeless = n_rows < len(missing) + 1
    return DataError(
        f"The data has {n_rows:,} training rows, too few to hold out {asked} and still train.",
        fix="give more rows, or files of their own for validation and test."
        if is_hopeless
        else f"set {parts}, which fit, or give files of their own for validation and test.",
    )


def _tied(rows: list[PlacedRow]) -> str:
    """What keeps rows on one side of a split."""
    has_tasks = any(placed.task for placed in rows)
    return "rows of one question" + " or task_id" * has_tasks


def _too_alike(train: list[PlacedRow], missing: dict[str, int]) -> DataError:
    """Enough rows, but too few questions to lie on both sides."""
    sizes = Counter(group_keys(train))
    asked = " and ".join(f"{SIZES[name]}={n}" for name, n in missing.items())
    has_tasks = any(placed.task for placed in train)
    verb, what = ("have", "task") if has_tasks else ("ask", "question")
    n_groups = f"1 {what}" if len(sizes) == 1 else f"{len(sizes):,} {what}s"
    fix = f"give rows with other {what}s, or files of their own for validation and test."
    if len(sizes) > len(missing):
        parts = " and ".join(
            f"{SIZES[name]}={max(n, max(sizes.values()))}" for name, n in missing.items()
        )
        fix = f"set {parts}, so that whole {what}s fit; or {fix}"
    return DataError(
        f"The {len(train):,} training rows {verb} {n_groups}, and {_tied(train)} stay on one side: "
        f"{asked} cannot be held out.",
        fix=fix,
    )


def limit_train(
    rows: list[PlacedRow], *, fraction: float, max_samples: int | None, seed: int
) -> list[PlacedRow]:
    """First the fraction (rounded down, at least one row), then the upper limit."""
    wanted = max(1, int(len(rows) * fraction + 1e-9))
    return draw(rows, min(wanted, max_samples or wanted), seed)


# ------------------------------------------------------------------------------------------------
# What train and evaluation rows share: equal rows, equal questions, near-duplicates.


HELD = ("test", "valid")
KINDS = ("equal", "same_question", "near")
EXAMPLES_KEPT = 5
# Train rows compared at once; a row of a hundred tokens takes about 6 kB meanwhile.
ROWS_AT_ONCE = 100_000


class Likeness(NamedTuple):
    """How a train row resembles row number `of` of an evaluation split."""

    kind: str
    of: int
    similarity: float | None  # of shingles; None where that was not what told


def compare_splits(
    splits: Splits, findings: Findings, *, remove: bool
) -> tuple[Splits, dict[str, Any]]:
    """Find train rows that repeat each other or an evaluation row, and remove the latter if asked.

    A train row is *equal* to an evaluation row (but for white space), of the *same question*, or
    *near* (Jaccard similarity of question and answer >= `near_duplicates.THRESHOLD`); each counts
    once, by the first that holds.

    Returns:
        The splits, and counts per evaluation split and within train, with examples.

    Raises:
        DataError: Rows were to be removed, and none would be left.
    """
    train = splits["train"]
    near, within = _near_rows(splits, findings)
    likenesses = {name: _likenesses(train, splits[name], near[name]) for name in HELD}
    bad = sorted(set().union(*likenesses.values()))
    like = {
        name: {kind: sum(one.kind == kind for one in rows.values()) for kind in KINDS}
        for name, rows in likenesses.items()
    }
    if bad:
        detail = ", ".join(f"{len(rows):,} like {name}" for name, rows in likenesses.items())
        findings.add("like_evaluation", train[bad[0]].file, train[bad[0]].line, detail, n=len(bad))
    if remove and bad:
        findings.add("removed_rows", train[0].file, None, n=len(bad))
        train = _without(train, set(bad))
    facts = {
        "threshold": THRESHOLD,
        "train_rows_like": like,
        "train_rows_like_any": len(bad),
        "removed": len(bad) if remove else 0,
        "within_train": within,
        "examples": list(_examples(splits, likenesses)),
    }
    return splits | {"train": train}, facts


def _without(train: list[PlacedRow], bad: set[int]) -> list[PlacedRow]:
    left = [placed for at, placed in enumerate(train) if at not in bad]
    if not left:
        raise DataError(
            "Every train row equals or nearly equals an evaluation row, and these were to be "
            "removed.",
            fix="set remove_duplicates=False, or give other evaluation rows.",
        )
    return left


def _near_rows(
    splits: Splits, findings: Findings
) -> tuple[dict[str, dict[int, Match]], dict[str, int | None]]:
    """Near-duplicates of each evaluation split by train row, and counts within train.

    Train is taken in blocks, so that memory stays bounded; with more than one block, repeats within
    train are not looked for beyond equal rows (None).
    """
    train, held_out = splits["train"], [*splits["test"], *splits["valid"]]
    n_test, n_held = len(splits["test"]), len(held_out)
    places = {"test": range(n_test), "valid": range(n_test, n_held)}
    near: dict[str, dict[int, Match]] = {name: {} for name in HELD}
    equal, n_near = _equal_rows(train, findings), None
    for start in range(0, len(train), ROWS_AT_ONCE):
        block = train[start : start + ROWS_AT_ONCE]
        index = ShingleIndex(_texts([*held_out, *block]))
        for name, references in places.items():
            for match in index.matches(range(n_held, len(index)), references):
                at, of = match.row - n_held + start, match.of - references.start
                near[name][at] = Match(at, of, match.similarity)
        if len(block) == len(train):
            rows = [n_held + at for at in range(len(train)) if at not in equal]
            n_near = _tell_repeats(index.repeats(rows), splits, n_held, findings)
    return near, {"equal": len(equal), "near": n_near}


def _texts(rows: Iterable[PlacedRow]) -> list[str]:
    return [f"{placed.row.question}\n{placed.row.answer}" for placed in rows]


def _equal_rows(train: list[PlacedRow], findings: Findings) -> set[int]:
    """Rows that equal an earlier one."""
    first: dict[str, int] = {}
    equal = [at for at, placed in enumerate(train) if first.setdefault(row_key(placed), at) != at]
    if equal:
        place = train[equal[0]]
        findings.add("equal_rows", place.file, place.line, n=len(equal))
    return set(equal)


def _tell_repeats(repeats: list[Match], splits: Splits, n_held: int, findings: Findings) -> int:
    if repeats:
        first, train = repeats[0], splits["train"]
        place, other = train[first.row - n_held], train[first.of - n_held]
        detail = f"like {other.file}:{other.line}, similarity {first.similarity:.2f}"
        findings.add("near_rows", place.file, place.line, detail, n=len(repeats))
    return len(repeats)


def _likenesses(
    train: list[PlacedRow], held_out: list[PlacedRow], near: dict[int, Match]
) -> dict[int, Likeness]:
    rows: dict[str, int] = {}
    questions: dict[str, int] = {}
    for at, placed in enumerate(held_out):
        rows.setdefault(row_key(placed), at)
        questions.setdefault(question_key(placed), at)
    likenesses: dict[int, Likeness] = {}
    for at, placed in enumerate(train):
        equal, same = rows.get(row_key(placed)), questions.get(question_key(placed))
        if equal is not None:
            likenesses[at] = Likeness("equal", equal, 1.0)
        elif same is not None:
            likenesses[at] = Likeness("same_question", same, None)
        elif at in near:
            likenesses[at] = Likeness("near", near[at].of, round(near[at].similarity, 3))
    return likenesses


def _examples(
    splits: Splits, likenesses: dict[str, dict[int, Likeness]]
) -> Iterator[dict[str, Any]]:
    for name, rows in likenesses.items():
        for at, likeness in list(rows.items())[:EXAMPLES_KEPT]:
            one, other = splits["train"][at], splits[name][likeness.of]
            yield {
                "row": f"{one.file}:{one.line}",
                "like": f"{other.file}:{other.line}",
                "kind": likeness.kind,
                "similarity": likeness.similarity,
            }


# ------------------------------------------------------------------------------------------------
# Instructions and their answers, ready for training: read, split, compared, put in a template.


class Sample(NamedTuple):
    """One example after the template; the completion has no end token."""

    id: str
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionData:
    """Samples of "train", "valid" and "test", where they come from, and what was found in them.

    `fingerprint` covers the rows of all splits as they stand in the files, before anything is held
    out or drawn; it does not depend on ids, order, file layout or template. `template` is the one
    used ("none": the rows bring their own prompts). `problems` is JSON: counts, rows_read,
    rows_dropped, examples, notes, facts, and `duplicates` between train and the others; `warnings`
    are sentences on what is left out or not read.
    """

    splits: dict[str, list[Sample]]
    source: str
    revision: str | None
    licence: str
    fingerprint: str
    template: str
    note: str = ""
    problems: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        return f"InstructionData({self.source}: {parts}; template {self.template})"

    def _repr_html_(self) -> str:
        like = self.problems.get("duplicates", {}).get("train_rows_like", {})
        rows = []
        for name, samples in self.splits.items():
            mean = sum(len(s.completion) for s in samples) / len(samples) if samples else 0
            shared = sum(like[name].values()) if name in like else ""
            rows.append((name, len(samples), f"{mean:,.0f}", shared))
        heads = ("split", "rows", "characters per answer", "train rows like these")
        return Table(heads, rows, f"{self!r}; fingerprint {self.fingerprint[:12]}").html()


def load_instructions(
    source: str,
    *,
    revision: str | None = None,
    template: str = "auto",
    on_bad_rows: Policy = "stop",
    train_fraction: float = 1.0,
    max_train_samples: int | None = None,
    valid_samples: int = 200,
    eval_samples: int = 100,
    split_seed: int = 0,
    seed: int = 0,
    remove_duplicates: bool = False,
    supervise: str = "last",
    tokenizer: Any = None,
) -> InstructionData:
    """Load instructions, hold out evaluation rows, and put each row in a template.

    Args:
        source: `smoke`, a file, archive or folder (JSON, JSON Lines, CSV, Parquet, Arrow), a
            folder of `save_to_disk`, or a data set on the hub as `owner/name:configuration:split`.
        revision: Branch, tag or commit on the hub; the commit it stood for is recorded.
        template: One of `presets.catalog.TEMPLATES`.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows
            and records it.
        train_fraction: Share of the train rows to use, drawn with `seed`.
        max_train_samples: Upper limit on the train rows, applied after the fraction.
        valid_samples: Rows for the loss during training.
        eval_samples: Rows of the test split.
        split_seed: Of the rows held out where the data has no such split.
        seed: Of the draw of train rows; it leaves the held-out rows alone.
        remove_duplicates: Drop train rows that equal or nearly equal an evaluation row, or ask the
            same question.
        supervise: `last`: of a conversation its last answer is learned; `all`: each of its answers
            is a train example of its own, under the turns before it.
        tokenizer: Of the model; for the template `chat` only.

    Raises:
        DataError: The data cannot be found, reached or read, rows are bad and the policy is
            `stop`, or there are too few rows.
        ConfigError: An argument is out of range, or the template cannot be used.
    """
    check_choice(on_bad_rows, train_fraction)
    check_whole(1, valid_samples=valid_samples, eval_samples=eval_samples)
    if max_train_samples is not None:
        check_whole(1, max_train_samples=max_train_samples)
    findings = Findings(on_bad_rows, source)
    splits, files, note = _read(source, revision, findings)
    fingerprint = _fingerprint(splits)
    used = resolve_template(template, splits["train"][0].row.form, tokenizer)
    splits = _rendered(splits, used, tokenizer, findings)
    sizes = {"valid_samples": valid_samples, "eval_samples": eval_samples}
    try:
        splits = official_splits(splits, findings)
        splits = hold_out(splits, **sizes, split_seed=split_seed, findings=findings)
    except DataError as error:  # rows that were left out may be why there are too few
        message = f"{error.message} {findings.left_out()}".rstrip()
        raise DataError(message, fix=error.fix, details=findings.report()) from error
    findings.facts["rows"] = {name: len(rows) for name, rows in splits.items()}
    splits, duplicates = compare_splits(splits, findings, remove=remove_duplicates)
    limits = {"fraction": train_fraction, "max_samples": max_train_samples}
    splits["train"] = limit_train(splits["train"], **limits, seed=seed)
    splits["train"] = _supervised(splits["train"], supervise, used, tokenizer, findings)
    if used == AS_WRITTEN and template != "auto":
        findings.add("own_prompts", splits["train"][0].file, None, f"template={template}")
    return InstructionData(
        splits={
            name: [Sample(placed.id, placed.prompt, placed.row.answer) for placed in rows]
            for name, rows in splits.items()
        },
        source=files.source,
        revision=files.revision,
        licence=files.licence,
        fingerprint=fingerprint,
        template=used,
        note=note,
        problems=findings.to_dict() | {"duplicates": duplicates},
        warnings=findings.warnings(),
    )


def _read(source: str, revision: str | None, findings: Findings) -> tuple[Splits, Files, str]:
    """All usable rows as they stand in the files, where they come from, and a note.

    Raises:
        DataError: Nothing is there, a file cannot be read, or rows are bad and the policy is
            `stop`.
    """
    if source == SMOKE:
        splits, note = _read_smoke(findings)
        files = Files(Path(), [], SMOKE, None, SMOKE_LICENCE)
    else:
        files, note = find_files(source, revision, findings), ""
        splits = _read_splits(files, findings)
    _require_rows(splits, findings)
    return splits, files, note


def _require_rows(splits: Splits, findings: Findings) -> None:
    findings.stop_if_needed()
    for name, rows in splits.items():
        if not rows:
            findings.add("no_rows_left", name, None, "every row was dropped")
    findings.stop_if_needed()


def _read_splits(files: Files, findings: Findings) -> Splits:
    """Rows of every split."""
    splits: Splits = {}
    reader = InstructionReader(findings)
    for split, names in sort_files(files, findings).items():
        if split not in MAIN_SPLITS:
            findings.add("ignored_file", names[0], None, f"the split {split}", n=len(names))
            continue
        for name in names:
            reader.read(read_records(open_file(files, name), name, findings))
        splits[split] = reader.end_split()
    reader.finish(files.source)
    return splits


def _read_smoke(findings: Findings) -> tuple[Splits, str]:
    from nbhelpers.data.samples import instructions as sample

    splits: Splits = {}
    reader = InstructionReader(findings)
    for split, rows in sample.load_instruction_rows().items():
        name = f"samples/{split}"
        reader.read(Record(name, line, values) for line, values in enumerate(rows, 1))
        findings.read(name, len(rows))
        splits[split] = reader.end_split()
    return splits, sample.SAMPLE_NOTE


def _rendered(splits: Splits, template: str, tokenizer: Any, findings: Findings) -> Splits:
    """The rows with their prompts; one that the chat template refuses is a bad row."""

    def prompts(rows: list[PlacedRow]) -> Iterator[PlacedRow]:
        for placed in rows:
            try:
                yield placed._replace(prompt=render(placed.row, template, tokenizer)[0])
            except DataError as error:
                findings.add("refused_turns", placed.file, placed.line, error.message)

    splits = {name: list(prompts(rows)) for name, rows in splits.items()}
    _require_rows(splits, findings)
    return splits


def _supervised(
    rows: list[PlacedRow], supervise: str, template: str, tokenizer: Any, findings: Findings
) -> list[PlacedRow]:
    """The rows; with "all" each after its earlier answers, which are rows of their own then."""
    examples, earlier = [], Counter[str]()  # earlier answers by the row that they stand in
    for placed in rows:
        turns = placed.row.turns
        asked = next((at for at, (role, _) in enumerate(turns) if role == "user"), len(turns))
        for at, (role, answer) in enumerate(turns):
            earlier[placed.id] += role == "assistant"
            if supervise == "all" and role == "assistant" and at > asked and answer.strip():
                row = placed.row._replace(answer=answer, turns=turns[:at])
                prompt, _ = render(row, template, tokenizer)
                examples.append(placed._replace(row=row, id=f"{placed.id}#{at}", prompt=prompt))
        examples.append(placed)
    n_more, n_chats = len(examples) - len(rows), sum(n > 0 for n in earlier.values())
    if n_more:
        detail = f"{len(examples):,} examples of {len(rows):,} rows"
        findings.add("all_answers", rows[0].file, None, detail, n=n_more)
    if n_silent := earlier.total() - n_more:
        detail = f"in {n_chats:,} conversations"
        detail += "; supervise=all trains on them" if supervise == "last" else ""
        findings.add("earlier_answers", rows[0].file, None, detail, n=n_silent)
    return examples


def _fingerprint(splits: dict[str, list[PlacedRow]]) -> str:
    """SHA-256 of what the rows say: sorted digests of their texts, per split."""
    total = hashlib.sha256()
    for name in sorted(splits):
        digests = sorted(hashlib.sha256(repr(p.row).encode()).digest() for p in splits[name])
        total.update(f"\n{name} {len(digests)}\n".encode() + b"".join(digests))
    return total.hexdigest()
