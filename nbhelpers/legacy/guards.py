"""The second repair: conditions that let only a single process evaluate and save.

A condition is opened for rank 0 if it guards an evaluation or a save, by what it asks
(`args.evaluate_during_training`), by what it calls (`torch.save`), or by the name that it fills.
Conditions that choose a sampler, a device or DDP stay as they are, and so do those that would make
rank 0 write the test predictions of its own share, or wait alone in a collective operation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .rank import Judge, RankNames, is_main_process, is_rank_test
from .source import Script
from .syntax import (
    EVAL,
    SAVE,
    TEST,
    calls,
    is_collective,
    is_evaluation,
    is_save,
    is_training,
    last_name,
    words,
)

_SET_UP = {
    "DistributedSampler",
    "RandomSampler",
    "DistributedDataParallel",
    "DDP",
    "DataParallel",
    "init_process_group",
    "set_device",
    "device_count",
}
_HARMLESS = {"print", "info", "warning", "debug", "log", "error", "exit"}
_OTHER_DUTY = {"load", "cache", "setup", "init", "loader", "loaders", "sampler", "dataset"}
_MAIN = {"main", "master", "first"}
_BEYOND = "its logic is beyond this tool; let rank 0 pass by hand"


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the rank, what it lets run, and what its other branch runs."""

    node: ast.AST
    test: ast.expr
    body: tuple[ast.AST, ...]
    other: tuple[ast.AST, ...] = ()
    target: str = ""  # the name, argument or function that takes the condition's value
    is_closing: bool = False  # it keeps other processes out, by `continue` or `return`

    @property
    def line(self) -> int:
        """The line of the condition."""
        return self.test.lineno


