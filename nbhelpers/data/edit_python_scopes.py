"""Which identifiers of a Python program stand for which names, and where these are bound.

A name is looked up as Python does it: in its scope, then in those around it, where the scope of a
class is seen from the class alone. Comprehensions have scopes of their own, as in Python 3; what
Python 2 lets out of them looks unbound here, and such names are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .edit_tree import Syntax, Unsure
from .edit_words import words

_COMPREHENSIONS = words(
    "list_comprehension set_comprehension dictionary_comprehension generator_expression"
)
_PATTERNS = words(
    "pattern_list tuple_pattern list_pattern list_splat_pattern dictionary_splat_pattern "
    "tuple list parenthesized_expression expression_list typed_parameter as_pattern_target "
    "splat_pattern parameters lambda_parameters default_parameter typed_default_parameter "
    "parenthesized_list_splat list_splat"
)
_LEFT_OF = frozenset({"assignment", "augmented_assignment", "for_statement", "for_in_clause"})
_IMPORTS = frozenset({"import_statement", "import_from_statement", "future_import_statement"})
_PARAMETERS = frozenset({"parameters", "lambda_parameters"})


@dataclass(slots=True)
class Scope:
    """A scope: its kind (module, function, class, comprehension), what it binds, how."""

    kind: str
    parent: int
    node: int
    bound: dict[str, set[str]] = field(default_factory=dict)  # name -> param, local, def, class


@dataclass(slots=True)
class Use:
    """An identifier that stands for a name."""

    node: int
    name: str
    scope: int
    binds: bool


class Names:
    """All identifiers of a program."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.scopes = [Scope("module", -1, 0)]
        self.uses: list[Use] = []
        self.attributes: list[int] = []  # identifiers behind a dot
        self.keywords: list[int] = []  # names of arguments in calls
        self.imported: set[str] = set()
        self.kept: set[str] = set()  # names that a text shows
        self.free: set[str] = set()  # used, and bound nowhere
        self.node_scopes: list[int] = []
        self._inner: dict[int, int] = {}  # the scope that a node opens
        self._targets: list[bool] = []
        for node in range(len(syntax.kinds)):
            self._visit(node)
        for use in self.uses:
            if self.scope_of(use) < 0:
                self.free.add(use.name)

    def scope_of(self, use: Use) -> int:
        """The scope that binds a name where it is used, or -1."""
        scope = use.scope
        while scope >= 0:
            here = self.scopes[scope]
            if use.name in here.bound and (here.kind != "class" or scope == use.scope):
                return scope
            scope = here.parent
        return -1

    def _visit(self, node: int) -> None:
        syntax = self.syntax
        parent, kind = syntax.parents[node], syntax.kinds[node]
        self.node_scopes.append(self._scope_at(node))
        is_target = parent >= 0 and self._is_target(node, parent)
        self._targets.append(is_target)
        if kind in ("function_definition", "lambda"):
            self._open("function", node)
        elif kind == "class_definition":
            self._open("class", node)
        elif kind in _COMPREHENSIONS:
            self._open("comprehension", node)
        elif kind == "identifier":
            self._identifier(node, syntax.text(node), is_target)
        elif kind in ("exec_statement", "type_alias_statement") or (
            syntax.fields[node] == "type_parameters"
        ):
            raise Unsure

    def _open(self, kind: str, node: int) -> None:
        self._inner[node] = len(self.scopes)
        self.scopes.append(Scope(kind, self.node_scopes[node], node))

    def _scope_at(self, node: int) -> int:
        syntax = self.syntax
        parent = syntax.parents[node]
        if parent < 0:
            return 0
        above, field_name = syntax.kinds[parent], syntax.fields[node]
        scope = self.node_scopes[parent]
        if parent in self._inner:
            is_inner = above in _COMPREHENSIONS or field_name in ("body", "parameters")
            return self._inner[parent] if is_inner else scope
        if above.endswith("default_parameter") and field_name in ("value", "type"):
            return self.scopes[scope].parent
        if above == "typed_parameter" and field_name == "type":
            return self.scopes[scope].parent
        if above == "for_in_clause" and field_name == "right":
            clauses = syntax.children(syntax.parents[parent])
            first = next(c for c in clauses if syntax.kinds[c] == "for_in_clause")
            return self.scopes[scope].parent if parent == first else scope
        return scope

    def _is_target(self, node: int, parent: int) -> bool:
        """Does this part of the program give names a value?"""
        syntax = self.syntax
        above, field_name = syntax.kinds[parent], syntax.fields[node]
        if above in _LEFT_OF and field_name == "left":
            return True
        if above in _PARAMETERS or syntax.kinds[node] == "as_pattern_target":
            return True
        if above in ("named_expression", "default_parameter", "typed_default_parameter"):
            return field_name == "name"
        if above == "typed_parameter":
            return field_name != "type"
        if above == "except_clause" and field_name == "value":
            values = [c for c in syntax.children(parent) if syntax.fields[c] == "value"]
            return len(values) == 2 and node == values[1]
        if above in ("delete_statement", "splat_pattern"):
            return True
        if above == "as_pattern" and syntax.kinds[node] == "identifier":
            return syntax.parent_kind(parent) == "case_pattern" and node != parent + 1
        if above == "dotted_name":
            return self._is_capture(node, parent)
        return above in _PATTERNS and self._targets[parent]

    def _is_capture(self, node: int, parent: int) -> bool:
        """Is this one word in a `case`, which takes the value?"""
        above = self.syntax.parent_kind(parent)
        if above not in ("case_pattern", "keyword_pattern", "union_pattern"):
            return False
        return self.syntax.lasts[parent] == node + 1 == parent + 2

    def _identifier(self, node: int, name: str, is_target: bool) -> None:
        syntax = self.syntax
        parent = syntax.parents[node]
        above, field_name = syntax.kinds[parent] if parent >= 0 else "", syntax.fields[node]
        scope = self.node_scopes[node]
        if above == "attribute" and field_name == "attribute":
            self.attributes.append(node)
        elif above == "keyword_argument" and field_name == "name":
            self.keywords.append(node)
        elif (above == "keyword_pattern" and node == parent + 1) or (
            above == "dotted_name" and node != parent + 1
        ):
            self.kept.add(name)
        elif any(syntax.kinds[up] in _IMPORTS for up in self._two_above(node)):
            self.imported.add(name)
            self._bind(name, scope, "import")
        elif above in ("function_definition", "class_definition") and field_name == "name":
            self._bind(name, scope, "class" if above == "class_definition" else "def")
            self.uses.append(Use(node, name, scope, True))
        elif above in ("global_statement", "nonlocal_statement"):
            self._bind(name, 0 if above == "global_statement" else scope, "local")
            self.uses.append(Use(node, name, scope, True))
        else:
            if is_target:
                self._bind_target(node, name, scope)
            if self._is_shown(node):
                self.kept.add(name)
            self.uses.append(Use(node, name, scope, is_target))

    def _two_above(self, node: int) -> list[int]:
        """The nodes above, as far as an import reaches."""
        above = []
        for up in self.syntax.above(node):
            above.append(up)
            if len(above) == 3:
                break
        return above

    def _bind_target(self, node: int, name: str, scope: int) -> None:
        if self.syntax.parent_kind(node) == "named_expression":
            while self.scopes[scope].kind == "comprehension":
                scope = self.scopes[scope].parent
        in_head = any(self.syntax.kinds[up] in _PARAMETERS for up in self._two_above(node))
        self._bind(name, scope, "param" if in_head else "local")

    def _bind(self, name: str, scope: int, how: str) -> None:
        self.scopes[scope].bound.setdefault(name, set()).add(how)

    def _is_shown(self, node: int) -> bool:
        """Does f"{name=}" print this name?"""
        for up in self.syntax.above(node):
            kind = self.syntax.kinds[up]
            if kind == "interpolation":
                return any(self.syntax.kinds[c] == "=" for c in self.syntax.children(up))
            if kind in ("block", "module"):
                return False
        return False
