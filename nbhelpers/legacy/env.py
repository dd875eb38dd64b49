"""Whether a script reads LOCAL_RANK by itself: the first repair, made by hand or by another tool.

What counts is that the launcher's rank arrives in the name that the script asks: an assignment, a
default of the option, a keyword, or a library that does it. Reading it into a variable that nobody
asks, or after the rank was used, does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .rank import RankNames
from .source import Script
from .syntax import last_name

VARIABLE = "LOCAL_RANK"
_FILLERS = {"set_defaults", "dict", "update", "replace", "edict"}
_TRAINING_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_LIBRARIES = ("Accelerator", "PartialState")
_LOGGING = {"print", "info", "warning", "debug", "log", "error", "format"}


@dataclass(frozen=True, slots=True)
class Source:
    """A line that gives the rank its value, and how; `node` where the script does it itself."""

    line: int
    words: str
    node: ast.AST | None = None


def env_sources(script: Script, names: RankNames) -> list[Source]:
    """Return every place where the launcher's rank arrives in the script's own name for it."""
    fed = _fed_names(script)
    found = [*_assigned(script, names, fed), *_passed(script, names, fed)]
    if not found and not attribute_uses(script, names, fed):
        found = [
            Source(node.lineno, f"{target.id} is read from {VARIABLE}", node)
            for node, target, value in _assignments(script)
            if isinstance(target, ast.Name) and target.id in names.names and _feeds(value, fed)
        ]
    return found or list(_libraries(script, names))


def attribute_uses(
    script: Script, names: RankNames, fed: frozenset[str] = frozenset()
) -> list[ast.expr]:
    """Return where the rank is read as an attribute or key, log lines and its own source apart."""
    found = []
    for node in script.nodes:
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not is_read or isinstance(node, ast.Name) or not names.matches(node):
            continue
        whole, is_told = node, False
        for above in script.ancestors(node):
            if isinstance(getattr(above, "body", None), list):  # a block is not judged by its body
                break
            is_told |= isinstance(above, ast.Call) and last_name(above) in _LOGGING
            whole = above
        if not is_told and not _feeds(whole, fed):
            found.append(node)
    return found


def late_uses(script: Script, names: RankNames, source: Source, sources: list[Source]) -> list[int]:
    """Return the lines that ask the rank before its source gives it, in the same function."""
    if source.node is None:
        return []
    scope = script.scope(source.node)
    nodes = [each.node for each in sources if each.node is not None]
    around = {*nodes, *(above for node in nodes for above in script.ancestors(node))}
    return sorted(
        {
            use.lineno
            for use in attribute_uses(script, names)
            if script.scope(use) is scope
            and script.statement(use) not in around
            and script.statement(use).lineno < source.line
        }
    )


def _assignments(script: Script) -> Iterator[tuple[ast.stmt | ast.NamedExpr, ast.expr, ast.expr]]:
    """Every assignment with a target and a value, one by one."""
    for node in script.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                inner = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield from ((node, each, node.value) for each in inner)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node, node.target, node.value


def _fed_names(script: Script) -> frozenset[str]:
    """Plain names whose value comes from the environment, by way of other names too."""
    fed: frozenset[str] = frozenset()
    while True:
        more = fed | {
            target.id
            for node, target, value in _assignments(script)
            if isinstance(target, ast.Name)
            and (_feeds(value, fed) or _is_set_up_by_a_helper(node, target, value))
        }
        if more == fed:
            return fed
        fed = more


def _is_set_up_by_a_helper(node: ast.AST, target: ast.Name, value: ast.expr) -> bool:
    """`rank, local_rank, world_size = setup()`: the helper knows the rank."""
    is_tuple = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    return is_tuple and "local_rank" in target.id.lower() and isinstance(value, ast.Call)


def _feeds(node: ast.AST, fed: frozenset[str]) -> bool:
    """Whether a value comes from the launcher; asking only whether the variable is set does not."""
    todo = [node]  # no recursion: a long sum is a deep tree
    while todo:
        node = todo.pop()
        if _is_rank_value(node, fed):
            return True
        is_asked = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        is_told = isinstance(node, ast.Call) and last_name(node) in _LOGGING
        if not (is_asked or is_told):
            todo += ast.iter_child_nodes(node)
    return False


def _is_rank_value(node: ast.AST, fed: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == VARIABLE
    if isinstance(node, ast.Name):
        return node.id in fed
    if isinstance(node, ast.Call):
        return last_name(node) in ("get_rank", "get_node_local_rank", "get_local_rank")
    return isinstance(node, ast.Attribute) and node.attr == "local_process_index"


def _assigned(script: Script, names: RankNames, fed: frozenset[str]) -> Iterator[Source]:
    """Assignments to the rank, also as the default of a field."""
    others = {_holder(node) for node in attribute_uses(script, names, fed)} - {"self"}
    for node, target, value in _assignments(script):
        is_field = isinstance(script.parents[node], ast.ClassDef)
        is_rank = last_name(target) in names.attributes if is_field else names.matches(target)
        if not is_rank or not _feeds(value, fed) or (isinstance(target, ast.Name) and not is_field):
            continue
        if _holder(target) != "self" or not others:  # else an object of its own
            is_named = any(getattr(each, "value", None) == VARIABLE for each in ast.walk(value))
            how = f"is set from {VARIABLE}" if is_named else "gets the launcher's rank"
            yield Source(node.lineno, f"{script.source(target)} {how}", node)


def _holder(node: ast.AST) -> str:
    """What the rank is an attribute of: `args` in `args.local_rank`."""
    return last_name(getattr(node, "value", node))


def _passed(script: Script, names: RankNames, fed: frozenset[str]) -> Iterator[Source]:
    """Calls that hand the launcher's rank on under the script's name for it."""
    for call in script.calls:
        name = last_name(call)
        given = {each.arg for each in call.keywords if _feeds(each.value, fed)}
        if is_rank_option(call):
            if "default" in given:
                yield Source(call.lineno, f"the option's default reads {VARIABLE}")
        elif name == "setattr" and len(call.args) == 3:
            if getattr(call.args[1], "value", "") in names.attributes and _feeds(call.args[2], fed):
                yield Source(call.lineno, f"the rank is set from {VARIABLE}", call)
        elif (name in _FILLERS or name[:1].isupper()) and given & names.attributes:
            yield Source(call.lineno, f"{name}() gets the rank from {VARIABLE}", call)


def is_rank_option(call: ast.Call) -> bool:
    """Whether a call declares the option: `add_argument("--local_rank", …)`, dashes or not."""
    texts = [each.value for each in call.args if isinstance(each, ast.Constant)]
    spelled = {each.lstrip("-").replace("-", "_") for each in texts if isinstance(each, str)}
    return last_name(call) == "add_argument" and "local_rank" in spelled


def _libraries(script: Script, names: RankNames) -> Iterator[Source]:
    """Libraries that find their rank themselves, where the script does not ask for it otherwise."""
    known = _TRAINING_ARGUMENTS | {
        node.name
        for node in script.nodes
        if isinstance(node, ast.ClassDef) and _TRAINING_ARGUMENTS & set(map(last_name, node.bases))
    }
    asks = any(map(is_rank_option, script.calls)) or bool(attribute_uses(script, names))
    for call in script.calls:
        name = last_name(call)
        if name == "HfArgumentParser" and known & {last_name(each) for each in ast.walk(call)}:
            yield Source(call.lineno, f"transformers' TrainingArguments reads {VARIABLE} itself")
        elif name in _LIBRARIES and not asks:
            yield Source(call.lineno, f"{name} reads {VARIABLE} itself")