@dataclass(frozen=True, slots=True)
class Kept:
    """A condition that is left as it is, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class Guards:
    """What the second repair finds: to be opened, open already, left alone."""

    closed: list[Guard] = field(default_factory=list)
    opened: list[Guard] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    free_evaluations: list[int] = field(default_factory=list)  # lines: every process does it
    free_saves: list[int] = field(default_factory=list)
    aliases: dict[str, ast.expr] = field(default_factory=dict)


def find_guards(script: Script, names: RankNames) -> Guards:
    """Return the conditions of a script that concern the second repair."""
    found = Guards(aliases=_aliases(script, names))
    judge = Judge(names, found.aliases)
    closed: list[Guard] = []
    for guard in _guards(script, names, found.aliases):
        is_shut = judge.is_closed_to_single if guard.is_closing else judge.is_single_only
        if not _is_for_saving(script, guard):
            if is_shut(guard.test) and not guard.is_closing:
                closed.append(replace(guard, body=()))  # perhaps it defines what another uses
        elif not is_shut(guard.test):
            if judge.lets_rank_0(guard.test):
                found.opened.append(guard)
            elif judge.is_beyond(guard.test):
                found.kept.append(Kept(guard.line, _BEYOND))
        elif reason := _reason_to_keep(script, guard, judge):
            found.kept.append(Kept(guard.line, reason))
        else:
            found.closed.append(guard)
    found.closed += _providers(script, found.closed, closed)
    found.free_evaluations, found.free_saves = _free_actions(script, names, found.aliases)
    found.kept = sorted(
        dict.fromkeys([*found.kept, *_other_forms(script, names, found.aliases)]),
        key=lambda each: each.line,
    )
    return found


def _aliases(script: Script, names: RankNames) -> dict[str, ast.expr]:
    """Names that are assigned once, a bare comparison of the rank: `single = rank == -1`."""
    stored = [node.id for node in _stores(*script.nodes)]
    return {
        node.targets[0].id: node.value
        for node in script.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Compare)
        and names.occurs(node.value)
        and stored.count(node.targets[0].id) == 1
    }


def _stores(*nodes: ast.AST) -> Iterator[ast.Name]:
    """Those of some nodes that give a name a value."""
    return (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _guards(script: Script, names: RankNames, aliases: dict[str, ast.expr]) -> Iterator[Guard]:
    """Every condition on the rank, with what hangs on it."""

    def asks(test: ast.AST) -> bool:
        return names.occurs(test) or any(last_name(n) in aliases for n in ast.walk(test))

    for node in script.nodes:
        if isinstance(node, ast.If) and asks(node.test):
            yield Guard(node, node.test, tuple(node.body), tuple(node.orelse))
            yield from _closing(script, node)
        elif isinstance(node, ast.IfExp) and asks(node.test):
            yield Guard(node, node.test, (node.body,), (node.orelse,))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.BoolOp):
            if isinstance(node.value.op, ast.And) and asks(node.value):
                yield Guard(node, node.value, (node.value,))
        elif isinstance(node, ast.Assign | ast.keyword | ast.Return):
            is_condition = isinstance(node.value, ast.BoolOp | ast.Compare | ast.UnaryOp)
            target = _target(script, node)
            is_alias = isinstance(node, ast.Assign) and target in aliases
            if is_condition and target and not is_alias and asks(node.value):
                yield Guard(node, node.value, (), target=target)


def _target(script: Script, node: ast.Assign | ast.keyword | ast.Return) -> str:
    """What takes a value: a name, an argument, or the function that returns it."""
    if isinstance(node, ast.Assign):
        return last_name(node.targets[0])
    return (node.arg if isinstance(node, ast.keyword) else _scope_name(script, node)) or ""


def _scope_name(script: Script, node: ast.AST) -> str:
    return getattr(script.scope(node), "name", "")


def _closing(script: Script, node: ast.If) -> Iterator[Guard]:
    """`if rank != -1: continue` guards what follows it; `…: pass` guards its `else`."""
    rest = list(node.orelse)
    if isinstance(node.body[-1], ast.Continue | ast.Return | ast.Break):
        blocks = [block for _, block in ast.iter_fields(script.parents[node])]
        around = next(block for block in blocks if isinstance(block, list) and node in block)
        rest += around[around.index(node) + 1 :]
    elif not rest:
        return
    yield Guard(node, node.test, tuple(rest), tuple(node.body), is_closing=True)


def _asked(test: ast.AST) -> set[str]:
    """The words of all names and keys that a condition asks."""
    found: set[str] = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Name | ast.Attribute):
            found |= words(last_name(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found |= words(str(node.slice.value))
    return found


def _is_for_saving(script: Script, guard: Guard) -> bool:
    """Whether a condition guards an evaluation or a save, and not the set-up of the processes."""
    if any(last_name(call) in _SET_UP for call in calls(*guard.body, *guard.other)):
        return False
    asked, target = _asked(guard.test), words(guard.target)
    if guard.target:
        is_asked = asked & (EVAL | SAVE) and not target & _OTHER_DUTY
        return bool(target & (EVAL | SAVE | _MAIN) or is_asked)
    scope = words(_scope_name(script, guard.node))
    if scope & _OTHER_DUTY or (guard.is_closing and not guard.body):
        return False
    more = scope & (EVAL | SAVE) if guard.is_closing else asked & (EVAL | SAVE | TEST)
    return bool(more) or any(
        is_evaluation(call) or is_save(call) or last_name(call) in TEST
        for call in calls(*guard.body)
    )


def _reason_to_keep(script: Script, guard: Guard, judge: Judge) -> str:
    """Why a condition must not be opened; empty if it may."""
    if _is_test(script, guard):
        return "it guards the test: rank 0 alone would write the predictions of its own share"
    missed = list(calls(*guard.other))
    others = [call for call in missed if is_evaluation(call) or is_save(call)]
    if others and not guard.is_closing:
        return f"its other branch does the work in distributed runs (line {others[0].lineno})"
    together = next(filter(is_collective, missed), None)
    if together:
        return f"rank 0 would miss {last_name(together)}() in line {together.lineno}"
    extra = [call for call in missed if last_name(call) not in _HARMLESS]
    if guard.is_closing and extra:
        return f"rank 0 would miss what its first branch does (line {extra[0].lineno})"
    if guard.is_closing and is_training(*guard.body):
        return "the training itself hangs on it"
    waits = _collective(script, guard)
    if waits:
        return f"all processes have to take part in {last_name(waits)}() in line {waits.lineno}"
    if any(isinstance(each, ast.JoinedStr) for each in script.ancestors(guard.test)):
        return "it stands inside an f-string; let rank 0 pass by hand"
    return "" if replacements(guard, judge) else _BEYOND


def _is_test(script: Script, guard: Guard) -> bool:
    """Whether a condition guards the test, by its flag, its call or its function."""
    asked, called = _asked(guard.test), list(calls(*guard.body))
    if asked & EVAL:
        return False
    is_called = any(last_name(c) in TEST for c in called) and not any(map(is_evaluation, called))
    is_inside = words(_scope_name(script, guard.node)) & TEST
    is_inside = is_inside and not is_training(script.scope(guard.node))
    return bool(asked & TEST or is_called or is_inside)


def _collective(script: Script, guard: Guard) -> ast.Call | None:
    """An operation that all processes must enter, in a body or in a function that it calls."""
    functions = {node.name: node for node in script.nodes if isinstance(node, ast.FunctionDef)}
    names = [last_name(call) for call in calls(*guard.body)]
    called = [functions[name] for name in names if name in functions]
    for call in calls(*guard.body, *called):
        if is_collective(call) and not _is_chosen(script, call, {guard.node, *called}):
            return call
    return None


def _is_chosen(script: Script, call: ast.Call, limits: set[ast.AST]) -> bool:
    """Whether a collective stands under a condition on the rank or on the kind of pass."""
    for node in script.ancestors(call):
        if node in limits:
            return False
        asked = _asked(node.test) if isinstance(node, ast.If) else set()
        if asked & ({"rank", "world", "distributed", "initialized"} | EVAL):
            return True
    return False


def _providers(script: Script, opened: list[Guard], closed: list[Guard]) -> list[Guard]:
    """Closed conditions that alone define a name which an opened one uses: they open too."""
    needed = {
        node.id
        for guard in opened
        for part in (guard.test, *guard.body)
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    blocks = [guard for guard in closed if isinstance(guard.node, ast.If) and not guard.node.orelse]
    inside = {node for each in blocks for node in ast.walk(each.node)}
    found = []
    for guard in blocks:
        around = list(ast.walk(script.scope(guard.node)))
        elsewhere = {node.id for node in _stores(*around) if node not in inside}
        elsewhere |= {node.arg for node in around if isinstance(node, ast.arg)}
        mine = {node.id for node in _stores(*ast.walk(guard.node))} - elsewhere
        if mine & needed and not any(last_name(call) in _SET_UP for call in calls(guard.node)):
            found.append(guard)
    return found


def _free_actions(
    script: Script, names: RankNames, aliases: dict[str, ast.expr]
) -> tuple[list[int], list[int]]:
    """The lines of evaluations and of saves in training that no condition on a rank guards."""
    evaluations, saves, hidden = set(), set(), _other_names(script, names, aliases)
    for call in script.calls:
        is_saving = last_name(call) in ("save", "save_pretrained")
        if is_saving or is_evaluation(call):
            tests = [test for _, test in _tests_above(script, call)]
            is_free = not any(_asks_rank(test, names, aliases, hidden) for test in tests)
            above = script.ancestors(call)
            functions = [node for node in above if isinstance(node, ast.FunctionDef)]
            if is_free and is_training(*functions):
                (saves if is_saving else evaluations).add(call.lineno)
    return sorted(evaluations), sorted(saves)


def _tests_above(script: Script, call: ast.Call) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What decides whether a call runs, with the node that asks it, from the inside out."""
    inner: ast.AST = call
    for node in script.ancestors(call):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, node.test
        elif isinstance(node, ast.Match):
            yield node, node.subject
        elif isinstance(node, ast.BoolOp):
            before = node.values[: node.values.index(inner)]  # type: ignore[arg-type]
            yield from ((node, value) for value in before)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            yield from ((node, test) for each in node.generators for test in each.ifs)
        inner = node


