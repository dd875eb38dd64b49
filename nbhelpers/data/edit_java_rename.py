"""New names for the variables, parameters, private fields, methods and classes of a Java program.

The program means the same afterwards. One old name becomes one new name wherever it stands for the
same kind of thing (variable, method, class), or stays: what is inherited, what others may call,
what is reached through a receiver whose class this program does not define. Methods and classes
that nothing in the program uses stay, as do public classes at the top and those with a `main`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from .edit_names import JAVA_WORDS, kind_of_variable, new_names
from .edit_python_rename import replaced
from .edit_tree import Syntax, Unsure
from .edit_words import words

_TYPES = words(
    "class_declaration interface_declaration enum_declaration record_declaration "
    "annotation_type_declaration"
)
_BODIES = words("class_body interface_body enum_body annotation_type_body")
# What holds a declaration, and so ends where the name is known.
_EXTENTS = words(
    "block constructor_body for_statement enhanced_for_statement lambda_expression "
    "catch_clause method_declaration constructor_declaration compact_constructor_declaration "
    "try_with_resources_statement switch_block_statement_group switch_rule switch_block "
    "program static_initializer if_statement while_statement do_statement"
)
_LOCALS = words(
    "formal_parameter catch_formal_parameter enhanced_for_statement resource "
    "instanceof_expression type_pattern record_pattern_component"
)
_NOT_NAMES = {  # parent -> fields of identifiers that are no variables; "" is any
    "method_invocation": ("name",),
    "field_access": ("field",),
    "method_declaration": ("name",),
    "constructor_declaration": ("name",),
    "compact_constructor_declaration": ("name",),
    **dict.fromkeys(_TYPES, ("name",)),
    "enum_constant": ("name",),
    "annotation": ("name",),
    "marker_annotation": ("name",),
    "element_value_pair": ("key",),
    "annotation_type_element_declaration": ("name",),
    "scoped_identifier": ("name", "scope"),
    "labeled_statement": ("",),
    "break_statement": ("",),
    "continue_statement": ("",),
    "package_declaration": ("",),
    "import_declaration": ("",),
    "module_declaration": ("",),
}
_REFLECTIVE = words(
    "forName getMethod getDeclaredMethod getMethods getDeclaredMethods getField "
    "getDeclaredField getFields getDeclaredFields getSimpleName getName getClass "
    "getCanonicalName loadLibrary"
)
_OBJECT = words(
    "main toString equals hashCode clone finalize getClass notify notifyAll wait values "
    "valueOf ordinal name compareTo run call apply accept test get close iterator next "
    "hasNext"
)


def rename_java(syntax: Syntax, draw: random.Random) -> tuple[str, dict[str, str]]:
    """Return the program under its new names, and these by the old ones.

    Raises:
        Unsure: A native method, whose name another program knows.
    """
    plan = _Plan(syntax)
    places: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for node, name, kind in sorted(plan.found()):
        places.setdefault(name, []).append(node)
        kinds.setdefault(name, kind)
    taken = {syntax.text(n) for n in plan.identifiers} | JAVA_WORDS
    new = new_names(kinds, taken, draw)
    return replaced(syntax, [(n, new[name]) for name in new for n in places[name]]), new


class _Plan:
    """What of a program may get a new name."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        kinds = syntax.kinds
        if "native" in kinds:
            raise Unsure
        self.identifiers = [
            n for n, kind in enumerate(kinds) if kind in ("identifier", "type_identifier")
        ]
        self.by_text: dict[str, list[int]] = {}
        for node in self.identifiers:
            self.by_text.setdefault(syntax.text(node), []).append(node)
        self.extents: dict[str, dict[int, int]] = {}  # name -> node that knows it -> from where
        self.bodies: dict[str, set[int]] = {}  # the bodies whose types have a field of a name
        self.fields: dict[str, list[int]] = {}  # declarators
        self.types: dict[str, list[int]] = {}
        self.methods: dict[str, list[int]] = {}
        self.calls: dict[str, list[int]] = {}  # identifiers that name a called method
        self.other_words: set[str] = set()  # labels, imports, annotations: never touched
        self.variables: list[int] = []
        self._classify()
        self.is_reflective = bool(self.calls.keys() & _REFLECTIVE)
        self.closed = self._closed_types()

    def found(self) -> list[tuple[int, str, str]]:
        """Every identifier to change: its node, its name, its kind."""
        variables = list(self._variables())
        methods, types = list(self._methods()), list(self._types())
        # One text is one kind of thing; a text that is two of them stays.
        kinds: dict[str, set[str]] = {}
        for _, name, kind in (*variables, *methods, *types):
            kinds.setdefault(name, set()).add(kind)
        every = (*variables, *methods, *types)
        return [found for found in every if len(kinds[found[1]]) == 1]

    def _classify(self) -> None:
        syntax = self.syntax
        for node in self.identifiers:
            name, above = syntax.text(node), syntax.parent_kind(node)
            field = syntax.fields[node]
            if syntax.kinds[node] == "type_identifier":
                continue
            if above in _TYPES and field == "name":
                self.types.setdefault(name, []).append(syntax.parents[node])
            elif above == "method_declaration" and field == "name":
                self.methods.setdefault(name, []).append(syntax.parents[node])
            elif (above == "method_invocation" and field == "name") or (
                above == "method_reference" and node != syntax.parents[node] + 1
            ):
                self.calls.setdefault(name, []).append(node)
            elif self._is_variable(node, above, field):
                self.variables.append(node)
                self._declare(node, name, above, field)
            elif not (above == "field_access" or above == "constructor_declaration"):
                self.other_words.add(name)

    def _is_variable(self, node: int, above: str, field: str) -> bool:
        fields = _NOT_NAMES.get(above, ())
        return not ("" in fields or field in fields) or (
            above == "field_access" and field == "object"
        )

    def _declare(self, node: int, name: str, above: str, field: str) -> None:
        syntax = self.syntax
        parent = syntax.parents[node]
        if above == "variable_declarator" and field == "name":
            owner = syntax.parent_kind(parent)
            if owner in ("field_declaration", "constant_declaration"):
                self.fields.setdefault(name, []).append(parent)
                self.bodies.setdefault(name, set()).add(self._owner(parent))
                return
            is_local = True
        else:
            is_local = (above in _LOCALS and field == "name") or above == "inferred_parameters"
            is_local |= above == "lambda_expression" and field == "parameters"
            is_local |= above in ("type_pattern", "record_pattern_component")
        if not is_local:
            return
        for up in syntax.above(node):
            if syntax.kinds[up] == "record_declaration":
                self.fields.setdefault(name, []).append(parent)  # reached as name() too
                self.other_words.add(name)
                return
            if syntax.kinds[up] in _EXTENTS:
                self._extend(name, node, up, above)
                return

    def _extend(self, name: str, node: int, up: int, above: str) -> None:
        syntax = self.syntax
        if above in ("instanceof_expression", "type_pattern", "record_pattern_component"):
            # Known as far as the test decides, which may be behind the statement too.
            while up > 0 and syntax.kinds[up] not in ("block", "constructor_body", "program"):
                up = syntax.parents[up]
        known = self.extents.setdefault(name, {})
        known[up] = min(node, known.get(up, node))

    def _is_local(self, node: int, name: str) -> bool:
        """Is the name a local one here, and not that of a field of a class in between?"""
        extents, bodies = self.extents.get(name, {}), self.bodies.get(name, ())
        for up in self.syntax.above(node) if extents else ():
            if up in extents and extents[up] <= node:
                return True
            if up in bodies:
                return False
        return False

    def _is_own_field(self, node: int, name: str) -> bool:
        bodies = self.bodies.get(name, ())
        return any(up in bodies for up in self.syntax.above(node))

    def _owner(self, node: int) -> int:
        """The body of the type that something stands in."""
        return next((up for up in self.syntax.above(node) if self.syntax.kinds[up] in _BODIES), 0)

    def _variables(self) -> Iterator[tuple[int, str, str]]:
        private = {n for n, nodes in self.fields.items() if all(map(self._is_private, nodes))}
        through = self._through_this()
        fields = {n for n in private if through.get(n, True)} - self.other_words
        if self.is_reflective:
            fields = set()
        for node in self.variables:
            name = self.syntax.text(node)
            if name in self.types or not name.strip("_$"):
                continue
            if self._is_local(node, name) or (name in fields and self._is_own_field(node, name)):
                yield node, name, kind_of_variable(name)
        for node in self.identifiers:
            if self.syntax.parent_kind(node) == "field_access":
                name = self.syntax.text(node)
                if self.syntax.fields[node] == "field" and name in fields:
                    yield node, name, kind_of_variable(name)

    def _is_private(self, declarator: int) -> bool:
        declaration = self.syntax.parents[declarator]
        modifiers = declaration + 1
        return self.syntax.kinds[modifiers] == "modifiers" and "private" in (
            self.syntax.kinds[c] for c in self.syntax.children(modifiers)
        )

    def _through_this(self) -> dict[str, bool]:
        """For each name behind a dot: is it only ever reached through `this` or an own class?"""
        reached: dict[str, bool] = {}
        for node in self.identifiers:
            if self.syntax.parent_kind(node) == "field_access":
                if self.syntax.fields[node] != "field":
                    continue
                name, first = self.syntax.text(node), self.syntax.parents[node] + 1
                is_own = self.syntax.kinds[first] == "this" or (
                    self.syntax.text(first) in self.types
                    and self.syntax.text(first) not in self.extents
                )
                reached[name] = reached.get(name, True) and is_own
        return reached

    def _closed_types(self) -> set[str]:
        """Types that inherit from nothing but each other."""
        closed = set(self.types)
        while True:
            gone = {n for n in closed if not all(self._is_closed(t, closed) for t in self.types[n])}
            if not gone:
                return closed
            closed -= gone

    def _is_closed(self, node: int, closed: set[str]) -> bool:
        syntax = self.syntax
        if syntax.kinds[node] in ("record_declaration", "annotation_type_declaration"):
            return False
        for child in syntax.children(node):
            if syntax.kinds[child] in ("superclass", "super_interfaces", "extends_interfaces"):
                names = (syntax.text(n) for n in self._type_names(child))
                if not all(name in closed or name == "Object" for name in names):
                    return False
        return True

    def _type_names(self, node: int) -> Iterator[int]:
        for at in range(node, self.syntax.lasts[node]):
            if self.syntax.kinds[at] == "type_identifier":
                yield at

    def _methods(self) -> Iterator[tuple[int, str, str]]:
        if self.is_reflective:
            return
        types = self._variable_types()
        for name, nodes in self.methods.items():
            calls = self.calls.get(name, [])
            outside = [c for c in calls if not any(n <= c < self.syntax.lasts[n] for n in nodes)]
            if name in _OBJECT or not outside or name in self.other_words:
                continue
            if not all(self._is_own_method(n) for n in nodes):
                continue
            if all(self._is_known_receiver(c, types) for c in calls):
                for place in (*(self.syntax.field(n, "name") for n in nodes), *calls):
                    yield place, name, "function"

    def _is_own_method(self, node: int) -> bool:
        """Does no type from elsewhere know this method?"""
        syntax = self.syntax
        body = syntax.parents[node]
        modifiers = {syntax.text(c) for c in syntax.children(node + 1)}
        if syntax.kinds[body] == "program" or modifiers & {"private", "static"}:
            return "@Override" not in modifiers
        owner = syntax.parents[body]
        if syntax.kinds[body] == "enum_body_declarations":
            owner = syntax.parents[owner]
        name = syntax.field(owner, "name") if syntax.kinds[owner] in _TYPES else None
        return name is not None and syntax.text(name) in self.closed

    def _variable_types(self) -> dict[str, set[str]]:
        """The declared types of all variables of a name."""
        types: dict[str, set[str]] = {}
        for node in self.variables:
            if self.syntax.fields[node] == "name":
                parent = self.syntax.parents[node]
                typed = self.syntax.field(parent, "type") is not None
                holder = parent if typed else self.syntax.parents[parent]
                declared = self.syntax.field(holder, "type") if holder >= 0 else None
                text = self.syntax.text(declared) if declared is not None else "?"
                types.setdefault(self.syntax.text(node), set()).add(text)
            elif self.syntax.parent_kind(node) in ("inferred_parameters", "lambda_expression"):
                types.setdefault(self.syntax.text(node), set()).add("?")
        return types

    def _is_known_receiver(self, call: int, types: dict[str, set[str]]) -> bool:
        syntax = self.syntax
        first = syntax.parents[call] + 1
        if first == call:
            return True  # no receiver: a method of a class around
        kind, text = syntax.kinds[first], syntax.text(first)
        if kind == "this":
            return True
        if kind == "object_creation_expression":
            declared = syntax.field(first, "type")
            return declared is not None and syntax.text(declared) in self.closed
        if kind != "identifier":
            return False
        if text in types:
            return types[text] <= self.closed
        return text in self.types

    def _types(self) -> Iterator[tuple[int, str, str]]:
        if self.is_reflective:
            return
        others = self.other_words | set(self.extents) | set(self.fields)
        others |= set(self.methods) | set(self.calls)
        for name, nodes in self.types.items():
            node, places = nodes[0], self.by_text[name]
            if len(nodes) > 1 or name not in self.closed or name in others:
                continue
            if self._is_public(node) or not all(map(self._is_class_name, places)):
                continue
            if any(not node <= n < self.syntax.lasts[node] for n in places):
                yield from ((place, name, "class") for place in places)

    def _is_class_name(self, node: int) -> bool:
        """Does this stand for the class of this program, and not for one in a package?"""
        syntax, parent = self.syntax, self.syntax.parents[node]
        above = syntax.kinds[parent]
        if above in ("scoped_type_identifier", "field_access") and node != parent + 1:
            return syntax.text(parent + 1) in self.types
        if syntax.kinds[node] == "type_identifier":
            return above != "type_parameter"
        is_receiver = above in ("method_invocation", "field_access", "method_reference")
        return is_receiver or above in _TYPES or "constructor_declaration" in above

    def _is_public(self, node: int) -> bool:
        """Does the file bear this name, or the command that runs it?"""
        syntax = self.syntax
        at_top = syntax.kinds[syntax.parents[node]] == "program"
        modifiers = {syntax.text(c) for c in syntax.children(node + 1)}
        if at_top and "public" in modifiers:
            return True
        mains = self.methods.get("main", ())
        return any(node <= main < syntax.lasts[node] for main in mains)
