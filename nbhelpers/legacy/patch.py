"""Repair the training scripts that people have, so that `accelerate launch` can run them."""

from __future__ import annotations

import ast
import difflib
import itertools
import os
import re
import shutil
import tokenize
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from nbhelpers.common.files import expanded, kind_of
from nbhelpers.errors import ConfigError
from nbhelpers.legacy.faults import Guard, Guards, find_faults, find_guards, replacements
from nbhelpers.legacy.ranks import (
    VARIABLE,
    Judge,
    Option,
    Point,
    RankNames,
    attribute_uses,
    env_sources,
    late_uses,
    parse_points,
    rank_names,
    rank_options,
    required_line,
)
from nbhelpers.legacy.result import ALREADY, DONE, WOULD, ScriptPatch, hints_of, train_command
from nbhelpers.legacy.source import (
    LINE_END,
    Edit,
    Script,
    apply_edits,
    base_name,
    last_name,
    read_script,
)

# ------------------------------------------------------------------------------------------------
# Both repairs as edits, which take the indentation and the line ends of their neighbours.
#
# LOCAL_RANK is read where the arguments have been parsed, on lines of its own, or behind a
# semicolon where the statement shares its line. A condition is opened by its operator and its
# constant alone, so comments and line breaks between them stay.


BOTH = "[-1, 0]"
_OPERATORS = {"==", "!=", "<", "<=", ">", ">=", "is", "not", "in"}
_OS_ALIAS = "_os"  # where the script calls something else `os`


def read_rank_edits(script: Script, points: list[Point]) -> list[Edit]:
    """Return the edits that make each point read LOCAL_RANK, imports included."""
    edits: list[Edit] = []
    imports: set[str] = set()
    for point in points:
        module, missing = _os_name(script, point.statement)
        imports |= {missing} - {""}
        edits += _reading(script, point, module)
    return [*(_import_edit(script, line) for line in sorted(imports)), *edits]


def _reading(script: Script, point: Point, module: str) -> list[Edit]:
    if point.form == "before":
        return [_default_edit(script, point, module)]
    if point.form == "after":
        return [_placed(script, point, point.namespace, module, "")]
    # `return parse()` becomes an assignment, the repair, and the return of the name.
    used = {getattr(n, "id", getattr(n, "arg", "")) for n in ast.walk(script.scope(point.value))}
    name = "parsed_args" if "args" in used else "args"
    start = script.span(point.statement)[0]
    assigned = Edit(start, start + len("return"), f"{name} =")
    return [assigned, _placed(script, point, name + point.namespace, module, f"return {name}")]


def _placed(script: Script, point: Point, namespace: str, module: str, ending: str) -> Edit:
    """The repair behind a statement, on lines of its own where the statement has one."""
    start, end = script.span(point.statement)
    line_end, after = script.logical_end(end)
    indent = _indent(script, start)
    test, current = _test(point, namespace, module)
    target, value = f"{namespace}.{point.option.attribute}", f'int({module}.environ["{VARIABLE}"])'
    if indent is None or not _is_last(script, end, line_end):
        text = f"; {target} = {value} if {test} else {current}"
        return Edit(end, end, text + (f"; {ending}" if ending else ""))
    line = script.line_end(line_end)
    lines = [f"{indent}if {test}:", f"{indent}{_unit(script, indent)}{target} = {value}"]
    lines += [indent + ending] if ending else []
    text = line.join(lines)
    return Edit(after, after, text + line if after > line_end else line + text)


def _test(point: Point, namespace: str, module: str) -> tuple[str, str]:
    """The condition (the launcher sets a rank, the option has its default), and the value held."""
    attribute, default = point.option.attribute, point.option.default
    current = f"{namespace}.{attribute}"
    if not point.is_sure:
        # `==` with None never holds; where the default is None, a missing one must not count.
        current = f'getattr({namespace}, "{attribute}", {0 if default == "None" else None})'
    is_set = f'"{VARIABLE}" in {module}.environ'
    if not default:  # what the launcher says is right
        return is_set, current
    return f"{current} {'is' if default == 'None' else '=='} {default} and {is_set}", current