def _other_forms(script: Script, names: RankNames, aliases: dict[str, ast.expr]) -> Iterator[Kept]:
    """Conditions in forms that are not opened, such as `match` and `while`, over an evaluation."""
    hidden = _other_names(script, names, aliases)
    for call in script.calls:
        if not is_evaluation(call) and last_name(call) not in ("save", "save_pretrained"):
            continue
        for node, test in _tests_above(script, call):
            is_read = isinstance(node, ast.If | ast.IfExp) or _is_read_boolean(script, node)
            is_hidden = any(last_name(each) in hidden for each in ast.walk(test))
            if is_hidden or (not is_read and names.occurs(test)):
                yield Kept(
                    test.lineno, "in this form it is beyond this tool; see to rank 0 by hand"
                )


def _is_read_boolean(script: Script, node: ast.AST) -> bool:
    """Whether `… and …` stands where `_guards` looks: a statement, a value, part of a test."""
    if not isinstance(node, ast.BoolOp):
        return False
    above = script.parents[node]
    while isinstance(above, ast.BoolOp | ast.UnaryOp):
        node, above = above, script.parents[above]
    is_or = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
    is_test = isinstance(above, ast.If | ast.IfExp)
    return is_test or (
        isinstance(above, ast.Expr | ast.Assign | ast.keyword | ast.Return) and not is_or
    )


