"""Repair the training scripts that people have, so that `accelerate launch` can run them.

Only a script that is recognised is changed: it parses local_rank, initialises a process group,
wraps its model in DistributedDataParallel and samples by DistributedSampler, and following it rank
by rank finds nothing that would lose a result. Everything else is refused, with reasons and lines.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from nbhelpers.common.files import expanded, kind_of
from nbhelpers.errors import ConfigError
from nbhelpers.legacy.faults import find_faults, intervals
from nbhelpers.legacy.flow import Event, Flow, follow
from nbhelpers.legacy.ranks import (
    FIRST,
    VARIABLE,
    Judge,
    Option,
    condition_names,
    parse_statement,
    rank_names,
    rank_option,
    reading_line,
)
from nbhelpers.legacy.reasons import gone_imports, reasons_of, serves_itself
from nbhelpers.legacy.result import ALREADY, DONE, WOULD, ScriptPatch, hints_of, train_command
from nbhelpers.legacy.source import (
    LINE_END,
    Edit,
    Script,
    apply_edits,
    is_training,
    last_name,
    read_script,
)

MOST_REASONS = 6  # told of a script that is refused
WAIT_HOURS = 24  # for rank 0's evaluation, in which NCCL would else give up after 10 minutes


@dataclass(slots=True)
class _Plan:
    """The edits of a script, what they do in words, and what is to be said besides."""

    script: Script
    flow: Flow | None = None
    edits: list[Edit] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, line: int, words: str, *edits: Edit) -> None:
        """Add a repair."""
        self.edits += edits
        self.repairs.append(f"line {line}: {words}")


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
    plan = _plan(script, path)
    text = apply_edits(script.text, plan.edits)
    after = script.to_bytes(text)
    if plan.edits:
        _check(target, after)
    backup = _replaced(target, after) if write and plan.edits else None
    shown = _plan(read_script(target, after), path) if backup else plan
    notes = [f"{path} is a link: the file behind it is meant, {target}"] if target != path else []
    return ScriptPatch(
        path=path,
        target=target,
        status=DONE if backup else WOULD if plan.edits else ALREADY,
        repairs=tuple(plan.repairs),
        notes=(*plan.notes, *notes),
        diff=_diff(script, text, path.name) if plan.edits else "",
        backup=backup,
        faults=tuple(find_faults(shown.flow)) if shown.flow else (),
        hints=hints_of(script),
    )


def _plan(script: Script, path: Path) -> _Plan:
    """The whole repair as edits, or a refusal."""
    plan = _Plan(script, notes=gone_imports(script))
    if library := serves_itself(script):
        plan.repairs.append(library)
        return plan
    option = rank_option(script)
    names = rank_names(script, option.attribute if option else "local_rank")
    single = option.single if option else -1
    judge = Judge(names, condition_names(script, names), single)
    flow = plan.flow = follow(script, judge)
    if reasons := reasons_of(flow, option):
        raise _refusal(path, script, reasons, plan.notes)
    assert option is not None
    _read_rank(plan, option, path)
    for part, is_single in flow.to_open.items():
        words = f"opened for rank 0: `{_first_line(script, _test_of(script, part))}`"
        plan.add(part.lineno, words, _opened(script, judge, part, is_single))
    for argument in flow.handed:
        rank = _rank_in_sight(flow, argument, single)
        name = script.source(argument)
        text = f"{name}.module if {rank}" + f" else {name}"
        words = f"rank 0 evaluates the model inside the wrapper: `{text}`"
        plan.add(argument.lineno, words, Edit(*script.span(argument), text))
    for event in {each.node: each for each in flow.of("folder")}.values():
        call = event.node
        is_safe = any(each.arg == "exist_ok" for each in call.keywords)
        if event.state.is_all and not is_safe and script.source(call.func).startswith("os."):
            text = f"os.makedirs({script.source(call.args[0])}, exist_ok=True)"
            words = f"a folder that every process makes may be there: `{text}`"
            plan.add(call.lineno, words, Edit(*script.span(call), text))
    _wait_longer(plan, flow)
    for value, steps in intervals(script):
        text = f"max(1, {script.source(value)} // {steps})"
        words = f"the interval counts optimizer steps, as its counter does: `{text}`"
        plan.add(value.lineno, words, Edit(*script.span(value), text))
    return plan


def _refusal(path: Path, script: Script, reasons: list[str], notes: list[str]) -> ConfigError:
    hints = hints_of(script)
    instead = f"train with: {train_command(hints.model)}" if hints.is_clones else ""
    texts = list(dict.fromkeys(reasons))
    more = f"; and {len(texts) - MOST_REASONS} more" if len(texts) > MOST_REASONS else ""
    text = "; ".join(texts[:MOST_REASONS]) + more
    also = "".join(f" Also: {note}." for note in notes)
    return ConfigError(
        f"{path}: not patched, because {text}. Nothing was changed.{also}",
        fix=f"run it in one process (python {path.name}), or mend these lines"
        + f", or {instead}" * bool(instead),
    )


def _test_of(script: Script, part: ast.expr) -> ast.expr:
    """The condition, or the whole choice, that a comparison stands in."""
    node = part
    while isinstance(script.parents[node], ast.expr):
        node = script.parents[node]  # type: ignore[assignment]
    return node


def _first_line(script: Script, part: ast.expr | ast.stmt) -> str:
    first, *more = LINE_END.split(script.source(part))
    return f"{first.rstrip()} …" if more else first


def _rank_in_sight(flow: Flow, argument: ast.expr, single: object) -> str:
    """A condition, in the words of the code around, that holds under a launcher."""
    for node in flow.script.ancestors(argument) if single == -1 else ():
        for part in ast.walk(node.test) if isinstance(node, ast.If) else ():
            if isinstance(part, ast.Attribute | ast.Name) and last_name(part) == "local_rank":
                return f"{flow.script.source(part)} != -1"
    return f'hasattr({flow.script.source(argument)}, "module")'


def _read_rank(plan: _Plan, option: Option, path: Path) -> None:
    """Read LOCAL_RANK behind the statement that parses the option, unless the script does."""
    script = plan.script
    parsed = parse_statement(script, option)
    if parsed and (line := reading_line(script, parsed[0], option)):
        plan.repairs.append(f"line {line}: {VARIABLE} is read already")
        return
    start, end = script.span(parsed[0]) if parsed else (0, 0)
    rest = re.match(r"[ \t]*(?:#[^\r\n]*)?(?:(\r\n|\r|\n)|$)", script.text[end:])
    indent = _indent(script, start)
    if parsed is None or indent is None or rest is None:
        raise ConfigError(
            f"{path}: no statement parses --local_rank in a form that is known here, on a line of "
            "its own. Nothing was changed.",
            fix="write it as args = parser.parse_args(), and run this again",
        )
    statement, namespace = parsed
    held, ending = namespace or "args", []
    if not namespace:  # `return parse()` becomes an assignment, the repair, and the return
        plan.edits.append(Edit(start, start + len("return"), f"{held} ="))
        ending = [f"{indent}return {held}"]
    target = f"{held}.{option.attribute}"
    default = option.default
    is_default = f"{target} {'is' if default == 'None' else '=='} {default} and " if default else ""
    lines = [
        f'{indent}if {is_default}"{VARIABLE}" in os.environ:',
        f'{indent}{_unit(script, indent)}{target} = int(os.environ["{VARIABLE}"])',
        *ending,
    ]
    after, line = end + rest.end(), script.line_end(end)
    text = line.join(lines)
    words = f"{VARIABLE} is read behind `{_first_line(script, statement)}`"
    plan.add(statement.lineno, words, Edit(after, after, text + line if rest[1] else line + text))
    plan.edits += _import(script, "os", "import os")


def _wait_longer(plan: _Plan, flow: Flow) -> None:
    """Let the other ranks wait for an evaluation of rank 0 that is longer than the usual limit."""
    if not any(_is_waited_for(event) for event in flow.of("evaluation")):
        return
    script = flow.script
    for call in script.calls:
        if last_name(call) == "init_process_group" and all(
            k.arg != "timeout" for k in call.keywords
        ):
            last = max(
                [*call.args, *(k.value for k in call.keywords)], key=script.span, default=None
            )
            place = script.span(last)[1] if last else script.span(call)[1] - 1
            text = f"timeout=timedelta(hours={WAIT_HOURS})"
            words = (
                f"the others wait up to {WAIT_HOURS} h for rank 0 (NCCL's own limit: 10 minutes)"
            )
            plan.add(call.lineno, words, Edit(place, place, f", {text}" if last else text))
            plan.edits += _import(script, "timedelta", "from datetime import timedelta")


def _is_waited_for(event: Event) -> bool:
    is_inside = event.frame.is_in_training or is_training(event.frame.function)
    return is_inside and event.state.launched == {FIRST}


def _import(script: Script, name: str, line: str) -> list[Edit]:
    """A missing import, behind docstring and `__future__`."""
    body = script.tree.body
    for node in body:
        known = [each.asname or each.name.split(".")[0] for each in getattr(node, "names", ())]
        if type(node).__name__ == ("Import" if name == "os" else "ImportFrom") and name in known:
            return []
    count = int(ast.get_docstring(script.tree, clean=False) is not None)
    while isinstance(body[count], ast.ImportFrom) and body[count].module == "__future__":  # type: ignore[attr-defined]
        count += 1
    place = script.line_start(script.span(body[count])[0])
    return [Edit(place, place, line + script.line_end(place))]


def _indent(script: Script, start: int) -> str | None:
    """The white space in front of a statement; None where it does not begin its line."""
    text = script.text[script.line_start(start) : start]
    return None if text.strip() else text.rpartition("\f")[2]  # a form feed restarts the count


def _unit(script: Script, indent: str) -> str:
    """One step of indentation: a tab among tabs, else as the file has it first."""
    match = re.search(r":[^\S\r\n]*[\r\n]+([ \t]+)\S", script.text)
    return "\t" if "\t" in indent else match.group(1) if match else "    "


def _opened(script: Script, judge: Judge, node: ast.Compare, is_single: bool) -> Edit:
    """The comparison as one that holds for rank 0 too, or fails for it too."""
    is_left = judge.names.matches(node.left)
    rank = script.source(node.left if is_left else node.comparators[0])
    usual = repr(judge.single)
    start, end = script.span(node)
    blank = " " * (script.text[max(start - 1, 0) : start].isalnum())
    return Edit(start, end, f"{blank}{rank} {'in' if is_single else 'not in'} [{usual}, 0]")


def _check(path: Path, content: bytes) -> None:
    """See that a repaired script compiles, and needs no further repair."""
    if _plan(read_script(path, content), path).edits:
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
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    no_end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + no_end for line in lines)