def _default_edit(script: Script, point: Point, module: str) -> Edit:
    """Change the parser's default in front of a statement that parses inside an expression."""
    assert isinstance(point.value, ast.Call) and isinstance(point.value.func, ast.Attribute)
    parser = ast.unparse(point.value.func.value)  # names and dots; in f-strings places are wrong
    attribute = point.option.attribute
    default = point.option.default
    read = f'int({module}.environ.get("{VARIABLE}", {default}))'
    if not default.lstrip("-").isdigit():
        usual = f'{parser}.get_default("{attribute}")'
        read = f'int({module}.environ["{VARIABLE}"]) if "{VARIABLE}" in {module}.environ'
        read += f" else {usual}"
    return _in_front(script, point.statement, f"{parser}.set_defaults({attribute}={read})")


def _in_front(script: Script, statement: ast.stmt, line: str) -> Edit:
    """A line in front of a statement, or a part of its line in front of it."""
    start = script.span(statement)[0]
    indent = _indent(script, start)
    if indent is None:
        return Edit(start, start, f"{line}; ")
    decorators = getattr(statement, "decorator_list", [])
    place = script.line_start(script.span(decorators[0])[0] if decorators else start)
    return Edit(place, place, indent + line + script.line_end(place))


def _indent(script: Script, start: int) -> str | None:
    """The white space in front of a statement; None where it does not begin its line."""
    text = script.text[script.line_start(start) : start]
    return None if text.strip() else text.rpartition("\f")[2]  # a form feed restarts the count


def _is_last(script: Script, end: int, line_end: int) -> bool:
    """Whether nothing but a comment follows a statement on its line."""
    return all(token.type == tokenize.COMMENT for token in script.between(end, line_end))


def _unit(script: Script, indent: str) -> str:
    """One step of indentation: a tab among tabs, else as the file has it first."""
    steps = (token.string for token in script.tokens if token.type == tokenize.INDENT)
    return "\t" if "\t" in indent else next(steps, "    ").rpartition("\f")[2]


def _os_name(script: Script, statement: ast.stmt) -> tuple[str, str]:
    """How `os` is called at a statement, and the import that is missing for it, if one is."""
    bound = [node for node in script.nodes if _binds_os(node)]
    plain = [node for node in bound if _is_import_of_os(script, node)]
    if len(plain) < len(bound):
        return _OS_ALIAS, f"import os as {_OS_ALIAS}"
    is_run_later = any(hasattr(each, "args") for each in script.ancestors(statement))
    for node in plain:
        line, holder, *_ = script.ancestors(node)
        is_always = holder is script.tree or (isinstance(holder, ast.Try) and line in holder.body)
        if is_always and (is_run_later or line.lineno < statement.lineno):  # type: ignore[attr-defined]
            return "os", ""
    return "os", "import os"


def _binds_os(node: ast.AST) -> bool:
    """Whether a node gives the name `os` a meaning."""
    if isinstance(node, ast.alias):
        return (node.asname or node.name.split(".")[0]) == "os"
    if isinstance(node, ast.Name):
        return node.id == "os" and isinstance(node.ctx, ast.Store)
    return "os" in (getattr(node, "name", ""), node.arg if isinstance(node, ast.arg) else "")


def _is_import_of_os(script: Script, node: ast.AST) -> bool:
    """Whether a node is the name in `import os`, or in `import os.path`, of the module itself."""
    is_import = isinstance(node, ast.alias) and isinstance(script.parents[node], ast.Import)
    is_os = is_import and (node.name == "os" or node.asname is None)
    return is_os and script.scope(node) is script.tree


def _import_edit(script: Script, line: str) -> Edit:
    """The missing import, behind docstring and `__future__`."""
    body = script.tree.body
    count = int(ast.get_docstring(script.tree, clean=False) is not None)
    while isinstance(body[count], ast.ImportFrom) and body[count].module == "__future__":
        count += 1
    return _in_front(script, body[count], line)


