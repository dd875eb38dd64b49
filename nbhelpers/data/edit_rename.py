"""New names for what a Python or Java program declares.

The program means the same afterwards. One old name becomes one new name all over the program, or
stays: what is imported, built in, inherited, bound nowhere, looked up by its text, or reached
through a receiver. What others may call stays as well: what nothing in the program uses.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections.abc import Iterable, Iterator, Mapping

from nbhelpers.data.edit_tree import JAVA_TYPES, PYTHON_IMPORTS, Unsure, words
from nbhelpers.data.syntax import Tree

# ------------------------------------------------------------------------------------------------
# New names for what a program declares, drawn from pools that know nothing of the program.


_NOUNS = sorted(
    words(
        "item value data node entry result total index count key text line word number step state "
        "list table group record field part pair point range size limit start end level order "
        "rank score weight cost sum buffer queue stack tree graph path edge row column cell block "
        "chunk token symbol letter digit char code flag mode type name label tag source target "
        "input output left right first last next prev current best answer temp other base offset "
        "width height"
    )
)
_VERBS = sorted(
    words(
        "get make find compute build check process handle update apply run load read parse "
        "collect count merge split reduce convert solve print show add take select search"
    )
)
_ADJECTIVES = sorted(words("new old my all cur max min sub main raw tmp final inner small big the"))
_SHORT = "abcdefghijkmnpqrstuvwxyz"
_CLIPPED = sorted(
    words("val tmp res idx cnt num arr buf ptr cur lst str1 obj acc ans aux dat elem out ret")
)

_JAVA_WORDS = words(
    "abstract assert boolean break byte case catch char class const continue default do "
    "double else enum extends final finally float for goto if implements import instanceof "
    "int interface long native new package private protected public return short static "
    "strictfp super switch synchronized this throw throws transient try void volatile while "
    "var yield record sealed permits true false null when module"
)
_PYTHON_WORDS = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins)]) | words(
    "print exec self cls raw_input xrange unicode long reduce basestring unichr cmp file "
    "execfile reload buffer apply intern coerce raw"
)


def _new_names(
    kinds: Mapping[str, str], taken: frozenset[str] | set[str], draw: random.Random
) -> dict[str, str]:
    """Return a new name for each old one, no two alike and none of those taken.

    Args:
        kinds: Old names with what they stand for: variable, function, class or constant.
        taken: Names that occur in the program, and words that are none.
        draw: Decides the pool, the case and the names.
    """
    pool = draw.choice(["letters", "words", "pairs", "clipped", "numbered", "mixed"])
    snake = draw.random() < 0.5
    used = set(taken)
    names: dict[str, str] = {}
    for old, kind in kinds.items():
        for name in _candidates(kind, pool, snake, draw):
            if name not in used:
                break
        used.add(name)
        names[old] = name
    return names


def _candidates(kind: str, pool: str, snake: bool, draw: random.Random) -> Iterator[str]:
    """Names without end; a name that is taken is followed by longer ones."""
    attempt = 0
    while True:
        words = _words(kind, pool, draw)
        if attempt > 3:
            words = [*words, str(draw.randrange(2, 10 + attempt))]
        yield _cased(words, kind, snake)
        attempt += 1


def _words(kind: str, pool: str, draw: random.Random) -> list[str]:
    if kind == "class":
        return draw.choices(_NOUNS, k=draw.choice([1, 2]))
    if pool == "mixed":
        pool = draw.choice(["letters", "words", "pairs", "clipped"])
    if kind == "function":
        if pool in ("letters", "numbered") and draw.random() < 0.5:
            return [draw.choice(["f", "g", "h", "fn", "func", "calc", "go", "helper"])]
        if pool == "clipped":
            return [draw.choice(_VERBS)]
        return [draw.choice(_VERBS), draw.choice(_NOUNS)]
    if pool == "letters":
        return [draw.choice(_SHORT)]
    if pool == "numbered":
        return [draw.choice(["x", "v", "t", "var", "a"]), str(draw.randrange(1, 40))]
    if pool == "clipped":
        return [draw.choice(_CLIPPED)]
    if pool == "words":
        return [draw.choice(_NOUNS)]
    return [draw.choice(_ADJECTIVES + _NOUNS), draw.choice(_NOUNS)]


def _cased(words: list[str], kind: str, snake: bool) -> str:
    *names, last = words
    number = last if last.isdigit() else ""
    names = names if number else words
    if kind == "class":
        return "".join(name.capitalize() for name in names) + number
    if kind == "constant":
        return "_".join(names).upper() + number
    if snake:
        return "_".join(names) + number
    return names[0] + "".join(name.capitalize() for name in names[1:]) + number


def _kind_of_variable(name: str) -> str:
    """A name in capitals stays one."""
    return "constant" if len(name) > 1 and name.isupper() else "variable"


def _replaced(tree: Tree, names: Iterable[tuple[int, str]]) -> str:
    """The program with other texts for some of its nodes."""
    out, stop = [], 0
    for node, text in sorted(names):
        out += [tree.source[stop : tree.starts[node]], text.encode()]
        stop = tree.stops[node]
    return b"".join([*out, tree.source[stop:]]).decode()


# ------------------------------------------------------------------------------------------------
# Python: variables, parameters, functions and classes.
#
# Comprehensions have scopes of their own, as in Python 3; what Python 2 lets out of them looks
# unbound here, and such names are left alone. So is what stands behind a dot or names an argument.


_SCOPES = words(
    "function_definition lambda class_definition list_comprehension set_comprehension "
    "dictionary_comprehension generator_expression"
)
_COMPREHENSIONS = _SCOPES - words("function_definition lambda class_definition")
_INSIDE = words("body parameters")  # fields of a function or class that its scope holds
_DEFINITIONS = {"function_definition": "function", "class_definition": "class"}
_PATTERNS = words(
    "pattern_list tuple_pattern list_pattern list_splat_pattern dictionary_splat_pattern "
    "tuple list parenthesized_expression expression_list typed_parameter as_pattern_target "
    "splat_pattern parameters lambda_parameters default_parameter typed_default_parameter "
    "parenthesized_list_splat list_splat"
)
_LEFT_OF = words("assignment augmented_assignment for_statement for_in_clause")
_CASES = words("case_pattern keyword_pattern union_pattern")
_HEADS = words("parameters lambda_parameters")
# Code that is made of text, or names that are read as text: then no name is safe.
_REFUSED = words("eval exec execfile locals globals vars dir compile __import__")
# Names may be looked up by the text of a string: then the words of all strings stay.
_PYTHON_REFLECTIVE = words(
    "getattr setattr hasattr delattr attrgetter methodcaller namedtuple timeit doctest "
    "__all__ __dict__ __main__ __slots__ inspect ctypes symtable pickle"
)
_SHOWS_NAMES = words("__name__ __qualname__ __class__ __code__ __wrapped__")
_SAFE_DECORATORS = words(
    "staticmethod classmethod property cache lru_cache abstractmethod cached_property "
    "total_ordering"
)
_WORD = re.compile(r"[^\W\d]\w*")


def rename_python(tree: Tree, draw: random.Random) -> tuple[str, dict[str, str]]:
    """Return the program under its new names, and these by the old ones.

    Raises:
        Unsure: The program makes code of text, or reads its own names.
    """
    program = _PythonNames(tree)
    kinds = {name: program.kind_of(name) for name in program.uses if program.may_change(name)}
    taken = program.uses.keys() | program.attributes | program.arguments | program.fixed
    new = _new_names(kinds, taken, draw)
    return _replaced(tree, [(n, new[name]) for name in new for n in program.uses[name]]), new


class _PythonNames:
    """Which identifiers stand for which names, and where these are bound."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.uses: dict[str, list[int]] = {}  # name -> identifiers that stand for it
        # name -> those of them that give it a value, each with the scope and with what it is there
        self.bound: dict[str, dict[int, tuple[int, str]]] = {}
        self.attributes: set[str] = set()  # what stands behind a dot
        self.arguments: set[str] = set()  # what names an argument of a call
        self.fixed = set(_PYTHON_WORDS)  # imported, or shown by a text
        self._targets: list[bool] = []
        for node, kind in enumerate(tree.kinds):
            self._targets.append(node > 0 and self._is_target(node, tree.parents[node]))
            if kind == "identifier":
                self._read(node, tree.text(node), tree.parent_kind(node), tree.fields[node])
        self._has_splat = any(
            kind == "dictionary_splat" and tree.parent_kind(node) == "argument_list"
            for node, kind in enumerate(tree.kinds)
        )
        self._read_strings()
        is_of_text = any(name in _REFUSED and self._is_free(name) for name in self.uses)
        is_new = {"exec_statement", "type_alias_statement"} & {*tree.kinds}
        if is_of_text or is_new or "type_parameters" in tree.fields:
            raise Unsure

    def _is_target(self, node: int, parent: int) -> bool:
        """Does this part of the program give names a value?"""
        tree = self.tree
        kind, above, field = tree.kinds[node], tree.kinds[parent], tree.fields[node]
        if (above in _LEFT_OF and field == "left") or above in _HEADS:
            return True
        if kind == "as_pattern_target" or above in ("delete_statement", "splat_pattern"):
            return True
        if above in ("named_expression", "default_parameter", "typed_default_parameter"):
            return field == "name"
        if above == "typed_parameter":
            return field != "type"
        if above == "except_clause" and field == "value":
            values = [c for c in tree.children(parent) if tree.fields[c] == "value"]
            return len(values) == 2 and node == values[1]
        if above == "as_pattern" and kind == "identifier":
            return tree.parent_kind(parent) == "case_pattern" and node != parent + 1
        if above == "dotted_name":  # one word in a `case` takes the value
            is_word = tree.ends[parent] == node + 1 == parent + 2
            return is_word and tree.parent_kind(parent) in _CASES
        return above in _PATTERNS and self._targets[parent]

    def _read(self, node: int, name: str, above: str, field: str) -> None:
        tree, parent = self.tree, self.tree.parents[node]
        near = {tree.kinds[up] for up, _ in zip(tree.above(node), range(3), strict=False)}
        if above == "attribute" and field == "attribute":
            self.attributes.add(name)
            return
        if above == "keyword_argument" and field == "name":
            self.arguments.add(name)
            return
        if (
            (above == "keyword_pattern" and node == parent + 1)
            or (above == "dotted_name" and node != parent + 1)
            or PYTHON_IMPORTS & near
        ):
            self.fixed.add(name)
            return
        self.uses.setdefault(name, []).append(node)
        scope, how = self._scope(node), ""
        if above in _DEFINITIONS and field == "name":
            scope, how = self._scope(parent), _DEFINITIONS[above]
        elif above in ("global_statement", "nonlocal_statement"):
            scope, how = 0 if above == "global_statement" else scope, "local"
        elif self._targets[node]:
            how = "parameter" if _HEADS & near else "local"
            while above == "named_expression" and tree.kinds[scope] in _COMPREHENSIONS:
                scope = self._scope(scope)
        if how:
            self.bound.setdefault(name, {})[node] = (scope, how)

    def _scope(self, node: int) -> int:
        """The node that opens the scope in which a node stands, 0 for the module."""
        tree = self.tree
        for up in tree.above(node):
            is_inside = tree.kinds[up] in _COMPREHENSIONS or tree.fields[node] in _INSIDE
            if tree.kinds[up] in _SCOPES and is_inside:
                return up
            node = up
        return 0

    def _read_strings(self) -> None:
        """Fix names that f"{name=}" prints, and those in strings where strings may name things."""
        tree = self.tree
        known = self.uses.keys() | self.fixed - _PYTHON_WORDS | self.attributes
        is_reflective = bool(known & _PYTHON_REFLECTIVE) or b"__main__ import" in tree.source
        for node, kind in enumerate(tree.kinds):
            shows = kind == "interpolation" and "=" in (tree.kinds[c] for c in tree.children(node))
            if shows or (
                kind == "string"
                and (is_reflective or "type" in (tree.kinds[up] for up in tree.above(node)))
            ):
                self.fixed.update(_WORD.findall(tree.text(node)))

    def kind_of(self, name: str) -> str:
        """What a name stands for."""
        hows = {how for _, how in self.bound[name].values()}
        return next((h for h in ("class", "function") if h in hows), _kind_of_variable(name))

    def may_change(self, name: str) -> bool:
        """Is a name this program's own, and known to nothing else?"""
        if name in self.fixed or name.startswith("__") or not name.strip("_"):
            return False
        return not (self._is_free(name) or self._is_known(name) or self._is_unused(name))

    def _is_free(self, name: str) -> bool:
        """Is it used where nothing in the program binds it?"""
        extents = [(s, self.tree.ends[s]) for s, _ in self.bound.get(name, {}).values()]
        return not all(any(a <= node < b for a, b in extents) for node in self.uses[name])

    def _is_known(self, name: str) -> bool:
        """May something else know it: through a dot, by a call, or as the name of a class?"""
        shows_names = self.attributes & _SHOWS_NAMES
        for node, (scope, how) in self.bound[name].items():
            if self.tree.kinds[scope] == "class_definition":
                return True
            is_named = self._has_splat or name in self.arguments
            if how == "parameter" and (is_named or not self._is_plain(scope)):
                return True
            definition = self.tree.parents[node]
            if how in _DEFINITIONS.values() and (shows_names or not self._is_plain(definition)):
                return True
        return False

    def _is_plain(self, definition: int) -> bool:
        """Does a function or class stand under no unknown decorator, and inherit from its own?"""
        tree, parent = self.tree, self.tree.parents[definition]
        if tree.kinds[parent] == "decorated_definition":
            heads = [tree.text(c) for c in tree.children(parent) if tree.kinds[c] == "decorator"]
            names = [(_WORD.findall(head.partition("(")[0]) or [""])[-1] for head in heads]
            if not _SAFE_DECORATORS.issuperset(names):
                return False
        bases = tree.field(definition, "superclasses")
        names = [tree.text(c) for c in tree.children(bases)] if bases is not None else []
        own = {"(", ")", ",", "object", *self.bound}
        return own.issuperset(names)

    def _is_unused(self, name: str) -> bool:
        """Is this a name of the module, or of a definition, that nothing but itself uses?"""
        tree, bound = self.tree, self.bound[name]
        if not any(scope == 0 or how in _DEFINITIONS.values() for scope, how in bound.values()):
            return False
        own = [tree.parents[n] for n, (_, how) in bound.items() if how in _DEFINITIONS.values()]
        readers = [n for n in self.uses[name] if n not in bound]
        return all(any(d <= n < tree.ends[d] for d in own) for n in readers)


