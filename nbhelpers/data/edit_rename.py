"""New names for what a Python or Java program declares."""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nbhelpers.data.edit_tree import Syntax, Unsure, words

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

JAVA_WORDS = words(
    "abstract assert boolean break byte case catch char class const continue default do "
    "double else enum extends final finally float for goto if implements import instanceof "
    "int interface long native new package private protected public return short static "
    "strictfp super switch synchronized this throw throws transient try void volatile while "
    "var yield record sealed permits true false null when module"
)
PYTHON_WORDS = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins)]) | words(
    "print exec self cls raw_input xrange unicode long reduce basestring unichr cmp file "
    "execfile reload buffer apply intern coerce raw"
)


def new_names(
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


def kind_of_variable(name: str) -> str:
    """A name in capitals stays one."""
    return "constant" if len(name) > 1 and name.isupper() else "variable"


# ------------------------------------------------------------------------------------------------
# Which identifiers of a Python program stand for which names, and where these are bound.
#
# A name is looked up as Python does it: in its scope, then in those around it, where the scope of a
# class is seen from the class alone. Comprehensions have scopes of their own, as in Python 3; what
# Python 2 lets out of them looks unbound here, and such names are left alone.


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


# ------------------------------------------------------------------------------------------------
# New names for the variables, parameters, functions, classes and methods of a Python program.
#
# The program means the same afterwards. One old name becomes one new name all over the program, or
# stays: what is imported, built in, bound nowhere, an attribute, or looked up by its text.
# Functions, classes, methods and global variables that nothing in the program uses stay as well:
# they may be what others call. Methods get new names only where every receiver is known to be of a
# class of this program that inherits from nothing else.


# Code that is made of text, or names that are read as text: then no name is safe.
_REFUSED = words("eval exec execfile locals globals vars dir compile __import__")
# Names may be looked up by the text of a string: then the words of all strings stay.
_PYTHON_REFLECTIVE = words(
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
    plan = _PythonPlan(names)
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
    out, stop = [], 0
    for node, text in sorted(places):
        out += [syntax.source[stop : syntax.starts[node]], text.encode()]
        stop = syntax.stops[node]
    return b"".join([*out, syntax.source[stop:]]).decode()


class _PythonPlan:
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
        kind_of: dict[str, str] = {}
        for use in self.names.uses:
            name = use.name
            if name in self.kept or name in kind_of or name.startswith("__") or not name.strip("_"):
                continue
            how = self.how.get(name, set()) | self.class_bound.get(name, set())
            kind = "function" if "def" in how else kind_of_variable(name)
            kind_of[name] = "class" if "class" in how else kind
        return kind_of

    def _definitions(self, kind: str) -> dict[str, list[int]]:
        """The nodes that define functions or classes, by name."""
        nodes: dict[str, list[int]] = {}
        for node, node_kind in enumerate(self.syntax.kinds):
            if node_kind == kind:
                name = self.syntax.field(node, "name")
                if name is not None:
                    nodes.setdefault(self.syntax.text(name), []).append(node)
        return nodes

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
        names = []
        for child in self.syntax.children(parent):
            if self.syntax.kinds[child] == "decorator":
                words = _WORD.findall(self.syntax.text(child).partition("(")[0])
                names.append(words[-1] if words else "")
        return names

    def _is_safely_decorated(self, node: int) -> bool:
        return all(name in _SAFE_DECORATORS for name in self._decorators(node))

    def _methods(self) -> set[str]:
        """Names of methods whose receivers are all known."""
        methods = set()
        for name, how in self.class_bound.items():
            nodes = [n for n in self.functions.get(name, ()) if self._scope_kind(n) == "class"]
            is_plain = (
                how == {"def"} and not name.startswith("__") and name not in _KNOWN_ATTRIBUTES
            )
            if is_plain and all(self._in_closed(n) and self._is_safely_decorated(n) for n in nodes):
                methods.add(name)
        instances = self._instances()
        called = set()
        for node in self.names.attributes:
            name = self.syntax.text(node)
            if name in methods:
                called.add(name)
                if not self._is_known_receiver(self.syntax.parents[node] + 1, instances):
                    methods.discard(name)
        return methods & called

    def _in_closed(self, node: int) -> bool:
        owner = self.names.scopes[self.names.node_scopes[node]].node
        name = self.syntax.field(owner, "name")
        return name is not None and self.syntax.text(name) in self.closed

    def _instances(self) -> set[str]:
        """Variables that are only ever given an object of a closed class."""
        always_instance: dict[str, bool] = {}
        for use in self.names.uses:
            if use.binds:
                is_one = self._is_given_instance(use)
                always_instance[use.name] = always_instance.get(use.name, True) and is_one
        return {name for name, always in always_instance.items() if always}

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
        kinds, names_in_strings = self.syntax.kinds, set()
        words = {use.name for use in self.names.uses} | self.names.imported
        words |= {self.syntax.text(node) for node in self.names.attributes}
        is_reflective = bool(words & _PYTHON_REFLECTIVE) or b"__main__ import" in self.syntax.source
        for node in self.syntax.leaves:
            if kinds[node] == "string" and (
                is_reflective or "type" in (kinds[u] for u in self.syntax.above(node))
            ):
                names_in_strings.update(_WORD.findall(self.syntax.text(node)))
        return names_in_strings

    def _by_keyword(self) -> set[str]:
        """Parameters that a call may name although it is not known which function it calls."""
        parameters: set[str] = set()
        for node in self.names.keywords:
            name = self.syntax.text(node)
            call = self.syntax.parents[self.syntax.parents[self.syntax.parents[node]]]
            callee = self.syntax.text(call + 1)
            if self.syntax.kinds[call + 1] == "identifier" and self._is_own_function(callee):
                if all(name in self._parameters(n) for n in self.functions[callee]):
                    self.own_keywords.add(node)
                elif any(name in self._parameters(n) for n in self.functions[callee]):
                    parameters.add(name)
            elif callee not in self.names.free or callee not in PYTHON_WORDS:
                parameters.add(name)
        for node, kind in enumerate(self.syntax.kinds):
            if kind == "dictionary_splat" and self.syntax.parent_kind(node) == "argument_list":
                parameters |= {name for name, how in self.how.items() if "param" in how}
        return {name for name in parameters if "param" in self.how.get(name, ())}

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
        called_by_name: set[str] = set()
        for name, nodes in self.functions.items():
            for node in nodes:
                if not self._is_safely_decorated(node):
                    called_by_name |= {name} | self._parameters(node)
        return called_by_name


# ------------------------------------------------------------------------------------------------
# New names for the variables, parameters, private fields, methods and classes of a Java program.
#
# The program means the same afterwards. One old name becomes one new name wherever it stands for
# the same kind of thing (variable, method, class), or stays: what is inherited, what others may
# call, what is reached through a receiver whose class this program does not define. Methods and
# classes that nothing in the program uses stay, as do public classes at the top and those with a
# `main`.


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


def rename_java(syntax: Syntax, draw: random.Random) -> tuple[str, dict[str, str]]:
    """Return the program under its new names, and these by the old ones.

    Raises:
        Unsure: A native method, whose name another program knows.
    """
    plan = _JavaPlan(syntax)
    places: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for node, name, kind in sorted(plan.found()):
        places.setdefault(name, []).append(node)
        kinds.setdefault(name, kind)
    taken = {syntax.text(n) for n in plan.identifiers} | JAVA_WORDS
    new = new_names(kinds, taken, draw)
    return replaced(syntax, [(n, new[name]) for name in new for n in places[name]]), new


class _JavaPlan:
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
        self.is_reflective = bool(self.calls.keys() & _JAVA_REFLECTIVE)
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
        return [identifier for identifier in every if len(kinds[identifier[1]]) == 1]

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
