"""What the parts of a script do, by the names in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

EVAL = {"evaluate", "evaluation", "eval", "validate", "validation", "valid", "evaluating"}
SAVE = {"save", "saving", "dump"}
TEST = {"test", "predict", "prediction", "predictions", "inference"}
_NOT_AN_ACTION = {"args", "arg", "config", "input", "inputs", "path", "load", "literal", "mode"}
_NOT_EVALUATING = {"get", "build", "make", "dataset", "loader", "dataloader", "examples"}
_COLLECTIVES = {
    "barrier",
    "wait_for_everyone",
    "all_gather",
    "all_gather_object",
    "all_gather_into_tensor",
    "all_reduce",
    "gather_object",
    "broadcast_object_list",
}
_GROUPS = {"distributed", "dist", "accelerator"}


def last_name(node: ast.AST) -> str:
    """Return the last identifier of a name, an attribute or a call; empty for anything else.

    >>> last_name(ast.parse("torch.distributed.get_rank()").body[0].value)
    'get_rank'
    """
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def base_name(call: ast.Call) -> str:
    """Return the identifier in front of a method: `dist` in `dist.barrier()`; empty without one."""
    return last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def words(name: str) -> set[str]:
    """Return the words of an identifier.

    >>> sorted(words("evaluate_during_training")), sorted(words("saveModel"))
    (['during', 'evaluate', 'training'], ['model', 'save'])
    """
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def calls(*nodes: ast.AST) -> Iterator[ast.Call]:
    """Yield every call in some nodes."""
    for node in nodes:
        yield from (each for each in ast.walk(node) if isinstance(each, ast.Call))


def is_evaluation(call: ast.Call) -> bool:
    """Whether a call evaluates: `evaluate(…)`, `trainer.validate(…)`, but not `model.eval()`."""
    name = last_name(call)
    is_mode = name == "eval" and not (call.args or call.keywords)
    is_other = words(name) & (_NOT_AN_ACTION | _NOT_EVALUATING)
    return bool(words(name) & EVAL) and not is_other and not is_mode


def is_save(call: ast.Call) -> bool:
    """Whether a call writes results or weights: `torch.save`, `save_pretrained`, `makedirs`."""
    name = last_name(call)
    is_named = bool(words(name) & SAVE) and not words(name) & _NOT_AN_ACTION
    return is_named or name in ("makedirs", "mkdir")


def is_training(*nodes: ast.AST) -> bool:
    """Whether some nodes hold the training itself."""
    return any(last_name(call) == "backward" for call in calls(*nodes))


def is_collective(call: ast.Call) -> bool:
    """Whether all processes have to make a call together; `x.gather(1, i)` is a tensor's own."""
    name = last_name(call)
    is_method = name in ("gather", "broadcast", "reduce") and base_name(call) in _GROUPS
    return name in _COLLECTIVES or is_method
