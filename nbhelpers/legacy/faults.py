"""The guards that let one process alone save, and faults that the repairs do not mend."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from nbhelpers.legacy.ranks import Judge, RankNames, is_main_process, is_rank_test
from nbhelpers.legacy.source import (
    EVAL,
    SAVE,
    TEST,
    Script,
    base_name,
    calls,
    is_collective,
    is_evaluation,
    is_save,
    is_training,
    last_name,
    words,
)

# ------------------------------------------------------------------------------------------------
# The second repair: conditions that let only a single process evaluate and save.
#
# A condition is opened for rank 0 if it guards an evaluation or a save, by what it asks
# (`args.evaluate_during_training`), by what it calls (`torch.save`), or by the name that it fills.
# Conditions that choose a sampler, a device or DDP stay as they are, and so do those that would
# make rank 0 write the test predictions of its own share, or wait alone in a collective operation.


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
_OTHER_FORM = "in this form it is beyond this tool; see to rank 0 by hand"


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

    judge: Judge
    closed: list[Guard] = field(default_factory=list)
    opened: list[Guard] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    free_evaluations: list[int] = field(default_factory=list)  # lines: every process does it
    free_saves: list[int] = field(default_factory=list)


def find_guards(script: Script, names: RankNames) -> Guards:
    """Return the conditions of a script that concern the second repair."""
    judge = Judge(names, _aliases(script, names))
    guards = Guards(judge)
    closed: list[Guard] = []
    for guard in _guards(script, judge):
        is_shut = judge.is_closed_to_single if guard.is_closing else judge.is_single_only
        if not _is_for_saving(script, guard):
            if is_shut(guard.test) and not guard.is_closing:
                closed.append(replace(guard, body=()))  # perhaps it defines what another uses
        elif not is_shut(guard.test):
            if judge.lets_rank_0(guard.test):
                guards.opened.append(guard)
            elif judge.is_beyond(guard.test):
                guards.kept.append(Kept(guard.line, _BEYOND))
        elif reason := _reason_to_keep(script, guard, judge):
            guards.kept.append(Kept(guard.line, reason))
        else:
            guards.closed.append(guard)
    guards.closed += _providers(script, guards.closed, closed)
    _look_at_actions(script, guards)
    guards.kept = sorted(dict.fromkeys(guards.kept), key=lambda each: each.line)
    return guards


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


def _guards(script: Script, judge: Judge) -> Iterator[Guard]:
    """Every condition on the rank, with what hangs on it."""
    asks = judge.asks
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
            is_alias = isinstance(node, ast.Assign) and target in judge.aliases
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
    asked: set[str] = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Name | ast.Attribute):
            asked |= words(last_name(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            asked |= words(str(node.slice.value))
    return asked


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
    providers = []
    for guard in blocks:
        around = list(ast.walk(script.scope(guard.node)))
        elsewhere = {node.id for node in _stores(*around) if node not in inside}
        elsewhere |= {node.arg for node in around if isinstance(node, ast.arg)}
        mine = {node.id for node in _stores(*ast.walk(guard.node))} - elsewhere
        if mine & needed and not any(last_name(call) in _SET_UP for call in calls(guard.node)):
            providers.append(guard)
    return providers


def _look_at_actions(script: Script, guards: Guards) -> None:
    """Add what decides over the evaluations and saves besides the guards that are read.

    Conditions in forms that are not opened, such as `match` and `while`, are kept; actions in the
    training that no condition on a rank guards are noted as free.
    """
    judge, hidden = guards.judge, _other_names(script, guards.judge)
    known = {*judge.aliases, *hidden}
    for call in script.calls:
        is_saving = last_name(call) in ("save", "save_pretrained")
        if not is_saving and not is_evaluation(call):
            continue
        above = script.ancestors(call)
        is_free = is_training(*(node for node in above if isinstance(node, ast.FunctionDef)))
        for node, test in _tests_above(script, call):
            named = {last_name(each) for each in ast.walk(test)}
            is_read = isinstance(node, ast.If | ast.IfExp) or _is_read_boolean(script, node)
            if named & hidden or (not is_read and judge.names.occurs(test)):
                guards.kept.append(Kept(test.lineno, _OTHER_FORM))
            if judge.names.occurs(test) or named & known or any(map(_is_of_rank, ast.walk(test))):
                is_free = False
        if is_free:
            (guards.free_saves if is_saving else guards.free_evaluations).append(call.lineno)
    guards.free_saves = sorted(set(guards.free_saves))
    guards.free_evaluations = sorted(set(guards.free_evaluations))


def _is_of_rank(node: ast.AST) -> bool:
    """Whether a name tells processes apart, by whatever rank."""
    return "rank" in words(last_name(node)) or is_main_process(node)


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


def _other_names(script: Script, judge: Judge) -> set[str]:
    """What hides the rank: `r = args.local_rank`, a function that returns a condition on it."""
    names = judge.names
    hidden = set()
    for node in script.nodes:
        value = getattr(node, "value", None)
        is_asking = isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if names.matches(value) or (is_asking and names.occurs(value)):
                hidden.add(node.targets[0].id)
        elif isinstance(node, ast.Return) and is_asking and names.occurs(value):
            hidden.add(_scope_name(script, node))
    return hidden - {"", *names.names, *judge.aliases}


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


# ------------------------------------------------------------------------------------------------
# What the two repairs do not mend, found by the shape of the code, with its lines.
#
# Each fault is a pattern of the syntax tree. A pattern that does not occur is reported as "not
# seen": the code may be spelled in a way that is not known here, so nothing is said to be right.
#
# Source: the scripts of CodeXGLUE (Clone-detection-BigCloneBench), GraphCodeBERT and
# ISSTA22-CodeStudy.


Finder = Callable[[Script, Guards], Iterable[int]]
_FINDERS: list[tuple[str, str, Finder]] = []
_INTERVALS = {"save_steps", "eval_steps", "valid_steps", "checkpoint_steps"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that stays: a short name, what it does to a result, and the lines where it stands."""

    name: str
    harm: str
    lines: tuple[int, ...] = ()