def open_edits(script: Script, guards: list[Guard], judge: Judge) -> list[Edit]:
    """Return the edits that let rank 0 pass each condition as a single process does."""
    parts = {part: single for guard in guards for part, single in replacements(guard, judge)}
    edits: list[Edit] = []
    for part, is_single in parts.items():
        if isinstance(part, ast.Compare):
            edits += _compare_edits(script, judge, part, is_single)
        elif isinstance(part, ast.Name):  # it stands for a comparison, which is written out here
            comparison = judge.aliases[part.id]
            assert isinstance(comparison, ast.Compare)
            side = (
                comparison.left
                if judge.names.occurs(comparison.left)
                else comparison.comparators[0]
            )
            word = "in" if is_single else "not in"
            edits.append(Edit(*script.span(part), f"({script.source(side)} {word} {BOTH})"))
    return edits


def _compare_edits(script: Script, judge: Judge, node: ast.Compare, is_single: bool) -> list[Edit]:
    left, right = script.span(node.left), script.span(node.comparators[0])
    operators = [t for t in script.between(left[1], right[0]) if t.string in _OPERATORS]
    start, end = script.token_place(operators[0].start), script.token_place(operators[-1].end)
    word = _spaced(script, start, end, "in" if is_single else "not in")
    edits = [Edit(start, end, word), Edit(*right, _spaced(script, *right, BOTH))]
    if not judge.names.occurs(node.left):
        rank = script.source(node.comparators[0])
        edits.insert(0, Edit(*left, _spaced(script, *left, rank)))
    return edits


def _spaced(script: Script, start: int, end: int, text: str) -> str:
    """The text with a blank where it would touch a neighbour: `-1==rank` has none to begin with."""
    before, after = script.text[max(start - 1, 0) : start], script.text[end : end + 1]
    is_word = text in ("in", "not in")
    if before.strip() and text[0] != "[" and (is_word or before.isalnum() or before == "_"):
        text = f" {text}"
    return f"{text} " if is_word and after.strip() else text


# ------------------------------------------------------------------------------------------------
# Repair the training scripts that people have, so that `accelerate launch` can run them.
#
# Two repairs: the script reads LOCAL_RANK after its arguments are parsed, and rank 0 evaluates and
# saves where only a single process did. The script is parsed, never searched as text, and only the
# repaired places change a byte. What the repairs do not mend is said, with the lines.


@dataclass(slots=True)
class _Plan:
    """The edits of a script, and what is to be said of it."""

    script: Script
    path: Path
    options: list[Option]
    names: RankNames
    guards: Guards
    edits: list[Edit] = field(default_factory=list)
    reads_rank: list[str] = field(default_factory=list)
    saves: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def patch_script(path: str | Path, *, write: bool = False) -> ScriptPatch:
    """Repair a script; without `write` nothing is changed.

    Args:
        path: The Python file; a link is followed, its target is what changes.
        write: Change the file, with a backup of the old one beside it.

    Raises:
        ConfigError: The script cannot be repaired, with the reason; nothing was changed.
    """
    path = expanded(path)
    target = path.resolve() if kind_of(path) and path.is_symlink() else path
    try:
        return _patched(path, target, write=write)
    except RecursionError as error:
        text = f"{path}: its expressions are nested too deeply. Nothing was changed."
        raise ConfigError(text, fix="split the deepest one") from error


def _patched(path: Path, target: Path, *, write: bool) -> ScriptPatch:
    script = read_script(target)
    before = script.to_bytes(script.text)
    plan = _plan(script, path)
    text = apply_edits(script.text, plan.edits)
    after = script.to_bytes(text)
    _check(target, before, original=True)
    if plan.edits:
        _check(target, after, original=False)
    backup = _replaced(target, after) if write and plan.edits else None
    shown = _plan(read_script(target, after), path) if backup else plan
    notes = [f"{path} is a link: the file behind it is meant, {target}"] if target != path else []
    return ScriptPatch(
        path=path,
        target=target,
        status=DONE if backup else WOULD if plan.edits else ALREADY,
        reads_rank=tuple(plan.reads_rank),
        saves=tuple(plan.saves),
        kept=tuple(plan.guards.kept),
        notes=(*plan.notes, *notes),
        diff=_diff(script, text, path.name) if plan.edits else "",
        backup=backup,
        faults=tuple(find_faults(shown.script, shown.guards)),
        hints=hints_of(script),
    )


