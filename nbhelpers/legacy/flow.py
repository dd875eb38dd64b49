"""Which processes run which line: a script is followed from its first statement, rank by rank.

Calls of the script's own functions are followed with what the caller hands them, so a function that
rank 0 enters alone is judged as such. What cannot be followed is a reason to refuse, never a guess.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nbhelpers.legacy.ranks import FIRST, SECOND, SINGLE, Judge
from nbhelpers.legacy.source import (
    EVAL,
    LOGGING,
    TEST,
    Script,
    base_name,
    calls,
    is_evaluation,
    is_save,
    is_training,
    is_written_open,
    last_name,
    words,
)

DISTRIBUTED = {FIRST, SECOND}
WRAPPERS = {"DistributedDataParallel", "DDP"}
_COLLECTIVES = re.compile(
    "barrier|all_gather(_object|_into_tensor)?|all_reduce|reduce_scatter|gather_object|"
    "broadcast_object_list"
)
_METHODS = {"gather", "broadcast", "reduce", "scatter"}  # tensors have some of them too
_WRITES = re.compile(
    "save(_pretrained|_to_disk|z|z_compressed|txt|fig)?|to_(csv|json|jsonl|pickle|excel|parquet)|"
    "tofile|write_(text|bytes)|rmtree|unlink"
)
_OF_MODULES = {"os.remove", "os.replace", "os.rename", "shutil.move", "joblib.dump"}
_FOLDERS = {"makedirs", "mkdir"}
_ASKING = {"hasattr", "isinstance", "getattr", "id", "type", "len", "print", "repr", "deepcopy"}
_LEAVING = {"exit", "_exit"}
_PROCESSES = {"is_initialized", "world_size", "get_world_size"}
_OWN_NAMES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_write(call: ast.Call) -> bool:
    """Whether a call writes, moves or removes a file by its name."""
    name, base = last_name(call), base_name(call)
    return bool(_WRITES.fullmatch(name)) or f"{base}.{name}" in _OF_MODULES


@dataclass(frozen=True, slots=True)
class State:
    """The processes that may run a line, and whether ranks 0 and 1 are there together."""

    who: frozenset[int] = frozenset({SINGLE, FIRST, SECOND})
    is_together: bool = True

    @property
    def launched(self) -> frozenset[int]:
        """Those of them that a launcher started."""
        return self.who & DISTRIBUTED

    @property
    def is_all(self) -> bool:
        """Whether every launched process comes here, at the same time."""
        return self.is_together and len(self.launched) == 2

    def with_(self, other: State) -> State:
        """The state behind two branches."""
        who = self.who | other.who
        return State(who, self.is_together and other.is_together)


@dataclass(slots=True)
class Frame:
    """One call of a function: its state, what it was handed, and what happens to its names."""

    function: ast.AST
    state: State
    constants: Mapping[str, Any] = field(default_factory=dict)
    wrapped: set[str] = field(default_factory=set)  # names of the model inside the wrapper
    inner: set[str] = field(default_factory=set)  # names of the model that was taken out of it
    is_in_training: bool = False
    names: frozenset[str] = frozenset()  # its own, which hide those of the module
    path: tuple[str, ...] = ()
    stores: dict[str, list[tuple[int, State]]] = field(default_factory=lambda: defaultdict(list))
    loads: list[tuple[str, int, State]] = field(default_factory=list)
    collectives: list[Event] = field(default_factory=list)
    returns: set[int] = field(default_factory=set)  # places in a returned tuple, 0 for one value


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Something that only some processes may do: what, where, and who does it."""

    kind: str
    node: ast.expr
    state: State
    frame: Frame
    path: tuple[str, ...] = ()
    name: str = ""

    @property
    def line(self) -> int:
        """Its line."""
        return self.node.lineno


@dataclass(slots=True)
class Flow:
    """A script that has been followed: events, reasons that its flow gives, and what to open."""

    script: Script
    judge: Judge
    events: list[Event] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    handed: dict[ast.expr, int] = field(default_factory=dict)  # wrapped arguments of lone calls
    to_open: dict[ast.Compare, bool] = field(default_factory=dict)
    differing: set[tuple[ast.AST, str]] = field(default_factory=set)  # names, by their function
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    frames: dict[object, Frame] = field(default_factory=dict)
    results: dict[ast.expr, set[int]] = field(default_factory=dict)  # wrapped models, by call
    shared: set[str] = field(default_factory=set)  # wrapped models that every function sees

    def of(self, kind: str) -> Iterator[Event]:
        """Yield the events of a kind."""
        return (event for event in self.events if event.kind == kind)