def find_faults(script: Script, guards: Guards) -> list[Fault]:
    """Return every known fault; those that are not seen have no lines."""
    return [
        Fault(name, harm, tuple(sorted(set(finder(script, guards)))))
        for name, harm, finder in _FINDERS
    ]


def _fault(name: str, harm: str) -> Callable[[Finder], Finder]:
    """Note a function as the finder of a fault; reports keep the order of this file."""

    def noted(finder: Finder) -> Finder:
        _FINDERS.append((name, harm, finder))
        return finder

    return noted


def _functions(script: Script) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in script.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _lines(nodes: Iterable[ast.AST]) -> list[int]:
    return [node.lineno for node in nodes]  # type: ignore[attr-defined]


def _samplers(node: ast.AST) -> list[ast.Call]:
    """Samplers that give each process a share."""
    return [call for call in calls(node) if last_name(call) == "DistributedSampler"]


def _is_of_training_data(call: ast.Call) -> bool:
    return bool(call.args) and "train" in words(last_name(call.args[0]))


def _training_samplers(script: Script) -> list[ast.Call]:
    return [
        call
        for call in _samplers(script.tree)
        if _is_of_training_data(call) or is_training(script.scope(call))
    ]


def _evaluating(script: Script) -> Iterator[tuple[ast.AST, list[ast.Call]]]:
    """Functions that sample by rank and do not train, with these samplers."""
    for function in _functions(script):
        samplers = [call for call in _samplers(function) if not _is_of_training_data(call)]
        if samplers and not is_training(function):
            yield function, samplers


