"""The sample of two styles: programs of small tasks, each written in two ways."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# ------------------------------------------------------------------------------------------------
# How a body of the two-style sample becomes a program: names, checks, words, room, in that order.
#
# Every habit is one draw by the chances of a :class:`Style`. What the habits touch differs: names
# go when a program is renamed, room when it is reformatted, words when comments are stripped; a
# check of the arguments and a named result stay under all of these edits.


# name of an open slot in the bodies: short names, long names
NAMES: dict[str, tuple[str, str]] = {
    "n": ("n x num v a", "number value amount given_number"),
    "m": ("m y k2 b", "second_number limit other_value divisor"),
    "xs": ("a xs l arr nums", "numbers values elements input_list"),
    "ys": ("b ys q2 arr2", "other_numbers second_list more_values"),
    "s": ("s t st txt", "text sentence message input_text"),
    "u": ("u w2 s2 t2", "other_text second_text comparison"),
    "i": ("i k ii", "index position current_index"),
    "j": ("j h jj", "inner_index next_position offset"),
    "c": ("c ch z", "character letter symbol"),
    "x": ("x e v it", "item element entry current_value"),
    "t": ("t tot sm acc", "total running_total accumulated"),
    "r": ("r res ans out", "result output answer collected"),
    "k": ("k cnt kk c1", "count counter occurrences"),
    "b": ("b mx best bb", "largest best_value highest"),
    "p": ("p pa f1 o", "first previous earlier_value"),
    "q": ("q pb f2 nx", "second current next_value"),
    "lo": ("lo l0 i0", "left lower_bound start"),
    "hi": ("hi r0 i1", "right upper_bound end_position"),
    "d": ("d mp dct m1", "lookup frequencies seen_values"),
    "w": ("w wd tk", "word current_word token"),
    "ws": ("ws wds ar", "words all_words tokens"),
    "ok": ("ok fl g", "is_valid found inside_word"),
}
SHORT_FUNCTIONS = ("f", "fn", "solve", "go", "calc", "run")
RESULTS = (("rv", "o1", "fin"), ("final_result", "computed_value", "final_value"))
CLASSES = ("Main", "A", "Sol", "Prog", "Test1", "X")
TYPES = {
    "python": {"int": "int", "long": "int", "str": "str", "bool": "bool", "float": "float"}
    | {"ints": "list[int]", "list": "list[int]"},
    "java": {"int": "int", "long": "long", "str": "String", "bool": "boolean", "float": "double"}
    | {"ints": "int[]", "list": "List<Integer>"},
}
IMPORTS = {
    **dict.fromkeys(("Arrays", "List", "ArrayList", "Map", "HashMap", "Set"), "java.util"),
    **dict.fromkeys(("HashSet", "LinkedHashSet", "Deque", "ArrayDeque"), "java.util"),
    **dict.fromkeys(("IntStream", "Collectors"), "java.util.stream"),
}
_QUOTED = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_OPERATOR = r" (\*\*|//|[-+*/%<>=!&|]=|&&|\|\||>>|[-+*/%<>=&|]) "
# kind of line: words of the terse style, words of the explaining style
REMARKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "loop": (
        ("loop", "go on till done", "each one"),
        ("Go through the input step by step.", "Repeat until nothing is left to do."),
    ),
    "if": (
        ("check", "this case", "hmm edge case"),
        ("Check whether the condition holds.", "Handle this case separately."),
    ),
    "return": (("done", "ok thats it"), ("Return the final result.", "The result is complete.")),
    "set": (("start", "init"), ("Initialize the working variables.", "Set the starting value.")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One small task: how it is called, and its bodies by language with open names."""

    name: str
    about: str
    parameters: tuple[tuple[str, str], ...]
    result: str
    call: str
    value: str
    bodies: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The chance of each habit, from 0 to 1.

    `first_body`: takes the first of two bodies; `long_names`; `docstring`; `remarks`: words above a
    line, in sentences by the chance `sentences`; `hints`: type hints, `public` in Java; `check`: of
    the arguments; `named_result`: a name for what is returned; `demo`: a call below, under a main
    guard by the chance `guarded`; `tight_commas`, `tight_operators`; `narrow`: two columns or a tab
    per level; `airy`: blank lines between steps; `hanging`: a Java brace on a line of its own.
    """

    first_body: float
    long_names: float
    docstring: float
    remarks: float
    sentences: float
    hints: float
    check: float
    named_result: float
    demo: float
    guarded: float
    tight_commas: float
    tight_operators: float
    narrow: float
    airy: float
    hanging: float


STYLES = {
    "human": Style(
        first_body=0.6,
        long_names=0.05,
        docstring=0.1,
        remarks=0.3,
        sentences=0.12,
        hints=0.18,
        check=0.1,
        named_result=0.15,
        demo=0.5,
        guarded=0.2,
        tight_commas=0.5,
        tight_operators=0.35,
        narrow=0.45,
        airy=0.12,
        hanging=0.3,
    ),
    "ai": Style(
        first_body=0.45,
        long_names=0.95,
        docstring=0.5,
        remarks=0.45,
        sentences=0.88,
        hints=0.65,
        check=0.45,
        named_result=0.45,
        demo=0.5,
        guarded=0.7,
        tight_commas=0.06,
        tight_operators=0.05,
        narrow=0.12,
        airy=0.45,
        hanging=0.1,
    ),
}


def write_program(task: Task, language: str, style: Style, draw: random.Random) -> str:
    """Write one of a task's bodies as a whole program, which ends with a line end."""
    habits = {name: draw.random() < getattr(style, name) for name in Style.__dataclass_fields__}
    body = task.bodies[language][0 if habits["first_body"] else 1]
    names = _draw_names(task, body, language, habits["long_names"], draw)
    lines = _filled(body, names).splitlines()
    if habits["named_result"]:
        lines = _with_named_result(lines, task, language, names, habits["long_names"])
    if habits["check"]:
        lines = [*_check(task, language, names), *lines]
    lines = [_tight(line, habits) for line in lines]
    if habits["remarks"]:
        lines = _with_remarks(lines, language, habits["sentences"], draw)
    if habits["airy"]:
        lines = _with_room(lines)
    write = _python_lines if language == "python" else _java_lines
    return _in_levels(write(task, lines, names, habits, draw), habits, draw)