def follow(script: Script, judge: Judge) -> Flow:
    """Follow a script; conditions that must let rank 0 pass are opened until none is left."""
    opened: dict[ast.Compare, bool] = {}
    differing: set[tuple[ast.AST, str]] = set()
    while True:
        flow = Flow(script, replace(judge, opened=frozenset(opened)), differing={*differing})
        for node in script.nodes:
            if isinstance(node, ast.FunctionDef):
                flow.functions.setdefault(node.name, node)
        walker = _Walker(flow, Frame(script.tree, State()))
        walker.block(script.tree.body, State())
        _close(flow, walker.frame)
        _follow_uncalled(walker)
        if not flow.to_open and flow.differing == differing:
            flow.to_open = opened
            _unfollowed(flow)
            return flow
        opened |= flow.to_open
        differing |= flow.differing


def _follow_uncalled(walker: _Walker) -> None:
    """In a file of functions, whose training nobody here calls, every process calls them."""
    flow = walker.flow
    used = {last_name(call) for call in flow.script.calls}
    for name, function in flow.functions.items():
        if name not in used and not any(flow.of("backward")):
            walker.enter(
                ast.Call(ast.Name(name), [], [], lineno=function.lineno), function, State()
            )


def parameters(function: ast.AST) -> list[str]:
    """Return the names of a function's parameters that are filled by place."""
    arguments = getattr(function, "args", None)
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args)] if arguments else []