@_fault(
    "test predictions are sharded and out of order",
    "each process predicts a shuffled share and the result is written beside the file's own "
    "order: half the predictions on two GPUs, in the wrong lines",
)
def _sharded_predictions(script: Script, _: Guards) -> Iterator[int]:
    for function, samplers in _evaluating(script):
        writes = _lines(call for call in calls(function) if _is_written_open(call))
        if writes:
            walks = [call for call in calls(function) if last_name(call) in ("zip", "enumerate")]
            order = _lines(call for call in walks if isinstance(script.parents[call], ast.For))
            yield from _lines(samplers)
            yield from [line for line in order if line >= writes[0]] or writes[:1]


def _is_written_open(call: ast.Call) -> bool:
    """Whether a call opens a file to write: `open(path, "w")`."""
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    texts = [str(getattr(mode, "value", "")) for mode in modes]
    return last_name(call) == "open" and any(text[:1] in ("w", "a", "x") for text in texts)


@_fault(
    "scores come from one share of the data",
    "rank 0 scores only what its sampler gives it, and nothing is gathered",
)
def _sharded_scores(script: Script, _: Guards) -> Iterator[int]:
    for function, samplers in _evaluating(script):
        if not any(map(is_collective, calls(function))):
            yield from _lines(samplers)


@_fault(
    "results may be unbound",
    "the score is asked for although the branch that makes it may not have run",
)
def _unbound_results(script: Script, _: Guards) -> Iterator[int]:
    for function in _functions(script):
        nodes = list(ast.walk(function))
        for node in nodes:
            if not isinstance(node, ast.Assign) or not any(map(is_evaluation, calls(node.value))):
                continue
            block = next((n for n in script.ancestors(node) if isinstance(n, ast.If)), None)
            target = getattr(node.targets[0], "id", "")
            if block and [n.id for n in _stores(*nodes)].count(target) == 1:
                for use in nodes:
                    is_use = isinstance(use, ast.Name) and use.id == target
                    is_asked = is_use and isinstance(script.parents[use], ast.Subscript)
                    if is_asked and use.lineno > node.lineno and block not in script.ancestors(use):
                        yield use.lineno


@_fault("a best score of 0 saves nothing", "the first score must exceed 0 to be saved")
def _best_from_zero(script: Script, _: Guards) -> Iterator[int]:
    for function in filter(is_training, _functions(script)):
        asked = {
            last_name(part)
            for node in ast.walk(function)
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt)
            for part in node.comparators
            if "best" in words(last_name(part))
        }
        for node in ast.walk(function):
            is_zero = isinstance(node, ast.Assign) and getattr(node.value, "value", None) == 0
            if is_zero and asked.intersection(map(last_name, node.targets)):
                yield node.lineno


@_fault(
    "each evaluation draws other validation pairs",
    "a random part is drawn whenever the data set is made, so best scores are compared across "
    "different sets",
)
def _random_validation(script: Script, _: Guards) -> Iterator[int]:
    for call in script.calls:
        if base_name(call) == "random" and last_name(call) in ("sample", "choice"):
            tests = [node.test for node in script.ancestors(call) if isinstance(node, ast.If)]
            texts = [script.source(test) for test in tests]
            if not any("train" in text and "not in" not in text for text in texts):
                yield call.lineno