def _other_names(script: Script, names: RankNames, aliases: dict[str, ast.expr]) -> set[str]:
    """What hides the rank: `r = args.local_rank`, a function that returns a condition on it."""
    found = set()
    for node in script.nodes:
        value = getattr(node, "value", None)
        is_asking = isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if names.matches(value) or (is_asking and names.occurs(value)):
                found.add(node.targets[0].id)
        elif isinstance(node, ast.Return) and is_asking and names.occurs(value):
            found.add(_scope_name(script, node))
    return found - {"", *names.names, *aliases}


def _asks_rank(
    test: ast.expr, names: RankNames, aliases: dict[str, ast.expr], hidden: set[str]
) -> bool:
    """Whether a condition tells processes apart, by whatever rank."""
    return names.occurs(test) or any(
        last_name(node) in aliases
        or last_name(node) in hidden
        or "rank" in words(last_name(node))
        or is_main_process(node)
        for node in ast.walk(test)
    )


def replacements(guard: Guard, judge: Judge) -> list[tuple[ast.expr, bool]]:
    """Return the parts of a condition to open, each with whether it says "single" (or "not").

    Empty if opening them would not make rank 0 do exactly what a single process does, or would
    change anything for the other ranks.
    """
    parts: list[tuple[ast.expr, bool]] = []
    quoted = {
        each for n in ast.walk(guard.test) if isinstance(n, ast.JoinedStr) for each in ast.walk(n)
    }
    for node in ast.walk(guard.test):
        if node in quoted:  # shown, not asked
            continue
        is_alias = isinstance(node, ast.Name) and node.id in judge.aliases
        if isinstance(node, ast.expr) and (is_alias or is_rank_test(judge.names, node)):
            rows = judge.table(node)
            if rows in ([(True, False, False)], [(False, True, True)]):
                parts.append((node, rows[0][0]))
    before = judge.table(guard.test)
    after = Judge(judge.names, judge.aliases, frozenset(n for n, _ in parts)).table(guard.test)
    pairs = zip(before, after, strict=True)
    is_right = all(new == (old[0], old[0], old[2]) for old, new in pairs)
    return parts if before and is_right else []
