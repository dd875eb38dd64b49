"""Both repairs as edits, which take the indentation and the line ends of their neighbours.

LOCAL_RANK is read where the arguments have been parsed, on lines of its own, or behind a semicolon
where the statement shares its line. A condition is opened by its operator and its constant alone,
so comments and line breaks between them stay.
"""

from __future__ import annotations

import ast
import tokenize

from .args import Point
from .env import VARIABLE
from .guards import Guard, replacements
from .rank import Judge
from .source import Edit, Script

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
    test, held = _test(point, namespace, module)
    target, value = f"{namespace}.{point.option.attribute}", f'int({module}.environ["{VARIABLE}"])'
    if indent is None or not _is_last(script, end, line_end):
        text = f"; {target} = {value} if {test} else {held}"
        return Edit(end, end, text + (f"; {ending}" if ending else ""))
    line = script.line_end(line_end)
    lines = [f"{indent}if {test}:", f"{indent}{_unit(script, indent)}{target} = {value}"]
    lines += [indent + ending] if ending else []
    text = line.join(lines)
    return Edit(after, after, text + line if after > line_end else line + text)


def _test(point: Point, namespace: str, module: str) -> tuple[str, str]:
    """The condition (the launcher sets a rank, the option has its default), and the value held."""
    attribute, default = point.option.attribute, point.option.default
    held = f"{namespace}.{attribute}"
    if not point.is_sure:
        # `==` with None never holds; where the default is None, a missing one must not count.
        held = f'getattr({namespace}, "{attribute}", {0 if default == "None" else None})'
    is_set = f'"{VARIABLE}" in {module}.environ'
    if not default:  # what the launcher says is right
        return is_set, held
    return f"{held} {'is' if default == 'None' else '=='} {default} and {is_set}", held


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
            told = judge.aliases[part.id]
            assert isinstance(told, ast.Compare)
            side = told.left if judge.names.occurs(told.left) else told.comparators[0]
            word = "in" if is_single else "not in"
            edits.append(Edit(*script.span(part), f"({script.source(side)} {word} {BOTH})"))
    return edits


def _compare_edits(script: Script, judge: Judge, node: ast.Compare, is_single: bool) -> list[Edit]:
    left, right = script.span(node.left), script.span(node.comparators[0])
    found = [t for t in script.between(left[1], right[0]) if t.string in _OPERATORS]
    start, end = script.token_place(found[0].start), script.token_place(found[-1].end)
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