@_fault("the threshold on test is 0.5", "a threshold found on the validation set is not used")
def _fixed_threshold(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:
        if isinstance(node, ast.keyword) and "threshold" in words(node.arg or ""):
            yield from _lines([node.value] if _is_half(node.value) else [])
        elif isinstance(node, ast.Assign) and _is_half(node.value):
            if any("threshold" in words(last_name(target)) for target in node.targets):
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(map(_is_half, node.comparators)):
            yield node.lineno


def _is_half(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0.5


@_fault('any label but "0" counts as a clone', "a damaged line becomes a positive")
def _any_label(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:  # `if label == "0": label = 0 else: label = 1`, or an expression
        if isinstance(node, ast.If) and len(node.body) == 1 == len(node.orelse):
            values = [getattr(part, "value", None) for part in (node.body[0], node.orelse[0])]
        elif isinstance(node, ast.IfExp):
            values = [node.body, node.orelse]
        else:
            continue
        test = node.test
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
        is_text = any(getattr(side, "value", None) in ("0", "1") for side in sides)
        written = {value.value for value in values if isinstance(value, ast.Constant)}
        if is_text and written == {0, 1}:
            yield node.lineno


@_fault(
    "pairs with an unknown id are dropped in silence",
    "a wrong data.jsonl shrinks the set, down to nothing",
)
def _dropped_ids(script: Script, _: Guards) -> Iterator[int]:
    for node in script.nodes:
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Continue):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            if any(isinstance(p, ast.Compare) and isinstance(p.ops[0], ast.NotIn) for p in parts):
                yield node.lineno


@_fault(
    "nothing is saved with gradient accumulation",
    "the interval is a number of batches, the counter counts optimizer steps: with 4 micro-steps "
    "per update it is met after 4 epochs, and --do_test misses its file before",
)
def never_saved(script: Script, _: Guards | None = None) -> Iterator[int]:
    """Yield the lines of an interval in batches that is met by a counter of optimizer steps."""
    for function in _functions(script):
        nodes = list(ast.walk(function))
        intervals = {
            last_name(target): node.lineno
            for node in nodes
            if isinstance(node, ast.Assign) and _counts_batches(node.value)
            for target in node.targets
            if last_name(target) in _INTERVALS
        }
        inside = [n for block in _accumulation_tests(function) for n in ast.walk(block)]
        for node in nodes:
            if _modulo(node) in intervals:
                counter = last_name(node.left)
                sums = [n for n in inside if isinstance(n, ast.AugAssign)]
                lines = _lines(n for n in sums if last_name(n.target) == counter)
                yield from (intervals[_modulo(node)], node.lineno, *lines) if lines else ()


def _counts_batches(node: ast.expr) -> bool:
    return any(last_name(call) == "len" for call in calls(node))


def _modulo(node: ast.AST) -> str:
    """The name behind the percent sign in `global_step % args.save_steps`."""
    is_modulo = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    return last_name(node.right) if is_modulo else ""


def _accumulation_tests(tree: ast.AST) -> Iterator[ast.If]:
    """`if (step + 1) % args.gradient_accumulation_steps == 0:`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            names = {word for each in ast.walk(node.test) for word in words(_modulo(each))}
            if names & {"accumulation", "accumulate", "accum"}:
                yield node


@_fault(
    "the learning rate's schedule counts batches",
    "with accumulation the warm-up is that much longer and the rate never falls to its end",
)
def _schedule_in_batches(script: Script, _: Guards) -> Iterator[int]:
    for function in _functions(script):
        steps = [c for c in calls(*_accumulation_tests(function)) if last_name(c) == "step"]
        if not any("scheduler" in words(base_name(call)) for call in steps):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _counts_batches(node.value):
                names = words(last_name(node.targets[0]))
                is_steps = names & {"steps", "total"} and names & {"warmup", "max", "total"}
                divided = {word for n in ast.walk(node.value) for word in words(last_name(n))}
                if is_steps and "accumulation" not in divided:
                    yield node.lineno


@_fault(
    "the last partial group of micro-steps makes no step", "its gradients leak into the next epoch"
)
def _last_group(script: Script, _: Guards) -> Iterator[int]:
    for node in _accumulation_tests(script.tree):
        if not any(isinstance(part, ast.BoolOp) for part in ast.walk(node.test)):
            yield node.lineno


@_fault(
    "gradients are clipped before they are complete",
    "with accumulation each partial sum is clipped, not the whole",
)
def _partial_clipping(script: Script, _: Guards) -> Iterator[int]:
    blocks = set(_accumulation_tests(script.tree))
    for call in script.calls:
        is_clipping = last_name(call) in ("clip_grad_norm_", "clip_grad_value_")
        if blocks and is_clipping and not blocks & set(script.ancestors(call)):
            yield call.lineno


@_fault("no set_epoch", "every epoch gives each process the same pairs in the same order")
def _no_set_epoch(script: Script, _: Guards) -> list[int]:
    is_set = any(last_name(call) == "set_epoch" for call in script.calls)
    return [] if is_set else _lines(_training_samplers(script))


@_fault("one dropout seed on all ranks", "the processes draw the same masks")
def _same_seed(script: Script, _: Guards) -> Iterator[int]:
    for call in script.calls if _samplers(script.tree) else ():
        named = {word for node in ast.walk(call) for word in words(last_name(node))}
        if last_name(call) in ("set_seed", "seed_everything") and "rank" not in named:
            yield call.lineno


@_fault("a stopped run does not resume", "the state is looked for and never written")
def _no_resume(script: Script, _: Guards) -> list[int]:
    saves = [call for call in script.calls if last_name(call) == "save"]
    saved = {word for call in saves for n in ast.walk(call) for word in words(last_name(n))}
    places = [n for n in script.nodes if getattr(n, "value", None) == "checkpoint-last"]
    return [] if "optimizer" in saved else _lines(places)


@_fault("save_total_limit does nothing", "the option is declared and never read")
def _ignored_limit(script: Script, _: Guards) -> Iterator[int]:
    is_read = any(getattr(node, "attr", "") == "save_total_limit" for node in script.nodes)
    for call in script.calls:
        texts = [getattr(each, "value", None) for each in call.args]
        if last_name(call) == "add_argument" and "--save_total_limit" in texts and not is_read:
            yield call.lineno


@_fault(
    "every process saves",
    "without a condition on the rank the processes write the same file at the same time",
)
def _free_saves(_: Script, guards: Guards) -> list[int]:
    return guards.free_saves


@_fault(
    "each node's rank 0 writes",
    "local_rank is 0 once per node, so on several nodes they overwrite each other's files",
)
def _first_of_each_node(_: Script, guards: Guards) -> list[int]:
    return [guard.line for guard in (*guards.opened, *guards.closed)]


@_fault(
    "rank 0 evaluates alone, through DistributedDataParallel",
    "a forward pass of the wrapper broadcasts the model's buffers, which the others do not join: "
    "the run can hang or abort; hand evaluate() the model inside (model.module)",
)
def _evaluates_alone(script: Script, guards: Guards) -> list[int]:
    opened = [*guards.opened, *guards.closed]
    inside = [guard.body for guard in opened if is_training(script.scope(guard.node))]
    return _lines(call for body in inside for call in calls(*body) if is_evaluation(call))


@_fault(
    "the other processes wait for rank 0",
    "an evaluation longer than the process group's time limit (10 minutes for NCCL, unless set) "
    "ends the run",
)
def _waits_for_rank_0(script: Script, guards: Guards) -> list[int]:
    starts = [call for call in script.calls if last_name(call) == "init_process_group"]
    usual = [call for call in starts if not any(k.arg == "timeout" for k in call.keywords)]
    alone = _evaluates_alone(script, guards)
    return [*_lines(usual), *alone] if usual and alone else []


@_fault(
    "gradients are not shared",
    "no DistributedDataParallel is seen: each process trains a model of its own, and without a "
    "DistributedSampler on all the data",
)
def _no_wrapper(script: Script, _: Guards) -> list[int]:
    wrappers = {"DistributedDataParallel", "DDP", "Trainer", "Accelerator", "prepare"}
    wrappers |= {"FullyShardedDataParallel", "FSDP", "fully_shard", "initialize"}  # DeepSpeed's
    has_one = any(last_name(call) in wrappers for call in script.calls)
    steps = [call for call in script.calls if last_name(call) == "backward"]
    return [] if has_one else _lines(_training_samplers(script) or steps)