@dataclass(slots=True)
class _Walker:
    flow: Flow
    frame: Frame

    def block(self, body: Iterable[ast.stmt], state: State) -> State:
        """Follow statements; return who comes out behind them."""
        for statement in body:
            if not state.who:
                break
            state = self.statement(statement, state)
        return state

    def statement(self, node: ast.stmt, state: State) -> State:
        if isinstance(node, ast.If):
            return self.branch(node, state)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.frame.stores[node.name].append((node.lineno, state))
            return state
        self.expressions(node, state)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            self.assign(node, state)
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            self.frame.returns |= {n for n, part in enumerate(parts) if self.is_wrapped(part)}
        is_exit = isinstance(node, ast.Expr) and last_name(node.value) in _LEAVING
        if is_exit or isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
            loops = [
                n for n in self.flow.script.ancestors(node) if isinstance(n, ast.For | ast.While)
            ]
            is_lonely = state.launched and not state.is_all and not isinstance(node, ast.Raise)
            if is_lonely and is_training(*loops):
                self.flow.reasons.append(
                    (node.lineno, "one rank may leave the training loop alone")
                )
            return State(frozenset(), state.is_together)
        if isinstance(node, ast.With):
            return self.block(node.body, state)
        path = self.frame.path
        if isinstance(node, ast.For | ast.While):
            self.frame.path = (*path, f"loop {node.lineno}")
        inside = self.split(node.test, state)[0] if isinstance(node, ast.While) else state
        for handler in getattr(node, "handlers", []):
            self.frame.stores[handler.name].append((handler.lineno, state))
            self.block(handler.body, state)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(node, name, []), inside)
        self.frame.path = path
        return state

    def branch(self, node: ast.If, state: State) -> State:
        self.expression(node.test, state)
        yes, no = self.split(node.test, state)
        self.consider(node, node.test, node.body, node.orelse, state)
        path, key = self.frame.path, self.key(node.test)
        self.frame.path = (*path, *key)
        after = self.block(node.body, yes)
        self.frame.path = (*path, *(f"not {each}" for each in key)) if node.orelse else path
        other = self.block(node.orelse, no)
        self.frame.path = path
        joined = after.with_(other)
        return state if joined.who == state.who else joined

    def split(self, test: ast.expr, state: State) -> tuple[State, State]:
        """Who finds a condition true, and who false."""
        judge = replace(self.flow.judge, constants=self.frame.constants)
        named = {last_name(each) for each in ast.walk(test) if isinstance(each, ast.Name)}
        differs = any((self.frame.function, name) in self.flow.differing for name in named)
        asked = {last_name(each) for each in ast.walk(test)}
        is_free = not judge.asks(test) and not named & set(self.frame.constants)
        if is_free and not differs and not asked & _PROCESSES:
            return state, state
        rows = judge.table(test)
        if differs or judge.is_hidden:
            self.event("unread", test, state)
        places = {SINGLE: 0, FIRST: 1, SECOND: 2}
        is_apart = len(state.launched) == 2 and any(row[1] != row[2] for row in rows)
        is_together = state.is_together and not (differs or judge.is_hidden or is_apart)
        sides = []
        for value in (True, False):
            who = {rank for rank in state.who if any(row[places[rank]] is value for row in rows)}
            sides.append(State(frozenset(who) if rows else state.who, is_together))
        return sides[0], sides[1]

    def key(self, test: ast.expr) -> list[str]:
        """What a condition asks besides the rank: barriers with the same key belong together."""
        judge = replace(self.flow.judge, constants=self.frame.constants)
        judge.table(test)
        return sorted(judge.unknowns)

    def consider(
        self, node: ast.AST, test: ast.expr, body: Iterable[ast.AST], other: list[Any], state: State
    ) -> None:
        """Open a condition that keeps rank 0 from evaluating, saving, or reading all the data."""
        judge = replace(self.flow.judge, constants=self.frame.constants)
        if FIRST not in state.who or not judge.asks(test):
            return
        inside, missed = list(calls(*body)), list(calls(*other))
        sharded = [call for call in (*inside, *missed) if last_name(call) == "DistributedSampler"]
        is_work = any(
            is_evaluation(c) or is_save(c) or last_name(c) in TEST for c in inside
        ) and all(last_name(call) in LOGGING for call in missed)
        is_alone = bool(sharded) and SECOND not in state.who
        if (is_work and not sharded) or is_alone:
            self.flow.to_open |= judge.openings(test)

    def expressions(self, node: ast.AST, state: State) -> None:
        """Follow the expressions of a statement, its blocks apart."""
        for name, value in ast.iter_fields(node):
            if name not in ("body", "orelse", "finalbody", "handlers", "decorator_list"):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self.expression(each, state)

    def expression(self, node: ast.AST, state: State) -> None:
        if isinstance(node, ast.IfExp):
            self.expression(node.test, state)
            yes, no = self.split(node.test, state)
            self.consider(node, node.test, [node.body], [node.orelse], state)
            for part, side in ((node.body, yes), (node.orelse, no)):
                if side.who:
                    self.expression(part, side)
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                self.expression(value, state)
                yes, no = self.split(value, state)
                state = yes if isinstance(node.op, ast.And) else no
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.frame.loads.append((node.id, node.lineno, state))
            else:
                self.frame.stores[node.id].append((node.lineno, state))
                if state.launched and not state.is_all and self.frame.state.is_all:
                    self.flow.differing.add((self.frame.function, node.id))
        elif isinstance(node, ast.Attribute) and last_name(node.value) in self.frame.inner:
            guards = (n for n in self.flow.script.ancestors(node) if isinstance(n, ast.IfExp))
            if node.attr == "module" and not any(guards):
                text = f"{ast.unparse(node)} is asked of the model that rank 0 evaluates"
                self.flow.reasons.append((node.lineno, text))
        elif isinstance(node, ast.alias):
            name = node.asname or node.name.split(".")[0]
            self.frame.stores[name].append((node.lineno, state))
        elif isinstance(node, _OWN_NAMES):
            for call in calls(node):  # their own names are none of the function's
                self.call(call, state)
        else:
            for child in ast.iter_child_nodes(node):
                self.expression(child, state)
            if isinstance(node, ast.Call):
                self.call(node, state)

    def event(self, kind: str, node: ast.expr, state: State, name: str = "") -> None:
        event = Event(kind, node, state, self.frame, self.frame.path, name or last_name(node))
        self.flow.events.append(event)
        if kind == "collective":
            self.frame.collectives.append(event)

    def is_wrapped(self, node: ast.AST) -> bool:
        """Whether an expression is the model inside the wrapper."""
        if isinstance(node, ast.IfExp):
            parts = (node.body, node.orelse)
            is_unwrapping = any(last_name(part) == "module" for part in parts)
            return not is_unwrapping and any(map(self.is_wrapped, parts))
        if isinstance(node, ast.Name | ast.Attribute):
            text = ast.unparse(node)
            is_shared = text in self.flow.shared and text not in self.frame.names
            return text in self.frame.wrapped or is_shared
        if isinstance(node, ast.Call):
            if last_name(node) in WRAPPERS:
                return True
            if last_name(node) in ("DataParallel", "compile", "to", "cuda"):
                return any(
                    map(self.is_wrapped, [*node.args[:1], getattr(node.func, "value", node.func)])
                )
        return False

    def assign(self, node: ast.Assign | ast.AnnAssign, state: State) -> None:
        """Note which names hold the wrapped model."""
        assert node.value is not None
        places = self.returned(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for number, part in enumerate(parts):
                value = values[number] if len(values) == len(parts) else None
                name = ast.unparse(part)
                is_single = not state.launched
                if number in places or (value is not None and self.is_wrapped(value)):
                    self.frame.wrapped.add(name)
                    if "." in name or self.frame.function is self.flow.script.tree:
                        self.flow.shared.add(name)
                elif value is not None and name in self.frame.wrapped and not is_single:
                    self.frame.wrapped.discard(name)

    def returned(self, value: ast.expr) -> set[int]:
        """The places of a call's result that hold the wrapped model."""
        return self.flow.results.get(value, set())

    def call(self, node: ast.Call, state: State) -> None:
        """Note what a call does, or follow it into the script's own function."""
        name, base = last_name(node), base_name(node)
        function = self.target(node)
        is_group = name in _METHODS and base in ("dist", "distributed")
        if function is not None:
            self.enter(node, function, state)
            return
        if _COLLECTIVES.fullmatch(name) or is_group or name == "init_process_group":
            self.event("collective", node, state)
        elif name == "backward":
            self.event("backward", node, state)
        elif name in WRAPPERS:
            self.event("wrapper", node, state)
        elif name == "DistributedSampler":
            self.event("sampler", node, state)
        elif is_evaluation(node) and not base:
            self.event("evaluation", node, state)
        elif name in _FOLDERS:
            self.event("folder", node, state)
        elif _is_write(node) or is_written_open(node) or (is_save(node) and not base):
            self.event("write", node, state)
        if self.is_wrapped(node.func):
            self.event("forward", node, state, ast.unparse(node.func))
        elif name not in _ASKING | WRAPPERS | LOGGING | {"DataParallel", "compile"}:
            for argument in [*node.args, *(each.value for each in node.keywords)]:
                if self.is_wrapped(argument):
                    self.event("foreign", node, state)

    def target(self, node: ast.Call) -> ast.FunctionDef | None:
        """The function of this script that a call enters: by its name, its class, or `self`."""
        name = last_name(node)
        if isinstance(node.func, ast.Name):
            function = self.flow.functions.get(name)
            if function is not None and not isinstance(
                self.flow.script.parents[function], ast.ClassDef
            ):
                return function
            for each in self.flow.script.tree.body:
                if isinstance(each, ast.ClassDef) and each.name == name:
                    inside = (n for n in each.body if isinstance(n, ast.FunctionDef))
                    return next((n for n in inside if n.name == "__init__"), None)
        return None

    def enter(self, node: ast.Call, function: ast.FunctionDef, state: State) -> None:
        given = self.arguments(node, function)
        stored = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        constants = {
            name: value
            for name, value in self.constants(function, given).items()
            if name not in stored
        }
        wrapped = {name for name, value in given.items() if self.is_wrapped(value)}
        inner = {name for name, each in given.items() if last_name(each) in self.frame.inner}
        if state.launched and not state.is_all:
            for name in {each for each in wrapped if self.is_called(function, each)}:
                self.flow.handed[given[name]] = node.lineno
                wrapped, inner = wrapped - {name}, inner | {name}
            if is_training(function):
                text = f"{function.name}() trains, and not every process calls it"
                self.flow.reasons.append((node.lineno, text))
        is_module = self.frame.function is self.flow.script.tree
        trains = self.frame.is_in_training or is_training(self.frame.function)
        frame = Frame(function, state, constants, wrapped, inner, trains and not is_module)
        frame.names = frozenset({*parameters(function), *stored})
        known = frozenset(wrapped), frozenset(inner), frozenset(constants.items())
        key = (function, state, known, frame.is_in_training)
        if is_evaluation(node) or last_name(node) in TEST:
            self.event("evaluation", node, state)
        if key not in self.flow.frames:
            self.flow.frames[key] = frame
            _Walker(self.flow, frame).block(function.body, state)
            _close(self.flow, frame)
        self.flow.results[node] = self.flow.frames[key].returns

    def is_called(self, function: ast.FunctionDef, name: str, depth: int = 5) -> bool:
        """Whether a function passes through the model that it is handed under a name."""
        for call in calls(function):
            if isinstance(call.func, ast.Name) and call.func.id == name:
                return True
            target = self.target(call)
            given = self.arguments(call, target) if target and depth else {}
            if any(
                last_name(value) == name and self.is_called(target, each, depth - 1)
                for each, value in given.items()
            ):
                return True
            is_known = target or is_save(call) or last_name(call) in _ASKING | LOGGING
            if not is_known and any(last_name(each) == name for each in call.args):
                return True
        return False

    def arguments(self, node: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr]:
        """A call's arguments by the names of the function's parameters."""
        names = parameters(function)
        if isinstance(self.flow.script.parents[function], ast.ClassDef):
            names = names[1:]
        given = dict(zip(names, node.args, strict=False))
        return given | {each.arg: each.value for each in node.keywords if each.arg}

    def constants(self, function: ast.FunctionDef, given: Mapping[str, ast.expr]) -> dict[str, Any]:
        """The parameters whose value is known: handed as a constant, or by default."""
        names, defaults = parameters(function), function.args.defaults
        usual = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        found = {}
        for name, value in {**usual, **given}.items():
            if isinstance(value, ast.Constant):
                found[name] = value.value
            elif isinstance(value, ast.Name) and value.id in self.frame.constants:
                found[name] = self.frame.constants[value.id]
        return found


def _close(flow: Flow, frame: Frame) -> None:
    """Judge a finished call: names that are bound for one process only, and lonely collectives."""
    known = {
        n.arg
        for n in ast.walk(getattr(frame.function, "args", ast.Pass()))
        if isinstance(n, ast.arg)
    }
    known |= {
        name
        for n in ast.walk(frame.function)
        if isinstance(n, ast.Global | ast.Nonlocal)
        for name in n.names
    }
    for name, line, state in frame.loads:
        stores = frame.stores.get(name, []) if name not in known else []
        bound = {rank for _, each in stores for rank in each.launched}
        missing = state.launched - bound if stores else frozenset()
        if missing:
            known.add(name)  # once is enough
            owner = (
                "rank 0" if bound == {FIRST} else "a single process" if not bound else "one rank"
            )
            where = ", ".join(str(number) for number, _ in stores)
            text = f"{name} is bound on {owner} only (line {where}), and line {line} asks it on all"
            flow.reasons.append((line, text))
    groups: dict[object, list[Event]] = defaultdict(list)
    for event in frame.collectives:
        groups[event.name, event.path].append(event)
    for events in groups.values():
        counts = [sum(rank in event.state.who for event in events) for rank in (FIRST, SECOND)]
        if counts[0] != counts[1]:
            alone = "rank 0 alone" if counts[0] > counts[1] else "the other ranks, never by rank 0"
            text = f"{events[0].name}() is reached by {alone}, so it waits for ever"
            flow.reasons.append((events[0].line, text))


def _unfollowed(flow: Flow) -> None:
    """Refuse functions that matter and are called in a way that is not followed."""
    entered = {frame.function for frame in flow.frames.values()}
    script = flow.script
    called = {call.func for call in script.calls if isinstance(call.func, ast.Name)}
    names = (n for n in script.nodes if isinstance(n, ast.Name | ast.Attribute))
    used = {last_name(node) for node in names if node not in called}
    for function in (node for node in script.nodes if isinstance(node, ast.FunctionDef)):
        around = {function, *script.ancestors(function)}
        if function.name not in used or entered & around:
            continue
        for call in calls(function):
            name = last_name(call)
            if name in WRAPPERS | {"backward", "DistributedSampler"} or _COLLECTIVES.fullmatch(
                name
            ):
                text = (
                    f"{name}() stands in {function.name}(), a method or a function that is handed "
                    "on: its calls are not followed here"
                )
                flow.reasons.append((call.lineno, text))
                break


def sampled(event: Event, script: Script) -> str:
    """Return what a sampler draws from, by the names around it: "train", "eval", or ""."""
    statement, function = script.statement(event.node), event.frame.function
    inner = event.node if isinstance(statement, ast.Return) else statement
    named = {word for node in ast.walk(inner) for word in words(last_name(node))}
    for each in (named, words(getattr(function, "name", ""))):
        if any(word.startswith("train") for word in each):
            return "train"
        if each & (EVAL | TEST | {"dev", "val"}):
            return "eval"
    return "train" if function is not script.tree and is_training(function) else ""
