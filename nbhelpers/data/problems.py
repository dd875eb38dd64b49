"""What is wrong with rows of data: kinds, places, counts, and what is said of them."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Literal

from nbhelpers.common.display import left
from nbhelpers.errors import DataError

# ------------------------------------------------------------------------------------------------
# The findings of a data set: how much each weighs, what it says and what to do about it.


Weight = Literal["fatal", "problem", "note"]

# kind -> (weight, what is so, what to do about it)
KINDS: dict[str, tuple[Weight, str, str]] = {
    "missing_file": ("fatal", "a file that is needed is not there", "put it there"),
    "missing_shard": ("fatal", "a part of a split is not there", "fetch the missing parts again"),
    "ambiguous_files": (
        "fatal",
        "it is not clear which files to read",
        "keep one of them, or name its folder as the data",
    ),
    "unreadable_file": ("fatal", "a file cannot be read", "see the line"),
    "wrong_encoding": ("fatal", "a file is not UTF-8", "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    "missing_column": ("fatal", "a column is not there", "rename the columns to the names asked"),
    "empty_file": ("fatal", "a file has no rows", "write the file again"),
    "no_rows_left": ("fatal", "no row of a split can be used", "mend the rows named here"),
    "broken_json": ("problem", "line is not JSON", "write one JSON object a line"),
    "not_an_object": ("problem", "line is JSON but not an object", 'write {"func": …, "idx": …}'),
    "missing_key": ("problem", "a key is missing", 'each line needs "func" and "idx"'),
    "wrong_type": (
        "problem",
        "a value has the wrong type",
        "func is text, idx is text or a whole number",
    ),
    "bad_id": (
        "problem",
        "id cannot be used",
        "ids are text without tabs, line ends or blanks around",
    ),
    "empty_function": ("problem", "function is empty", "remove it and its pairs"),
    "bad_text": ("problem", "text cannot be stored as UTF-8", "remove the lone surrogate or NUL"),
    "clashing_id": ("problem", "one id, different texts", "give each function an id of its own"),
    "not_utf8": ("problem", "line is not UTF-8", "save the file as UTF-8"),
    "nul_byte": (
        "problem",
        "line holds a NUL byte",
        "remove it (UTF-16 without a mark looks like this)",
    ),
    "wrong_columns": ("problem", "line has not three columns", "write id1<TAB>id2<TAB>label"),
    "bad_label": (
        "problem",
        "label is not 0 or 1",
        "write 1 for a clone and 0 for none, without blanks",
    ),
    "unknown_id": (
        "problem",
        "id is not among the functions",
        "add the function or remove the pair",
    ),
    "bad_function": (
        "problem",
        "pair names a function that cannot be used",
        "mend the function's line",
    ),
    "null_value": ("problem", "row has no value in a column", "fill it or remove the row"),
    "self_pair": ("problem", "pair of a function with itself", "remove the pair"),
    "both_labels": ("problem", "the same pair stands with both labels", "keep the right one"),
    "too_large": ("fatal", "a file is too large to be held in memory", "give a part of it"),
    "unknown_columns": (
        "fatal",
        "no known columns",
        "give the columns of one of these forms the names that it has",
    ),
    "mixed_columns": ("fatal", "rows of several forms in one data set", "write all rows alike"),
    "answer_in_prompt": (
        "fatal",
        "the prompts hold their own answers",
        "cut each prompt off before its answer, or give the columns instruction and output",
    ),
    "not_a_row": ("problem", "entry is JSON but not an object", "write each row as one object"),
    "not_text": ("problem", "a value is not text", "write it as text"),
    "empty_answer": ("problem", "row has no answer", "fill it or remove the row"),
    "empty_question": ("problem", "row asks nothing", "fill it or remove the row"),
    "long_text": ("problem", "a text is far too long for an example", "remove the row"),
    "bad_turns": (
        "problem",
        "conversation cannot be read",
        "each turn has role and content (or from and value): system, user, assistant",
    ),
    "no_call": ("problem", "test calls no function", "remove the row"),
    "ragged_row": ("problem", "row has more or fewer cells than the header", "quote the cells"),
    "repeated_id": ("problem", "id stands twice in a split", "give each row an id of its own"),
    "unknown_label": (
        "problem",
        "label is not known",
        "write human or ai, or 0 and 1; the name of a model goes into the column generator",
    ),
    "no_label": ("problem", "row has no label", "write human or ai in the column label"),
    "no_task": ("problem", "row has no task", "name what the program solves in the column task"),
    "empty_code": ("problem", "there is no code", "remove the row or the file"),
    "binary_file": ("problem", "file is not text", "remove it, or save it as UTF-8"),
    "long_code": (
        "problem",
        "far too long for a program that a person wrote",
        "remove it: it is a table of data or a bundle, and a model reads its beginning only",
    ),
    "unreadable_code": ("problem", "a code file cannot be read", "make it readable"),
    "answer_in_question": ("note", "rows whose question holds the whole answer", ""),
    "columns_read": ("note", "columns understood by another name", ""),
    "crlf_text": ("note", "texts with CR line ends, read with plain ones", ""),
    "turns_after_answer": ("note", "turns after the last answer left out", ""),
    "own_prompts": ("note", "rows bring their own prompts; the template is not used", ""),
    "official_splits": ("note", "rows sorted into the data set's own splits by task_id", ""),
    "held_out": ("note", "rows held out of the training rows", ""),
    "split_cut": ("note", "evaluation rows beyond the number asked for, left out", ""),
    "short_split": ("note", "a split has fewer rows than asked for", ""),
    "equal_rows": ("note", "train rows that equal an earlier one but for white space", ""),
    "near_rows": ("note", "train rows that nearly equal an earlier one", ""),
    "like_evaluation": ("note", "train rows that equal or nearly equal an evaluation row", ""),
    "removed_rows": ("note", "of these, removed from the train rows as asked", ""),
    "int_id": ("note", "ids written as whole numbers, read as text", ""),
    "repeated_function": ("note", "functions written again with the same id and text", ""),
    "blank_line": ("note", "blank lines skipped", ""),
    "byte_order_mark": ("note", "a UTF-8 byte order mark skipped", ""),
    "crlf": ("note", "lines end in CR LF", ""),
    "duplicate_rows": ("note", "rows that repeat an earlier row", ""),
    "mirrored_rows": ("note", "rows that repeat an earlier pair in the other order", ""),
    "identical_not_clones": ("note", "pairs of one text with label 0", ""),
    "text_conflicts": ("note", "pairs of texts with both labels (under different ids)", ""),
    "shared_ids": ("note", "functions that stand in two splits", ""),
    "shared_pairs": ("note", "pairs that also stand in train", ""),
    "one_label": ("note", "a split has one label only", ""),
    "decoded": ("note", "code files that are not plain UTF-8, read in another encoding", ""),
    "unknown_language": ("note", "languages that are not known here, kept by their own name", ""),
    "unknown_split": ("note", "words for a split that are not known", ""),
    "same_code": ("note", "rows with the code of another row, left out", ""),
    "both_classes": ("note", "rows whose code stands in both classes, all left out", ""),
    "shared": ("note", "rows left out because another split shares their task, author or code", ""),
    "split_drawn": ("note", "splits drawn by task, author and like code", ""),
    "split_weaker": ("note", "not all rows that belong together could stay in one split", ""),
    "other_language": ("note", "rows in other languages than asked for", ""),
    "hold_out": ("note", "rows held out and tested apart", ""),
    "draw": ("note", "train rows left out by train_fraction or max_train_samples", ""),
    "ignored_file": ("note", "files left unread", ""),
    "ignored_revision": ("note", "a revision was asked of data that has none", ""),
    "from_cache": ("note", "the hub was not asked; read from the local cache", ""),
}


# ------------------------------------------------------------------------------------------------
# One report of everything found while a data set was read.
#
# A finding is *fatal* (a file that cannot be read at all), a *problem* (a row that cannot be used:
# stop, or drop exactly that row, as the user says) or a *note* (accepted, counted, told).


EXAMPLES_SHOWN = 20
PLACES_SHOWN = 3  # of each kind, where rows that were left out are told in a sentence

Policy = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Where one finding stands, and what was found there."""

    file: str
    line: int | None
    detail: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.detail}" if self.detail else place