# ------------------------------------------------------------------------------------------------
# Java: variables, parameters, private fields, methods and classes.
#
# A name is that of a variable, a method or a class; one that is two of them stays. So do public
# classes at the top, and those with a `main`.


_BODIES = words("class_body interface_body enum_body annotation_type_body")
# What holds a declaration, and so ends where the name is known.
_BLOCKS = words("block constructor_body program")
_EXTENTS = _BLOCKS | words(
    "for_statement enhanced_for_statement lambda_expression catch_clause method_declaration "
    "constructor_declaration compact_constructor_declaration try_with_resources_statement "
    "switch_block_statement_group switch_rule switch_block static_initializer if_statement "
    "while_statement do_statement"
)
# Known as far as the test decides, which may be behind the statement too.
_TESTS = words("instanceof_expression type_pattern record_pattern_component")
_LOCALS = _TESTS | words("formal_parameter catch_formal_parameter enhanced_for_statement resource")
_NOT_NAMES = {  # parent -> fields of identifiers that are no variables; "" is any
    "method_invocation": ("name",),
    "field_access": ("field",),
    "method_declaration": ("name",),
    "constructor_declaration": ("name",),
    "compact_constructor_declaration": ("name",),
    **dict.fromkeys(JAVA_TYPES, ("name",)),
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
_JAVA_REFLECTIVE = words(
    "forName getMethod getDeclaredMethod getMethods getDeclaredMethods getField "
    "getDeclaredField getFields getDeclaredFields getSimpleName getName getClass "
    "getCanonicalName loadLibrary"
)
_OBJECT = words(
    "main toString equals hashCode clone finalize getClass notify notifyAll wait values "
    "valueOf ordinal name compareTo run call apply accept test get close iterator next "
    "hasNext"
)


def rename_java(tree: Tree, draw: random.Random) -> tuple[str, dict[str, str]]:
    """Return the program under its new names, and these by the old ones.

    Raises:
        Unsure: A native method, whose name another program knows.
    """
    names = _JavaNames(tree)
    places: dict[str, list[int]] = {}
    kinds: dict[str, set[str]] = {}
    for node, name, kind in sorted(names.renamable()):
        places.setdefault(name, []).append(node)
        kinds.setdefault(name, set()).add(kind)
    taken = {tree.text(node) for node in names.identifiers} | _JAVA_WORDS
    single = {name: next(iter(kind)) for name, kind in kinds.items() if len(kind) == 1}
    new = _new_names(single, taken, draw)
    return _replaced(tree, [(node, new[name]) for name in new for node in places[name]]), new


class _JavaNames:
    """Which identifiers stand for what, and where variables are known."""

    def __init__(self, tree: Tree) -> None:
        if "native" in tree.kinds:
            raise Unsure
        self.tree = tree
        kinds = words("identifier type_identifier")
        self.identifiers = [n for n, kind in enumerate(tree.kinds) if kind in kinds]
        self.variables: dict[str, list[int]] = {}  # name -> identifiers
        # name -> nodes that know a variable (first, last, whether it is a field)
        self.extents: dict[str, list[tuple[int, int, bool]]] = {}
        self.fields: dict[str, list[int]] = {}  # name -> declarators
        self.types: dict[str, list[int]] = {}  # name -> declarations
        self.methods: dict[str, list[int]] = {}  # name -> declarations
        self.calls: dict[str, list[int]] = {}  # name -> identifiers that name a called method
        self.reached: dict[str, list[int]] = {}  # name -> identifiers behind a dot
        self.other_words: set[str] = set()  # labels, imports, annotations: never touched
        for node in self.identifiers:
            if tree.kinds[node] == "identifier":
                self._read(node, tree.text(node), tree.parent_kind(node), tree.fields[node])

    def renamable(self) -> Iterator[tuple[int, str, str]]:
        """Yield every identifier that may change: its node, its name, its kind."""
        is_reflective = bool(self.calls.keys() & _JAVA_REFLECTIVE)
        for name, nodes in self.variables.items():
            if name in self.types or not name.strip("_$"):
                continue
            is_own = not is_reflective and self._is_own_field_name(name)
            reached = self.reached.get(name, ()) if is_own else ()
            for node in (*(n for n in nodes if self._is_known(name, n, is_own)), *reached):
                yield node, name, _kind_of_variable(name)
        if is_reflective:
            return
        for name, nodes in self.methods.items():
            if self._is_own_method_name(name):
                places = [*(self.tree.field(n, "name") for n in nodes), *self.calls[name]]
                yield from ((node, name, "function") for node in places)
        for name in self.types:
            yield from ((node, name, "class") for node in self._type_places(name))

    def _read(self, node: int, name: str, above: str, field: str) -> None:
        parent = self.tree.parents[node]
        fields = _NOT_NAMES.get(above, ())
        if above in JAVA_TYPES and field == "name":
            self.types.setdefault(name, []).append(parent)
        elif above == "method_declaration" and field == "name":
            self.methods.setdefault(name, []).append(parent)
        elif (above == "method_invocation" and field == "name") or (
            above == "method_reference" and node != parent + 1
        ):
            self.calls.setdefault(name, []).append(node)
        elif above == "field_access" and field == "field":
            self.reached.setdefault(name, []).append(node)
        elif not ("" in fields or field in fields):
            self.variables.setdefault(name, []).append(node)
            self._declare(node, name, above, field)
        elif above != "constructor_declaration":
            self.other_words.add(name)

    def _declare(self, node: int, name: str, above: str, field: str) -> None:
        tree, parent = self.tree, self.tree.parents[node]
        if above == "variable_declarator" and field == "name":
            if tree.parent_kind(parent) in ("field_declaration", "constant_declaration"):
                self.fields.setdefault(name, []).append(parent)
                body = next((up for up in tree.above(node) if tree.kinds[up] in _BODIES), 0)
                self.extents.setdefault(name, []).append((body, tree.ends[body], True))
                return
        elif not (
            (above in _LOCALS and field == "name")
            or above in ("inferred_parameters", "type_pattern", "record_pattern_component")
            or (above == "lambda_expression" and field == "parameters")
        ):
            return
        ends = _BLOCKS if above in _TESTS else _EXTENTS
        for up in tree.above(node):
            if tree.kinds[up] == "record_declaration":
                self.other_words.add(name)  # reached as name() too
                return
            if tree.kinds[up] in ends:
                self.extents.setdefault(name, []).append((node, tree.ends[up], False))
                return

    def _is_known(self, name: str, node: int, is_own_field: bool) -> bool:
        """Is this a local variable here, or a private field of this program?"""
        around = [e for e in self.extents.get(name, ()) if e[0] <= node < e[1]]
        return bool(around) and (is_own_field or not max(around)[2])

    def _is_own_field_name(self, name: str) -> bool:
        """Are all fields of this name private, and only ever reached as such?"""
        declarations = [self.tree.parents[node] for node in self.fields.get(name, ())]
        return (
            bool(declarations)
            and name not in self.other_words
            and all("private" in self._modifiers(node) for node in declarations)
            and all(map(self._is_own_receiver, self.reached.get(name, ())))
        )

    def _modifiers(self, declaration: int) -> set[str]:
        tree = self.tree
        if tree.kinds[declaration + 1] != "modifiers":
            return set()
        return {tree.text(child) for child in tree.children(declaration + 1)}

    def _is_own_receiver(self, node: int) -> bool:
        """Does nothing, `this` or the name of an own class stand before a member?"""
        first = self.tree.parents[node] + 1
        text = self.tree.text(first)
        return first == node or text == "this" or (text in self.types and text not in self.extents)

    def _is_own_method_name(self, name: str) -> bool:
        tree, nodes, calls = self.tree, self.methods[name], self.calls.get(name, ())
        if name in _OBJECT | self.other_words:
            return False
        if all(any(n <= call < tree.ends[n] for n in nodes) for call in calls):
            return False  # nothing else uses it
        return all(map(self._is_own_method, nodes)) and all(map(self._is_own_receiver, calls))

    def _is_own_method(self, node: int) -> bool:
        """Does no type from elsewhere know this method?"""
        modifiers = self._modifiers(node)
        if "@Override" in modifiers or modifiers & {"private", "static"}:
            return "@Override" not in modifiers
        tree, body = self.tree, self.tree.parents[node]
        owner = next((up for up in tree.above(node) if tree.kinds[up] in JAVA_TYPES), None)
        is_in_type = owner is not None and tree.parents[body] == owner
        return tree.kinds[body] == "program" or (is_in_type and not self._inherits(owner))

    def _inherits(self, declaration: int) -> bool:
        """Does a type inherit from one of elsewhere?"""
        tree = self.tree
        kinds = words("superclass super_interfaces extends_interfaces")
        if tree.kinds[declaration] in ("record_declaration", "annotation_type_declaration"):
            return True
        names = {
            tree.text(node)
            for child in tree.children(declaration)
            if tree.kinds[child] in kinds
            for node in range(child, tree.ends[child])
            if tree.kinds[node] == "type_identifier"
        }
        return not names <= self.types.keys() | {"Object"}

    def _type_places(self, name: str) -> list[int]:
        """The identifiers that name a class of this program, or [] where it keeps its name."""
        node, *more = self.types[name]
        places = [n for n in self.identifiers if self.tree.text(n) == name]
        others = (self.other_words, self.extents, self.fields, self.methods, self.calls)
        stays = more or any(name in other for other in others)
        stays = stays or self._inherits(node) or self._is_public(node)
        if stays or not all(map(self._is_class_name, places)):
            return []
        is_used = any(not node <= n < self.tree.ends[node] for n in places)
        return places if is_used else []

    def _is_class_name(self, node: int) -> bool:
        """Does this stand for the class of this program, and not for one in a package?"""
        tree, parent = self.tree, self.tree.parents[node]
        above = tree.kinds[parent]
        if above in ("scoped_type_identifier", "field_access") and node != parent + 1:
            return tree.text(parent + 1) in self.types
        if tree.kinds[node] == "type_identifier":
            return above != "type_parameter"
        is_receiver = above in ("method_invocation", "field_access", "method_reference")
        return is_receiver or above in JAVA_TYPES or "constructor_declaration" in above

    def _is_public(self, node: int) -> bool:
        """Does the file bear this name, or the command that runs it?"""
        is_top = self.tree.parent_kind(node) == "program"
        if is_top and "public" in self._modifiers(node):
            return True
        return any(node <= main < self.tree.ends[node] for main in self.methods.get("main", ()))