# Names


def _draw_names(
    task: Task, body: str, language: str, is_long: bool, draw: random.Random
) -> dict[str, str]:
    """Choose a name for each slot; one in eight follows the other habit. No name is used twice."""
    slots = [name for _, name in task.parameters] + re.findall(r"\$([a-z]+)", body)
    names = {"f": _function_name(task, language, is_long, draw)}
    for slot in dict.fromkeys(slots):
        if slot == "f":
            continue
        wants_long = is_long != (draw.randrange(8) == 0)
        choice = [_cased(name, language) for name in NAMES[slot][wants_long].split()]
        names[slot] = draw.choice([name for name in choice if name not in names.values()])
    return names


def _function_name(task: Task, language: str, is_long: bool, draw: random.Random) -> str:
    words = task.name.split()
    if is_long != (draw.randrange(8) == 0):
        return _cased("_".join(words), language)
    start = "".join(word[:2] for word in words) if len(words) > 1 else words[0][:4]
    return draw.choice([*SHORT_FUNCTIONS, start, start])


def _cased(name: str, language: str) -> str:
    """Return a name in the language's case: `first_item` is `firstItem` in Java."""
    if language == "python":
        return name
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _filled(body: str, names: dict[str, str]) -> str:
    return re.sub(r"\$([a-z]+)", lambda match: names[match[1]], body)


# Checks and results


def _with_named_result(
    lines: list[str], task: Task, language: str, names: dict[str, str], is_long: bool
) -> list[str]:
    """Give what the last line returns a name first, unless it is a name already."""
    *rest, last = lines
    value = last.removeprefix("return ").rstrip(";")
    if last == value or value in names.values():
        return lines
    name = next(n for n in RESULTS[is_long] if _cased(n, language) not in names.values())
    name = _cased(name, language)
    if language == "python":
        return [*rest, f"{name} = {value}", f"return {name}"]
    return [*rest, f"{TYPES['java'][task.result]} {name} = {value};", f"return {name};"]


