"""New names for the variables, parameters, functions, classes and methods of a Python program.

The program means the same afterwards. One old name becomes one new name all over the program, or
stays: what is imported, built in, bound nowhere, an attribute, or looked up by its text. Functions,
classes, methods and global variables that nothing in the program uses stay as well: they may be
what others call. Methods get new names only where every receiver is known to be of a class of this
program that inherits from nothing else.
"""

from __future__ import annotations

import random
import re

from .edit_names import PYTHON_WORDS, kind_of_variable, new_names
from .edit_python_scopes import Names, Use
from .edit_tree import Syntax, Unsure
from .edit_words import words

# Code that is made of text, or names that are read as text: then no name is safe.
_REFUSED = words("eval exec execfile locals globals vars dir compile __import__")
# Names may be looked up by the text of a string: then the words of all strings stay.
_REFLECTIVE = words(
    "getattr setattr hasattr delattr attrgetter methodcaller namedtuple timeit doctest "
    "__all__ __dict__ __main__ __slots__ inspect ctypes symtable pickle"
)
_SHOWS_NAMES = frozenset({"__name__", "__qualname__", "__class__", "__code__", "__wrapped__"})
_SAFE_DECORATORS = words(
    "staticmethod classmethod property cache lru_cache abstractmethod cached_property "
    "total_ordering"
)
_WORD = re.compile(r"[^\W\d]\w*")
_BUILT_IN = (str, bytes, list, dict, set, tuple, int, float, complex, frozenset, type, object)
_KNOWN_ATTRIBUTES = frozenset(name for kind in _BUILT_IN for name in dir(kind)) | words(
    "close read write readline readlines writelines flush seek tell send throw next has_key "
    "iteritems itervalues iterkeys run start"
)


def rename_python(syntax: Syntax, draw: random.Random) -> tuple[str, dict[str, str]]:
    """Return the program under its new names, and these by the old ones.

    Raises:
        Unsure: The program makes code of text, or reads its own names.
    """
    names = Names(syntax)
    if names.free & _REFUSED:
        raise Unsure
    plan = _Plan(names)
    kinds = plan.kinds()
    taken = {use.name for use in names.uses} | names.imported | PYTHON_WORDS | names.kept
    taken |= {syntax.text(node) for node in (*names.attributes, *names.keywords)}
    new = new_names(kinds, taken, draw)
    places = [(use.node, new[use.name]) for use in names.uses if use.name in new]
    places += [
        (node, new[name])
        for node in names.attributes
        if (name := syntax.text(node)) in new and name in plan.methods
    ]
    places += [
        (node, new[name])
        for node in names.keywords
        if (name := syntax.text(node)) in new and node in plan.own_keywords
    ]
    return replaced(syntax, places), new


def replaced(syntax: Syntax, places: list[tuple[int, str]]) -> str:
    """The program with other texts for some of its nodes."""
    out, kept = [], 0
    for node, text in sorted(places):
        out += [syntax.source[kept : syntax.starts[node]], text.encode()]
        kept = syntax.stops[node]
    return b"".join([*out, syntax.source[kept:]]).decode()