def _plural(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _share(examples: dict[str, tuple[Example, ...]], kinds: list[str]) -> dict[str, int]:
    """Deal the examples shown over the kinds in turn, so that a frequent kind hides no rare one."""
    shown = dict.fromkeys(kinds, 0)
    left = EXAMPLES_SHOWN
    while left > 0:
        open_kinds = [k for k in kinds if shown[k] < len(examples.get(k, ()))][:left]
        if not open_kinds:
            break
        for kind in open_kinds:
            shown[kind] += 1
        left -= len(open_kinds)
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """Everything found in a data set: counts, first examples, rows dropped, facts worth knowing.

    `counts` is per kind of finding, `rows_read` and `rows_dropped` per file, `facts` per question
    (distinct texts, what the splits share, share of clones per split).
    """

    policy: Policy
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, tuple[Example, ...]] = field(default_factory=dict)
    rows_read: dict[str, int] = field(default_factory=dict)
    rows_dropped: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def kinds(self, *weights: Weight) -> list[str]:
        """Kinds found that have one of these weights, in the order of `KINDS`."""
        return [k for k in KINDS if k in self.counts and KINDS[k][0] in weights]

    @property
    def n_problems(self) -> int:
        """Number of findings that are not mere notes."""
        return sum(self.counts[k] for k in self.kinds("fatal", "problem"))

    @property
    def has_problems(self) -> bool:
        """Whether anything but notes was found."""
        return self.n_problems > 0

    @property
    def n_dropped(self) -> int:
        """Rows left out, over all files."""
        return sum(self.rows_dropped.values())

    def report(self) -> str:
        """Problems with their places and fixes, then the notes, then totals per file."""
        kinds = self.kinds("fatal", "problem")
        shown = _share(self.examples, kinds)
        lines: list[str] = []
        for kind in kinds:
            _, what, fix = KINDS[kind]
            lines.append(f"{self.counts[kind]:,} x {what}. Fix: {fix}.")
            examples_of_kind = self.examples.get(kind, ())
            lines += [f"    {example}" for example in examples_of_kind[: shown[kind]]]
            if self.counts[kind] > shown[kind]:
                lines.append(f"    … and {self.counts[kind] - shown[kind]:,} more")
        return "\n".join([*lines, *self.rest()])

    def rest(self) -> list[str]:
        """The lines of `report` that are no problems: notes, and totals per file."""
        return self._note_lines() + [
            f"{file}: {_plural(n, 'row')} read" + self._dropped_text(file)
            for file, n in self.rows_read.items()
        ]

    def left_out(self) -> str:
        """The rows left out and why, with the first places, as a sentence; empty if there are none.

        >>> where = Example(file="rows.jsonl", line=7, detail="")
        >>> Problems(policy="drop", counts={"empty_answer": 1}, rows_dropped={"rows.jsonl": 1},
        ...     examples={"empty_answer": (where,)}).left_out()
        '1 row is left out of the data: 1 x row has no answer (rows.jsonl:7).'
        """
        if not self.n_dropped:
            return ""
        causes = []
        for kind in self.kinds("problem"):
            examples_of_kind = self.examples.get(kind, ())
            places = [
                f"{e.file}:{e.line}" if e.line else e.file for e in examples_of_kind[:PLACES_SHOWN]
            ]
            places += ["…"] if self.counts[kind] > len(places) else []
            causes.append(f"{self.counts[kind]:,} x {KINDS[kind][1]} ({', '.join(places)})")
        rows = f"{_plural(self.n_dropped, 'row')} {'is' if self.n_dropped == 1 else 'are'}"
        return f"{rows} left out of the data: {'; '.join(causes)}."

    def summary(self) -> str:
        """`report` followed by the facts of the data set, one a line."""
        facts = [
            f"{name.replace('_', ' ')}: {_fact_text(value)}" for name, value in self.facts.items()
        ]
        return "\n".join([self.report(), *facts]).strip()

    def to_dict(self) -> dict[str, Any]:
        """JSON form for `result.json`."""
        shown = _share(self.examples, self.kinds("fatal", "problem"))
        return {
            "policy": self.policy,
            "counts": dict(self.counts),
            "rows_read": dict(self.rows_read),
            "rows_dropped": dict(self.rows_dropped),
            "examples": [
                f"{KINDS[k][1]}: {e}" for k, n in shown.items() for e in self.examples[k][:n]
            ],
            "notes": self._note_lines(),
            "left_out": self.left_out(),
            "facts": dict(self.facts),
        }

    def _note_lines(self) -> list[str]:
        lines = []
        for kind in self.kinds("note"):
            places = "; ".join(str(e) for e in self.examples.get(kind, ())[:2])
            lines.append(
                f"note: {KINDS[kind][1]}: {self.counts[kind]:,}"
                + (f" ({places})" if places else "")
            )
        return lines

    def _dropped_text(self, file: str) -> str:
        dropped = self.rows_dropped.get(file, 0)
        return f", {dropped:,} dropped" if dropped else ""

    def __repr__(self) -> str:
        return (
            f"Problems({_plural(self.n_problems, 'problem')}, "
            f"{_plural(self.n_dropped, 'row')} dropped, "
            f"{_plural(len(self.kinds('note')), 'kind')} of note)"
        )

    def _repr_html_(self) -> str:
        rows = []
        for kind in self.kinds("fatal", "problem", "note"):
            weight, what, fix = KINDS[kind]
            first = next(iter(self.examples.get(kind, ())), "")
            cells = (weight, what, f"{self.counts[kind]:,}", str(first), fix)
            rows.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
        head = "<tr><th></th><th>found</th><th>times</th><th>first at</th><th>fix</th></tr>"
        return left(f"<table>{head}{''.join(rows)}</table>")