def _check(task: Task, language: str, names: dict[str, str]) -> list[str]:
    """Return lines that refuse a first argument that no call has."""
    kind, slot = task.parameters[0]
    name = names[slot]
    nothing = "None" if language == "python" else "null"
    test, what = f"{name} < 0", "must not be negative"
    if kind not in ("int", "float"):
        test = f"{name} is None" if language == "python" else f"{name} == {nothing}"
        what = f"must not be {nothing}"
    if language == "python":
        return [f"if {test}:", f'    raise ValueError("{name} {what}")']
    return [
        f"if ({test}) {{",
        f'    throw new IllegalArgumentException("{name} {what}");',
        "}",
    ]


# Room and words


def _tight(line: str, habits: dict[str, bool]) -> str:
    """Leave out the blanks after commas and around operators, outside of quoted text."""
    parts = re.split(_QUOTED, line)
    for index in range(0, len(parts), 2):
        if habits["tight_commas"]:
            parts[index] = parts[index].replace(", ", ",")
        if habits["tight_operators"]:
            parts[index] = re.sub(_OPERATOR, r"\1", parts[index])
    return "".join(parts)


def _kind_of(line: str) -> str:
    """Return what a line of a body does, for the remark above it; nothing for other lines."""
    first = line.split()[0] if line.strip() else ""
    if first in ("for", "while", "if", "return"):
        return {"for": "loop", "while": "loop"}.get(first, first)
    return "set" if re.match(r"[\w<>\[\], ]+=[^=]", line) else ""


def _with_remarks(
    lines: list[str], language: str, has_sentences: bool, draw: random.Random
) -> list[str]:
    """Put words above the first line of each kind, two times in three."""
    mark = "#" if language == "python" else "//"
    remarked, done = [], set()
    for line in lines:
        kind = _kind_of(line)
        if kind and kind not in done and draw.randrange(3):
            blank = " " if has_sentences or draw.random() < 0.5 else ""
            remarked.append(f"{mark}{blank}{draw.choice(REMARKS[kind][has_sentences])}")
        done.add(kind)
        remarked.append(line)
    return remarked


def _with_room(lines: list[str]) -> list[str]:
    """Put an empty line before each outer block and before the last line."""
    spaced: list[str] = []
    for index, line in enumerate(lines):
        is_last = index == len(lines) - 1
        starts = re.match(r"(for|while|if)\b", line) or is_last
        after_words = index and re.match(r"(#|//)", lines[index - 1])
        if index and starts and not after_words:
            spaced.append("")
        spaced.append(line)
    return spaced


# Whole programs, in levels of four columns


def _python_lines(
    task: Task, body: list[str], names: dict[str, str], habits: dict[str, bool], draw: random.Random
) -> list[str]:
    types = TYPES["python"]
    typed_names = [(names[slot], types[kind]) for kind, slot in task.parameters]
    inside = ", ".join(f"{name}: {kind}" if habits["hints"] else name for name, kind in typed_names)
    result = f" -> {types[task.result]}" if habits["hints"] else ""
    lines = [_tight(f"def {names['f']}({inside}){result}:", habits)]
    if habits["docstring"]:
        lines += _docstring(task, typed_names, draw)
    elif not draw.randrange(6):
        lines.insert(0, f"# {task.name}")
    lines += ["    " + line if line else "" for line in body]
    if habits["demo"]:
        call = _tight(f"{names['f']}({task.call})", habits)
        guard = ["", "", 'if __name__ == "__main__":', f"    print({call})"]
        lines += guard if habits["guarded"] else ["", f"print({call})"]
    return lines


def _docstring(task: Task, typed_names: list[tuple[str, str]], draw: random.Random) -> list[str]:
    if draw.random() < 0.6:
        return [f'    """{task.about}"""']
    parameter_lines = [f"        {name}: the {kind} to work on" for name, kind in typed_names]
    return [f'    """{task.about}', "", "    Args:", *parameter_lines, '    """']