def _plan(script: Script, path: Path) -> _Plan:
    """Both repairs as edits, or a refusal."""
    options = rank_options(script)
    names = rank_names(options)
    plan = _Plan(script, path, options, names, find_guards(script, names))
    _refuse(plan)
    _plan_reading(plan)
    _plan_saving(plan)
    return plan


def _plan_reading(plan: _Plan) -> None:
    """The first repair: found, or to be made, or a reason to refuse."""
    script, sources = plan.script, env_sources(plan.script, plan.names)
    late = {source: late_uses(script, plan.names, source, sources) for source in sources}
    early = [source for source in sources if not late[source]]
    if early:
        plan.reads_rank += [f"line {each.line}: there already: {each.words}" for each in early]
        done = [ast.dump(source.node) for source in early if source.node]
        if len(set(done)) < len(done):
            plan.notes.append("the same repair stands more than once; that does no harm")
        return
    plan.notes += [
        f"line {source.line} reads LOCAL_RANK too late: line {lines[0]} asks before"
        for source, lines in late.items()
    ]
    points = parse_points(script, plan.names, plan.options)
    if not points:
        if not _is_for_callers(plan):
            raise _no_point(plan)
        plan.reads_rank.append("the arguments come from the caller, so nothing is to be read here")
        plan.notes.append("patch the file that parses the arguments too")
        return
    bad = next((point for point in points if not point.form), None)
    if bad is not None:
        raise _no_place(plan, bad)
    plan.edits += read_rank_edits(script, points)
    plan.reads_rank += [
        f"line {point.statement.lineno}: to be read "
        f"{'in front of' if point.form == 'before' else 'after'} `{_first_line(script, point)}`"
        for point in points
    ]


def _plan_saving(plan: _Plan) -> None:
    """The second repair: to be made, there already, or not needed."""
    script, guards = plan.script, plan.guards
    plan.edits += open_edits(script, guards.closed, guards.judge)
    for guard in sorted(guards.closed, key=lambda each: each.line):
        plan.saves.append(
            f"line {guard.line}: to be opened for rank 0: `{_first_line(script, guard.test)}`"
        )
    for line in sorted({guard.line for guard in guards.opened}):
        plan.saves.append(f"line {line}: rank 0 passes already")
    for what, lines in (("evaluates", guards.free_evaluations), ("saves", guards.free_saves)):
        if lines:
            text = ", ".join(map(str, lines))
            plan.saves.append(f"line {text}: every process {what}, no condition on the rank")
    if not (plan.saves or guards.kept):
        plan.saves.append("no condition on the rank guards an evaluation or a save here")


def _is_for_callers(plan: _Plan) -> bool:
    """Whether a file only holds functions that get the arguments, and has conditions to open."""
    uses = attribute_uses(plan.script, plan.names)
    for use in uses:
        heads = [getattr(each, "args", None) for each in plan.script.ancestors(use)]
        heads = [each for each in heads if isinstance(each, ast.arguments)]
        parameters = {n.arg for head in heads for n in ast.walk(head) if isinstance(n, ast.arg)}
        if getattr(getattr(use, "value", None), "id", None) not in parameters:
            return False
    return bool(uses) and bool(plan.guards.closed or plan.guards.opened)


def _first_line(script: Script, part: Point | ast.expr | ast.stmt) -> str:
    first, *more = LINE_END.split(script.source(part.value if isinstance(part, Point) else part))
    return f"{first.rstrip()} …" if more else first