def _fact_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_fact_text(v)}" for k, v in value.items()) or "none"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )


class ProblemLog:
    """Collects findings while files are read; memory stays bounded however many there are.

    Args:
        policy: `stop` or `drop`: what to do with a row that cannot be used.
        source: Name of the data set, for the error's first line.
    """

    def __init__(self, policy: Policy, source: str) -> None:
        self.policy, self.source = policy, source
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[Example]] = {}
        self.rows_read: dict[str, int] = {}
        self.rows_dropped: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def add(
        self,
        kind: str,
        file: str,
        line: int | None = None,
        detail: str = "",
        *,
        n: int = 1,
        rows: int | None = None,
    ) -> None:
        """Count a finding.

        Args:
            kind: A key of `KINDS`.
            file: Name of the file, relative to the data set.
            line: Line or row number, counted from 1.
            detail: What was found there.
            n: How many findings this call stands for.
            rows: Rows lost by it where that is not `n` (0: the finding is not a row of the file).
        """
        weight = KINDS[kind][0]
        self.counts[kind] = self.counts.get(kind, 0) + n
        examples_of_kind = self.examples.setdefault(kind, [])
        if len(examples_of_kind) < EXAMPLES_SHOWN:
            examples_of_kind.append(Example(file=file, line=line, detail=detail))
        lost = n if rows is None else rows
        if weight == "problem" and lost:
            self.rows_dropped[file] = self.rows_dropped.get(file, 0) + lost

    def read(self, file: str, n: int) -> None:
        """Record that a file had `n` rows, blank lines apart."""
        self.rows_read[file] = self.rows_read.get(file, 0) + n

    def has_any(self, *kinds: str) -> bool:
        """Whether one of these kinds was found."""
        return any(kind in self.counts for kind in kinds)

    def freeze(self) -> Problems:
        """What was found so far."""
        return Problems(
            policy=self.policy,
            counts=dict(self.counts),
            examples={k: tuple(v) for k, v in self.examples.items()},
            rows_read=dict(self.rows_read),
            rows_dropped=dict(self.rows_dropped) if self.policy == "drop" else {},
            facts=dict(self.facts),
        )

    def stop_if_needed(self) -> None:
        """Raise one `DataError` with the whole report where the findings ask for it.

        Raises:
            DataError: A file cannot be read at all, or rows are bad and the policy is `stop`.
        """
        problems = self.freeze()
        fatal, bad = problems.kinds("fatal"), problems.kinds("problem")
        if not fatal and (not bad or self.policy == "drop"):
            return
        kinds = fatal + bad
        first, is_one = self.examples[kinds[0]][0], sum(self.counts[k] for k in kinds) == 1
        named = "; ".join(f"{self.counts[k]:,} x {KINDS[k][1]}" for k in kinds)
        summary = f"{KINDS[kinds[0]][1]}: {first}" if is_one else f"{named}. First: {first}"
        if fatal:
            fix = f"{KINDS[fatal[0]][2]} ({first.file})."
        elif is_one:
            fix = f'{KINDS[bad[0]][2]}, or leave this row out: on_bad_rows="drop".'
        else:
            fix = 'mend the rows named below, or leave out exactly these: on_bad_rows="drop".'
        raise DataError(
            f"The data at {self.source} cannot be used as it is: {summary}",
            fix=fix,
            details="\n".join(problems.rest()) if is_one else problems.report(),
        )