def _java_lines(
    task: Task, body: list[str], names: dict[str, str], habits: dict[str, bool], draw: random.Random
) -> list[str]:
    types = TYPES["java"]
    access = "public static" if habits["hints"] else "static"
    typed_names = [(types[kind], names[slot]) for kind, slot in task.parameters]
    inside = ", ".join(f"{kind} {name}" for kind, name in typed_names)
    inner = [_tight(f"{access} {types[task.result]} {names['f']}({inside}) {{", habits)]
    if habits["docstring"]:
        parameter_lines = [f" * @param {name} the {kind} to work on" for kind, name in typed_names]
        inner = [
            "/**",
            f" * {task.about}",
            *(parameter_lines if draw.random() < 0.4 else []),
            " */",
            *inner,
        ]
    inner += [*("    " + line if line else "" for line in body), "}"]
    if habits["demo"]:
        inner += ["", *_java_main(task, names, habits)]
    words = [word.capitalize() for word in task.name.split()]
    name = "".join(words) if habits["long_names"] else draw.choice(CLASSES)
    lines = [f"class {name} {{", *("    " + line if line else "" for line in inner), "}"]
    if habits["hints"]:
        lines[0] = f"public {lines[0]}"
    return [*_imports("\n".join(lines), habits["long_names"]), *lines]


def _java_main(task: Task, names: dict[str, str], habits: dict[str, bool]) -> list[str]:
    arguments = ast.literal_eval(f"({task.call},)")
    call = f"{names['f']}({', '.join(map(_java_literal, arguments))})"
    shown = f"Arrays.toString({call})" if task.result == "ints" else call
    lines = [f"System.out.println({shown});"]
    if habits["guarded"]:
        kind = TYPES["java"][task.result]
        shown = shown.replace(call, "result")
        lines = [f"{kind} result = {call};", f"System.out.println({shown});"]
    inside = ["    " + _tight(line, habits) for line in lines]
    return ["public static void main(String[] args) {", *inside, "}"]


def _java_literal(value: object) -> str:
    if isinstance(value, list):
        return f"new int[] {{{', '.join(map(str, value))}}}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _imports(code: str, is_single: bool) -> list[str]:
    """Return the import lines of the classes that code names, one each or by package."""
    used = [name for name in sorted(IMPORTS) if re.search(rf"\b{name}\b", code)]
    names = used if is_single else ["*"] * len(used)
    lines = [f"import {IMPORTS[u]}.{name};" for u, name in zip(used, names, strict=True)]
    return [*dict.fromkeys(lines), *([""] if lines else [])]