class _Plan:
    """What of a program may get a new name."""

    def __init__(self, names: Names) -> None:
        self.names, self.syntax = names, names.syntax
        self.how: dict[str, set[str]] = {}
        self.class_bound: dict[str, set[str]] = {}
        for scope in names.scopes:
            for name, how in scope.bound.items():
                target = self.class_bound if scope.kind == "class" else self.how
                target.setdefault(name, set()).update(how)
        self.functions = self._definitions("function_definition")
        self.classes = self._definitions("class_definition")
        self.own_keywords: set[int] = set()
        self.parameters = {
            scope.node: {name for name, how in scope.bound.items() if "param" in how}
            for scope in names.scopes
            if scope.kind == "function"
        }
        self.closed = self._closed_classes()
        self.methods = self._methods()
        self.kept = names.imported | names.free | names.kept | PYTHON_WORDS
        self.kept |= self._by_text() | self._by_keyword() | self._unused()
        self.kept |= {name for name in self.class_bound if name not in self.methods}
        self.kept |= self._shown() | self._decorated()

    def kinds(self) -> dict[str, str]:
        """The names to change, with what they are, in the order of the program."""
        found: dict[str, str] = {}
        for use in self.names.uses:
            name = use.name
            if name in self.kept or name in found or name.startswith("__") or not name.strip("_"):
                continue
            how = self.how.get(name, set()) | self.class_bound.get(name, set())
            kind = "function" if "def" in how else kind_of_variable(name)
            found[name] = "class" if "class" in how else kind
        return found

    def _definitions(self, kind: str) -> dict[str, list[int]]:
        """The nodes that define functions or classes, by name."""
        found: dict[str, list[int]] = {}
        for node, node_kind in enumerate(self.syntax.kinds):
            if node_kind == kind:
                name = self.syntax.field(node, "name")
                if name is not None:
                    found.setdefault(self.syntax.text(name), []).append(node)
        return found

    def _scope_kind(self, node: int) -> str:
        return self.names.scopes[self.names.node_scopes[node]].kind

    def _closed_classes(self) -> set[str]:
        """Classes that inherit from nothing but each other."""
        closed = {n for n in self.classes if n not in self.names.imported}
        while True:
            open_ones = {
                n for n in closed if not all(self._is_closed(c, closed) for c in self.classes[n])
            }
            if not open_ones:
                return closed
            closed -= open_ones

    def _is_closed(self, node: int, closed: set[str]) -> bool:
        bases = self.syntax.field(node, "superclasses")
        if self._decorators(node):
            return False
        return bases is None or all(
            self.syntax.kinds[c] in ("(", ")", ",")
            or (self.syntax.kinds[c] == "identifier" and self.syntax.text(c) in closed | {"object"})
            for c in self.syntax.children(bases)
        )

    def _decorators(self, node: int) -> list[str]:
        parent = self.syntax.parents[node]
        if self.syntax.kinds[parent] != "decorated_definition":
            return []
        found = []
        for child in self.syntax.children(parent):
            if self.syntax.kinds[child] == "decorator":
                words = _WORD.findall(self.syntax.text(child).partition("(")[0])
                found.append(words[-1] if words else "")
        return found

    def _is_safely_decorated(self, node: int) -> bool:
        return all(name in _SAFE_DECORATORS for name in self._decorators(node))

    def _methods(self) -> set[str]:
        """Names of methods whose receivers are all known."""
        found = set()
        for name, how in self.class_bound.items():
            nodes = [n for n in self.functions.get(name, ()) if self._scope_kind(n) == "class"]
            is_plain = (
                how == {"def"} and not name.startswith("__") and name not in _KNOWN_ATTRIBUTES
            )
            if is_plain and all(self._in_closed(n) and self._is_safely_decorated(n) for n in nodes):
                found.add(name)
        instances = self._instances()
        called = set()
        for node in self.names.attributes:
            name = self.syntax.text(node)
            if name in found:
                called.add(name)
                if not self._is_known_receiver(self.syntax.parents[node] + 1, instances):
                    found.discard(name)
        return found & called

    def _in_closed(self, node: int) -> bool:
        owner = self.names.scopes[self.names.node_scopes[node]].node
        name = self.syntax.field(owner, "name")
        return name is not None and self.syntax.text(name) in self.closed

    def _instances(self) -> set[str]:
        """Variables that are only ever given an object of a closed class."""
        given: dict[str, bool] = {}
        for use in self.names.uses:
            if use.binds:
                is_one = self._is_given_instance(use)
                given[use.name] = given.get(use.name, True) and is_one
        return {name for name, always in given.items() if always}

    def _is_given_instance(self, use: Use) -> bool:
        parent = self.syntax.parents[use.node]
        if self.syntax.kinds[parent] != "assignment" or self.syntax.fields[use.node] != "left":
            return False
        right = self.syntax.field(parent, "right")
        return right is not None and self._makes_instance(right)

    def _makes_instance(self, node: int) -> bool:
        is_call = self.syntax.kinds[node] == "call"
        return is_call and self.syntax.text(node + 1) in self.closed

    def _is_known_receiver(self, node: int, instances: set[str]) -> bool:
        text = self.syntax.text(node)
        if self.syntax.kinds[node] == "identifier":
            if text in ("self", "cls"):
                scope = self.names.scopes[self.names.node_scopes[node]]
                return self._is_in_closed_class(scope.node)
            return text in self.closed or text in instances
        return self._makes_instance(node)

    def _is_in_closed_class(self, node: int) -> bool:
        for up in self.syntax.above(node):
            if self.syntax.kinds[up] == "class_definition":
                name = self.syntax.field(up, "name")
                return name is not None and self.syntax.text(name) in self.closed
        return False

    def _by_text(self) -> set[str]:
        """Names that stand in strings, where strings may name things."""
        kinds, found = self.syntax.kinds, set()
        words = {use.name for use in self.names.uses} | self.names.imported
        words |= {self.syntax.text(node) for node in self.names.attributes}
        is_reflective = bool(words & _REFLECTIVE) or b"__main__ import" in self.syntax.source
        for node in self.syntax.leaves:
            if kinds[node] == "string" and (
                is_reflective or "type" in (kinds[u] for u in self.syntax.above(node))
            ):
                found.update(_WORD.findall(self.syntax.text(node)))
        return found

    def _by_keyword(self) -> set[str]:
        """Parameters that a call may name although it is not known which function it calls."""
        kept: set[str] = set()
        for node in self.names.keywords:
            name = self.syntax.text(node)
            call = self.syntax.parents[self.syntax.parents[self.syntax.parents[node]]]
            callee = self.syntax.text(call + 1)
            if self.syntax.kinds[call + 1] == "identifier" and self._is_own_function(callee):
                if all(name in self._parameters(n) for n in self.functions[callee]):
                    self.own_keywords.add(node)
                elif any(name in self._parameters(n) for n in self.functions[callee]):
                    kept.add(name)
            elif callee not in self.names.free or callee not in PYTHON_WORDS:
                kept.add(name)
        for node, kind in enumerate(self.syntax.kinds):
            if kind == "dictionary_splat" and self.syntax.parent_kind(node) == "argument_list":
                kept |= {name for name, how in self.how.items() if "param" in how}
        return {name for name in kept if "param" in self.how.get(name, ())}

    def _is_own_function(self, name: str) -> bool:
        return name in self.functions and self.how.get(name) == {"def"}

    def _parameters(self, node: int) -> set[str]:
        return self.parameters.get(node, set())

    def _unused(self) -> set[str]:
        """Names of the module and of definitions that nothing but themselves uses."""
        used: set[str] = set()
        own = {
            name: [
                (n, self.syntax.lasts[n])
                for n in [*self.functions.get(name, ()), *self.classes.get(name, ())]
            ]
            for name in {*self.functions, *self.classes}
        }
        for use in self.names.uses:
            if use.binds:
                continue
            spans = own.get(use.name, ())
            if not any(start <= use.node < end for start, end in spans):
                used.add(use.name)
        module = set(self.names.scopes[0].bound)
        return {name for name in module | set(own) if name not in used and name not in self.methods}

    def _shown(self) -> set[str]:
        """Names of functions and classes, where the program reads such names."""
        attributes = {self.syntax.text(node) for node in self.names.attributes}
        if attributes & _SHOWS_NAMES:
            return {*self.functions, *self.classes}
        return {name for name in self.classes if name not in self.closed}

    def _decorated(self) -> set[str]:
        """Names and parameters of functions that a decorator may call by name."""
        found: set[str] = set()
        for name, nodes in self.functions.items():
            for node in nodes:
                if not self._is_safely_decorated(node):
                    found |= {name} | self._parameters(node)
        return found
