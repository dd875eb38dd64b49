"""What is found in data while it is read: its place, its weight, and what is said of all of it.

A finding is *fatal* (a file that cannot be read at all), a *problem* (a row that cannot be used:
stop, or drop exactly that row, as the user says) or a *note* (accepted, counted, told).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from nbhelpers.common.display import Table
from nbhelpers.common.formatting import number
from nbhelpers.errors import DataError

# Kind -> what is so, and what to do about it.
FATAL = {
    "missing_file": ("a file that is needed is not there", "put it there"),
    "missing_shard": ("a part of a split is not there", "fetch the missing parts again"),
    "ambiguous_files": (
        "it is not clear which files to read",
        "keep one of them, or name its folder as the data",
    ),
    "unreadable_file": (
        "a file cannot be read",
        "do what the line says, else write or download it again",
    ),
    "wrong_encoding": ("a file is not UTF-8", "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    "missing_column": ("a column is not there", "rename the columns to the names asked"),
    "column_type": ("a column has another type than is read", "write it in the type named"),
    "empty_file": ("a file has no rows", "write the file again"),
    "no_rows_left": ("no row of a split can be used", "mend the rows named here"),
    "too_large": ("a file is too large to be held in memory", "give a part of it"),
    "unknown_columns": (
        "no known columns",
        "give the columns of one of these forms the names that it has",
    ),
    "mixed_columns": ("rows of several forms in one data set", "write all rows alike"),
    "answer_in_prompt": (
        "the prompts hold their own answers",
        "cut each prompt off before its answer, or give the columns instruction and output",
    ),
}
PROBLEMS = {
    "broken_json": ("line is not JSON", "write one JSON object a line"),
    "not_an_object": ("line is JSON but not an object", 'write {"func": …, "idx": …}'),
    "missing_key": ("a key is missing", 'each line needs "func" and "idx"'),
    "wrong_type": ("a value has the wrong type", "func is text, idx is text or a whole number"),
    "bad_id": ("id cannot be used", "ids are text without tabs, line ends or blanks around"),
    "empty_function": ("function is empty", "remove it and its pairs"),
    "bad_text": ("text cannot be stored as UTF-8", "remove the lone surrogate or NUL"),
    "clashing_id": ("one id, different texts", "give each function an id of its own"),
    "not_utf8": ("line is not UTF-8", "save the file as UTF-8"),
    "nul_byte": ("line holds a NUL byte", "remove it (UTF-16 without a mark looks like this)"),
    "wrong_columns": ("line has not three columns", "write id1<TAB>id2<TAB>label"),
    "bad_label": ("label is not 0 or 1", "write 1 for a clone and 0 for none, without blanks"),
    "unknown_id": ("id is not among the functions", "add the function or remove the pair"),
    "bad_function": ("pair names a function that cannot be used", "mend the function's line"),
    "null_value": ("row has no value in a column", "fill it or remove the row"),
    "self_pair": ("pair of a function with itself", "remove the pair"),
    "both_labels": ("the same pair stands with both labels", "keep the right one"),
    "not_a_row": ("entry is JSON but not an object", "write each row as one object"),
    "not_text": ("a value is not text", "write it as text"),
    "empty_answer": ("row has no answer", "fill it or remove the row"),
    "empty_question": ("row asks nothing", "fill it or remove the row"),
    "long_text": ("a text is far too long for an example", "remove the row"),
    "bad_turns": (
        "conversation cannot be read",
        "each turn has role and content (or from and value): system, user, assistant",
    ),
    "refused_turns": (
        "the model's chat template does not take the row",
        "mend its turns (user and assistant take turns), or use template=alpaca",
    ),
    "no_call": ("test calls no function", "remove the row"),
    "ragged_row": ("row has more or fewer cells than the header", "quote the cells"),
    "repeated_id": ("id stands twice in a split", "give each row an id of its own"),
    "unknown_label": (
        "label is not known",
        "write human or ai, or 0 and 1; the name of a model goes into the column generator",
    ),
    "no_label": ("row has no label", "write human or ai in the column label"),
    "no_task": ("row has no task", "name what the program solves in the column task"),
    "empty_code": ("there is no code", "remove the row or the file"),
    "binary_file": ("file is not text", "remove it, or save it as UTF-8"),
    "long_code": (
        "far too long for a program that a person wrote",
        "remove it: it is a table of data or a bundle, and a model reads its beginning only",
    ),
    "unreadable_code": ("a code file cannot be read", "make it readable"),
}
NOTES = {
    "answer_in_question": "rows whose question holds the whole answer",
    "columns_read": "columns understood by another name",
    "crlf_text": "texts with CR line ends, read with plain ones",
    "turns_after_answer": "conversations whose turns after the last answer are left out",
    "earlier_answers": "earlier answers of train conversations that are read, but not trained on",
    "all_answers": "earlier answers of train conversations, each an example of its own",
    "empty_words": "cells that say nan, none or null in an optional column, taken as empty",
    "empty_word_read": "questions or answers that say nan, none or null, used as they are",
    "more_columns": "columns read beside the question and the answer",
    "unread_columns": "columns that nobody reads",
    "filled_cells": "cells that are null, or not there and filled with null by datasets",
    "own_prompts": "rows bring their own prompts; the template is not used",
    "official_splits": "rows sorted into the data set's own splits by task_id",
    "held_out": "rows held out of the training rows",
    "split_cut": "evaluation rows beyond the number asked for, left out",
    "short_split": "a split has fewer rows than asked for",
    "equal_rows": "train rows that equal an earlier one but for white space",
    "near_rows": "train rows that nearly equal an earlier one",
    "like_evaluation": "train rows that equal or nearly equal an evaluation row",
    "removed_rows": "of these, removed from the train rows as asked",
    "int_id": "ids written as whole numbers, read as text",
    "repeated_function": "functions written again with the same id and text",
    "blank_line": "blank lines skipped",
    "byte_order_mark": "a UTF-8 byte order mark skipped",
    "crlf": "lines end in CR LF",
    "duplicate_rows": "rows that repeat an earlier row",
    "mirrored_rows": "rows that repeat an earlier pair in the other order",
    "identical_not_clones": "pairs of one text with label 0",
    "text_conflicts": "pairs of texts with both labels (under different ids)",
    "shared_ids": "functions that stand in two splits",
    "shared_pairs": "pairs that also stand in train",
    "one_label": "a split has one label only",
    "few_rows": "a split to train on with next to no rows",
    "decoded": "code files that are not plain UTF-8, read in another encoding",
    "unknown_language": "languages that are not known here, kept by their own name",
    "unknown_split": "words for a split that are not known",
    "same_code": "rows with the code of another row, left out",
    "both_classes": "rows whose code stands in both classes, all left out",
    "shared": "rows left out because another split shares their task, author or code",
    "split_drawn": "splits drawn by task, author and like code",
    "split_weaker": "not all rows that belong together could stay in one split",
    "other_language": "rows in other languages than asked for",
    "hold_out": "rows held out and tested apart",
    "draw": "train rows left out by train_fraction or max_train_samples",
    "ignored_file": "files left unread",
    "ignored_revision": "a revision was asked of data that has none",
    "from_cache": "the hub was not asked; read from the local cache",
}
WEIGHTS = ("fatal", "problem", "note")
# kind -> (weight, what is so, what to do about it)
KINDS: dict[str, tuple[str, str, str]] = {
    **{kind: ("fatal", *texts) for kind, texts in FATAL.items()},
    **{kind: ("problem", *texts) for kind, texts in PROBLEMS.items()},
    **{kind: ("note", text, "") for kind, text in NOTES.items()},
}
# Notes that a user must have seen, also who never opens the page: something is lost by them.
TOLD = ("unread_columns", "empty_words", "earlier_answers", "turns_after_answer", "ignored_file")
TOLD += ("empty_word_read", "more_columns", "all_answers")
TOLD += ("both_classes", "unknown_split", "one_label", "few_rows")
EXAMPLES_SHOWN = 20
PLACES_SHOWN = 3  # of each kind, where rows that were left out are told in a sentence

Policy = Literal["stop", "drop"]


class Example(NamedTuple):
    """Where one finding stands, and what was found there."""

    file: str
    line: int | None
    detail: str

    @property
    def place(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}" if self.detail else self.place


class Findings:
    """Everything found in a data set; memory stays bounded however much it is.

    `counts` is per kind of finding, `examples` the first of each kind, `rows_read` and
    `rows_dropped` per file, `facts` per question (distinct texts, what the splits share).

    Args:
        policy: `stop` or `drop`: what to do with a row that cannot be used.
        source: Name of the data set, for the error's first line.
    """

    def __init__(self, policy: Policy, source: str) -> None:
        self.policy, self.source = policy, source
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[Example]] = {}
        self.rows_read: dict[str, int] = {}
        self.bad_rows: dict[str, int] = {}
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
        self.counts[kind] = self.counts.get(kind, 0) + n
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES_SHOWN:
            examples.append(Example(file, line, detail))
        lost = n if rows is None else rows
        if KINDS[kind][0] == "problem" and lost:
            self.bad_rows[file] = self.bad_rows.get(file, 0) + lost

    def read(self, file: str, n: int) -> None:
        """Record that a file had `n` rows, blank lines apart."""
        self.rows_read[file] = self.rows_read.get(file, 0) + n

    def has_any(self, *kinds: str) -> bool:
        """Whether one of these kinds was found."""
        return any(kind in self.counts for kind in kinds)

    def kinds(self, *weights: str) -> list[str]:
        """Kinds found that have one of these weights, in the order of `KINDS`."""
        return [k for k in KINDS if k in self.counts and KINDS[k][0] in weights]

    @property
    def n_problems(self) -> int:
        """Number of findings that are not mere notes."""
        return sum(self.counts[k] for k in self.kinds("fatal", "problem"))

    @property
    def rows_dropped(self) -> dict[str, int]:
        """Rows left out of each file."""
        return dict(self.bad_rows) if self.policy == "drop" else {}

    @property
    def n_dropped(self) -> int:
        """Rows left out, over all files."""
        return sum(self.rows_dropped.values())

    def stop_if_needed(self) -> None:
        """Raise one `DataError` with the whole report where the findings ask for it.

        Raises:
            DataError: A file cannot be read at all, or rows are bad and the policy is `stop`.
        """
        fatal, bad = self.kinds("fatal"), self.kinds("problem")
        if not fatal and (not bad or self.policy == "drop"):
            return
        kinds = fatal + bad
        first, is_one = self.examples[kinds[0]][0], self.n_problems == 1
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
            details="\n".join(self.rest()) if is_one else self.report(),
        )

    def report(self) -> str:
        """Problems with their places and fixes, then the notes, then totals per file."""
        lines: list[str] = []
        for kind, n_shown in self._shown().items():
            _, what, fix = KINDS[kind]
            lines.append(f"{self.counts[kind]:,} x {what}. Fix: {fix}.")
            lines += [f"    {example}" for example in self.examples[kind][:n_shown]]
            if self.counts[kind] > n_shown:
                lines.append(f"    … and {self.counts[kind] - n_shown:,} more")
        return "\n".join([*lines, *self.rest()])

    def rest(self) -> list[str]:
        """The lines of `report` that are no problems: notes, and totals per file."""
        dropped = {file: f", {n:,} dropped" for file, n in self.rows_dropped.items()}
        totals = [
            f"{file}: {number(n, 'row')} read{dropped.get(file, '')}"
            for file, n in self.rows_read.items()
        ]
        return self._notes() + totals

    def left_out(self) -> str:
        """The rows left out and why, with the first places, as a sentence; empty if there are none.

        >>> findings = Findings("drop", "here")
        >>> findings.add("empty_answer", "rows.jsonl", 7)
        >>> findings.left_out()
        '1 row is left out of the data: 1 x row has no answer (rows.jsonl:7).'
        """
        if not self.n_dropped:
            return ""
        causes = []
        for kind in self.kinds("problem"):
            places = [example.place for example in self.examples[kind][:PLACES_SHOWN]]
            places += ["…"] if self.counts[kind] > len(places) else []
            causes.append(f"{self.counts[kind]:,} x {KINDS[kind][1]} ({', '.join(places)})")
        rows = f"{number(self.n_dropped, 'row')} {'is' if self.n_dropped == 1 else 'are'}"
        return f"{rows} left out of the data: {'; '.join(causes)}."

    def warnings(self) -> tuple[str, ...]:
        """What a shell says of the data before it is used: rows left out, and what is lost."""
        notes = (self._note(kind) for kind in self.kinds("note") if kind in TOLD)
        return tuple(filter(None, (self.left_out(), *(f"Of the data: {note}." for note in notes))))

    def to_dict(self) -> dict[str, Any]:
        """JSON form for `result.json`."""
        return {
            "policy": self.policy,
            "counts": dict(self.counts),
            "rows_read": dict(self.rows_read),
            "rows_dropped": self.rows_dropped,
            "examples": [
                f"{KINDS[kind][1]}: {example}"
                for kind, n in self._shown().items()
                for example in self.examples[kind][:n]
            ],
            "notes": self._notes(),
            "left_out": self.left_out(),
            "facts": dict(self.facts),
        }

    def _shown(self) -> dict[str, int]:
        """Examples dealt over the kinds in turn, so that a frequent kind hides no rare one."""
        shown = dict.fromkeys(self.kinds("fatal", "problem"), 0)
        room = EXAMPLES_SHOWN
        while lacking := [k for k, n in shown.items() if n < len(self.examples[k])][:room]:
            room -= len(lacking)
            shown |= {kind: shown[kind] + 1 for kind in lacking}
        return shown

    def _notes(self) -> list[str]:
        return [f"note: {self._note(kind)}" for kind in self.kinds("note")]

    def _note(self, kind: str) -> str:
        places = "; ".join(map(str, self.examples[kind][:2]))
        return f"{KINDS[kind][1]}: {self.counts[kind]:,} ({places})"

    def __repr__(self) -> str:
        return (
            f"Findings({number(self.n_problems, 'problem')}, "
            f"{number(self.n_dropped, 'row')} dropped, "
            f"{number(len(self.kinds('note')), 'kind')} of note)"
        )

    def _repr_html_(self) -> str:
        rows = []
        for kind in self.kinds(*WEIGHTS):
            weight, what, fix = KINDS[kind]
            rows.append((weight, what, self.counts[kind], str(self.examples[kind][0]), fix))
        return Table(("", "found", "times", "first at", "fix"), rows).html()