def _in_levels(lines: list[str], habits: dict[str, bool], draw: random.Random) -> str:
    """Write levels of four columns as the habits say, and braces where they say."""
    level = draw.choice(("  ", "\t")) if habits["narrow"] else "    "
    indented: list[str] = []
    for line in lines:
        text = line.lstrip(" ")
        columns = len(line) - len(text)
        room = level * (columns // 4) + " " * (columns % 4)
        if habits["hanging"] and text.endswith(" {"):
            indented += [room + part for part in _hung(text)]
        else:
            indented.append(room + text)
    return "\n".join(line.rstrip() for line in indented) + "\n"


def _hung(text: str) -> list[str]:
    """Put the braces of a line on lines of their own: `} else {` becomes three."""
    text = text.removesuffix(" {")
    return ["}", text.removeprefix("} "), "{"] if text.startswith("} ") else [text, "{"]


# ------------------------------------------------------------------------------------------------
# A bundled sample of small Python and Java programs in two styles, written for this project.
#
# `style_tasks.txt` has the tasks, each with two bodies in Python and two in Java, in which names
# are open. :mod:`nbhelpers.data.samples.styles` writes a body in a style. The rule:
#
# * Style A is *terse*: short names, little room, few words. It stands for the label ``human``.
# * Style B is *explaining*: long names, docstrings, checks, room around things. It stands for
# ``ai``.
# * A style is a chance for each habit, not a law (:data:`STYLES`), and one program in
#   `CROSSED_ONE_IN` is written by the other style's chances. So no single habit tells the labels
#   apart, and no scorer can be right about every program.
# * Each task has `VARIANTS` programs per language and style; all of them are its members.
# * The splits hold different tasks; so do the two sources, and a pool belongs to one source of one
#   split. Pools and generators are names of draws: nobody stands behind them.


SAMPLE_NOTE = (
    "Small programs written for this project in two styles, terse (here `human`) and explaining "
    "(here `ai`): they show the machinery. Scores on them say nothing about real code, and a model "
    "trained on them detects nothing real."
)
ENDINGS = {"python": ".py", "java": ".java"}
LANGUAGES = tuple(ENDINGS)
VARIANTS = 4
CROSSED_ONE_IN = 30
SPLIT_TASKS = {"train": 39, "valid": 9, "test": 9}
GENERATORS = ("rules-1", "rules-2")

_SEED = 5


@cache
def load_tasks() -> tuple[Task, ...]:
    """Return the tasks of the text file, in its order."""
    text = (Path(__file__).parent / "style_tasks.txt").read_text(encoding="utf-8")
    return tuple(_task(part) for part in re.split(r"^= ", text, flags=re.MULTILINE)[1:])


def load_style_rows() -> list[dict[str, str]]:
    """Return the programs, the same ones everywhere.

    A row has id, code, language, label, task, author, generator, source, licence and split.
    """
    return [dict(row) for row in _rows()]


@cache
def _rows() -> tuple[dict[str, str], ...]:
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    for number, (task, split) in enumerate(_split_tasks()):
        source = f"set-{number % 2 + 1}"
        for language in LANGUAGES:
            for label in STYLES:
                for variant in range(VARIANTS):
                    code = _new_program(task, language, label, variant, seen)
                    rows.append(_row(task, language, label, variant, code, split, source))
    return tuple(rows)


def _split_tasks() -> list[tuple[Task, str]]:
    """Return each task with its split, in a drawn order."""
    tasks = list(load_tasks())
    random.Random(f"{_SEED} splits").shuffle(tasks)
    splits = [split for split, count in SPLIT_TASKS.items() for _ in range(count)]
    return list(zip(tasks, splits, strict=True))


def _new_program(task: Task, language: str, label: str, variant: int, seen: set[str]) -> str:
    """Return a program that, whatever its white space, was not written before."""
    for attempt in range(1000):
        draw = random.Random(f"{_SEED} {task.name} {language} {label} {variant} {attempt}")
        other = draw.randrange(CROSSED_ONE_IN) == 0
        style = next(name for name in STYLES if (name != label) == other)
        code = write_program(task, language, STYLES[style], draw)
        if (bare := "".join(code.split())) not in seen:
            seen.add(bare)
            return code
    raise AssertionError(f"{task.name} has too few ways to be written")


def _row(
    task: Task, language: str, label: str, variant: int, code: str, split: str, source: str
) -> dict[str, str]:
    name = task.name.replace(" ", "-")
    pools = [f"pool-{split}-{source}-{letter}" for letter in "ab"]
    return {
        "id": f"{name}-{language}-{label}-{variant + 1}",
        "code": code,
        "language": language,
        "label": label,
        "task": name,
        "author": pools[variant % 2] if label == "human" else "",
        "generator": GENERATORS[variant % 2] if label == "ai" else "",
        "source": source,
        "licence": "Apache-2.0",
        "split": split,
    }


def _task(part: str) -> Task:
    """Read one task of the text file."""
    head, _, rest = part.partition("\n")
    name, about, signature, example = (field.strip() for field in head.split(" | "))
    parameters, _, result = signature.partition(" -> ")
    call, _, value = example.partition(" -> ")
    bodies: dict[str, list[str]] = {"p": [], "j": []}
    for letter, body in re.findall(r"^([pj])\n((?:(?![pj]$).*\n?)*)", rest, flags=re.MULTILINE):
        bodies[letter].append(body.strip("\n"))
    return Task(
        name=name,
        about=about,
        parameters=tuple(tuple(field.split()) for field in parameters.split(", ")),
        result=result,
        call=call,
        value=value,
        bodies={"python": tuple(bodies["p"]), "java": tuple(bodies["j"])},
    )


def write_style_files(folder: str | Path, *, tasks: int = 3) -> Path:
    """Write programs of the test split as files to try a detector on, and return the folder.

    Of each task one program per language and style, in a file named by task and style; files of
    that name are replaced.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    rows = [row for row in _rows() if row["split"] == "test" and row["id"].endswith("-1")]
    chosen = list(dict.fromkeys(row["task"] for row in rows))[:tasks]
    for row in rows:
        if row["task"] in chosen:
            style = "terse" if row["label"] == "human" else "explaining"
            name = f"{row['task']}-{style}{ENDINGS[row['language']]}"
            (place / name).write_text(row["code"], encoding="utf-8", newline="\n")
    return place