def _refuse(plan: _Plan) -> None:
    """Refuse a script that has no rank, or whose processes no launcher starts."""
    script, path = plan.script, plan.path
    is_ranked = plan.options or plan.names.occurs(script.tree) or env_sources(script, plan.names)
    if not is_ranked:
        wraps = [call.lineno for call in script.calls if last_name(call) == "DataParallel"]
        uses = f", DataParallel in line {wraps[0]}" if wraps else ""
        model = hints_of(script).model
        raise ConfigError(
            f"{path}: it has no local_rank{uses}. The patch would compile and then fail at run "
            "time (the arguments have no attribute local_rank), and without DistributedSampler, "
            "init_process_group and DistributedDataParallel each process would train on all the "
            "data. Nothing was changed.",
            fix="run it in one process, add those three and an option --local_rank, or train "
            f"with: {train_command(model) if model else 'nbhelpers train clones'}",
        )
    if line := required_line(script):
        raise ConfigError(
            f"{path}: the rank's option is required=True (line {line}), and accelerate passes no "
            "such option: the parser would end the script. Nothing was changed.",
            fix="write default=-1 in place of required=True, and run this again",
        )
    for call in script.calls:
        if last_name(call) == "spawn" and base_name(call) in ("mp", "multiprocessing"):
            raise ConfigError(
                f"{path}: it starts its own processes (line {call.lineno}: "
                f"{base_name(call)}.spawn), each with the rank as an argument, so no launcher "
                "sets LOCAL_RANK. Nothing was changed.",
                fix="start it with python, not with accelerate launch",
            )


def _no_point(plan: _Plan) -> ConfigError:
    lines = [n.lineno for n in plan.script.nodes if plan.names.matches(n)]  # type: ignore[attr-defined]
    where = f"line {min(lines)} asks local_rank, but" if lines else "an option is declared, but"
    return ConfigError(
        f"{plan.path}: {where} no statement here parses arguments (argparse or HfArgumentParser), "
        "so there is no place to read LOCAL_RANK. Nothing was changed.",
        fix="name the file that parses them as well, or set the rank by hand: "
        'local_rank = int(os.environ.get("LOCAL_RANK", -1))',
    )


def _no_place(plan: _Plan, point: Point) -> ConfigError:
    line = point.statement.lineno
    return ConfigError(
        f"{plan.path}: line {line} parses the arguments inside an expression that leaves no place "
        f"behind it: `{_first_line(plan.script, point.statement)}`. Nothing was changed.",
        fix="write it as a statement of its own, args = parser.parse_args(), and run this again",
    )


def _check(path: Path, content: bytes, *, original: bool) -> None:
    """Compile a version of the script, and see that a repaired one needs no further repair."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        what = "it does not compile" if original else "the repaired script would not compile"
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        text = f"{path}: {what} ({line}). Nothing was changed."
        fix = "mend that line" if original else "make the repair by hand"
        raise ConfigError(text, fix=fix) from error
    if not original and _plan(read_script(path, content), path).edits:
        raise ConfigError(
            f"{path}: a second run would patch the repaired script again, so its spelling is "
            "beyond this tool. Nothing was changed.",
            fix="make the repair by hand",
        )


def _replaced(path: Path, content: bytes) -> Path:
    """Write a script anew behind its backup, whose path this is: run.py.bak, run.py.bak2."""
    names = (f"{path.name}.bak{number if number > 1 else ''}" for number in itertools.count(1))
    backup = next(file for file in map(path.with_name, names) if not os.path.lexists(file))
    try:
        with path.open("r+b") as file:
            shutil.copy2(path, backup)
            file.write(content)
            file.truncate()
    except OSError as error:
        state = f"Compare it with {backup}." if os.path.lexists(backup) else "Nothing was changed."
        text = f"{path} cannot be written ({error.strerror or error}). {state}"
        fix = "check the permissions of the file and its folder, and the free space"
        raise ConfigError(text, fix=fix) from error
    return backup


def _diff(script: Script, text: str, name: str) -> str:
    """The change as a unified diff that `patch -p1` takes, line ends included."""
    mark = "\ufeff" if script.bom else ""
    old, new = (
        re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", mark + t) for t in (script.text, text)
    )
    shown = []
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        if line.endswith("\r"):  # line ends of old Macs: a diff has no form for them
            line = line[:-1] + "\n"
        shown.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(shown)
