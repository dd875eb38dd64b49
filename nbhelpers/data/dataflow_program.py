"""GraphCodeBERT's data-flow rules on a syntax tree, and the graph of one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple

from nbhelpers.data.syntax import COMMENTS, PACKAGES, Tree, parse
from nbhelpers.errors import ConfigError, DataFlowUnavailable

# ------------------------------------------------------------------------------------------------
# A function as the rules see it: its tree without comments and docstrings, and its tokens.
#
# The leaf rule is the one of GraphCodeBERT's clone detection: a node without children, or a string,
# is a token. Unlike there, columns are bytes throughout, so text beyond ASCII stays whole. Which
# strings of Python are docstrings follows the original's preparation, oddities included.
#
# Source: `tree_to_token_index`, `index_to_code_token` and `remove_comments_and_docstrings` in
# microsoft/CodeBERT, GraphCodeBERT/clonedetection/parser/utils.py at commit 15034c0.


COMPATS = ("maintained", "checkpoint")
_NO_TOKENS = COMMENTS | {"line_continuation"}
_SNIPPET = 40  # characters of the code that a message shows


class Code:
    """The tree of one function with its tokens; a token of several lines loses its line ends."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.kinds = [tree.kinds[leaf] for leaf in tree.leaves]  # (n_tokens,)
        spans = [(tree.starts[leaf], tree.stops[leaf]) for leaf in tree.leaves]
        if tree.source.isascii():
            text = tree.source.decode().replace("\n", "\0")
            self.tokens = [text[start:stop].replace("\0", "") for start, stop in spans]
        else:
            self.tokens = [tree.text(leaf).replace("\n", "") for leaf in tree.leaves]
        # What is said of a token is said of the last one of the same extent: two may be empty.
        self.places = list(range(len(spans)))  # (n_tokens,)
        if "" in self.tokens:
            last = {span: token for token, span in enumerate(spans)}
            self.places = [last[span] for span in spans]
        is_leaf = [0] * (len(tree.kinds) + 1)
        for leaf in tree.leaves:
            is_leaf[leaf + 1] = 1
        self.firsts = list(accumulate(is_leaf))  # (n_nodes + 1,) tokens before the node

    def token_of(self, node: int) -> int | None:
        """Return the token that a node is, or None."""
        first = self.firsts[node]
        return first if self.firsts[node + 1] > first else None


def read_code(code: object, language: object, compat: str) -> Code:
    """Return a function with its tokens.

    Raises:
        ConfigError: `compat` is no known value.
        DataFlowUnavailable: The language is unknown, its grammar is not installed, or the code is
            no text or has no token.
    """
    language = require_language(language, compat)
    if not isinstance(code, str):
        raise DataFlowUnavailable(
            f"The code is of type {type(code).__name__}, not str.",
            fix="give the text of a function",
        )
    try:
        source = code.encode()
    except UnicodeEncodeError as error:
        raise DataFlowUnavailable(
            f"The code has a lone surrogate at character {error.start}, which UTF-8 cannot hold.",
            fix="read the file again with the right encoding",
        ) from error
    whole = {"string"}
    if (language, compat) == ("java", "checkpoint"):
        whole |= {"string_literal", "character_literal"}
    if language == "python":
        source = _without_docstrings(source)
    tree = parse(source, language, whole=frozenset(whole), skipped=_NO_TOKENS)
    if not any(tree.stops[leaf] > tree.starts[leaf] for leaf in tree.leaves):
        raise DataFlowUnavailable(
            "The code has only comments." if code.strip() else "The code is empty.",
            fix="remove this function, or give its text",
        )
    return Code(tree)


def require_language(language: object, compat: str) -> str:
    """Return the language.

    Raises:
        DataFlowUnavailable: It is unknown.
        ConfigError: `compat` is no known value.
    """
    if not isinstance(language, str) or language not in PACKAGES:
        raise DataFlowUnavailable(
            f"There is no data flow for the language {language!r}.",
            fix=f"take one of: {', '.join(PACKAGES)}",
        )
    if compat not in COMPATS:
        raise ConfigError(
            f"grammar_compat is {compat!r}.", fix=f"take one of: {', '.join(COMPATS)}"
        )
    return language


def _without_docstrings(source: bytes) -> bytes:
    """Return Python with blanks for the strings that the original takes for docstrings.

    These are the strings that begin a line in its first column, or a statement directly behind a
    line end or an indentation; an empty line, a comment or the end of a block before it keeps one.
    """
    tree = parse(source, "python", whole=frozenset({"string"}))
    text = bytearray(source)
    before = -1  # the leaf before
    for leaf in tree.leaves:
        if tree.kinds[leaf] == "string" and _is_docstring(tree, leaf, before):
            start, stop = tree.starts[leaf], tree.stops[leaf]
            text[start:stop] = bytes(10 if byte == 10 else 32 for byte in source[start:stop])
        before = leaf
    return bytes(text)


def _is_docstring(tree: Tree, string: int, before: int) -> bool:
    if not _begins_line(tree, string):
        return False
    start = tree.starts[string]
    if tree.source[start - 1 : start] in (b"", b"\n"):
        return True
    block = tree.parents[string]
    while tree.kinds[block] not in ("block", "module"):
        if tree.starts[block] != start:
            return False  # inside of a statement
        block = tree.parents[block]
    if before < 0 or (tree.kinds[block] == "block" and tree.starts[block] == start):
        return True
    if tree.source.count(b"\n", tree.stops[before], start) != 1:
        return False
    if tree.kinds[before] == "comment":
        if _begins_line(tree, before):
            return False
        before = max(leaf for leaf in tree.leaves if leaf < before)
    inner = next((up for up in tree.above(before) if tree.kinds[up] == "block"), block)
    return inner == block or not _begins_line(tree, inner)


def _begins_line(tree: Tree, node: int) -> bool:
    start = tree.starts[node]
    return not tree.source[tree.source.rfind(b"\n", 0, start) + 1 : start].strip()


def _problem(tree: Tree) -> str:
    """Say what the parser skipped or missed first, with its line."""
    if tree.clean:
        return ""
    errors = [node for node, kind in enumerate(tree.kinds) if kind == "ERROR"]
    errors += [leaf for leaf in tree.leaves if tree.starts[leaf] == tree.stops[leaf]]
    if not errors:  # what is missing belongs to a hidden node
        return "the parser recovered from an error; read as far as it did"
    node = min(errors, key=lambda node: (tree.starts[node], node))
    if tree.kinds[node] != "ERROR":
        what = f"a {tree.kinds[node]!r} is missing"
    else:
        text = tree.text(node)
        snippet = " ".join(text.split()) or text  # a lone line separator is white space to Python
        what = f"{snippet[:_SNIPPET] + '…' * (len(snippet) > _SNIPPET)!r} does not fit"
    return f"line {tree.line_of(node)}: {what}; read as far as the parser recovered"


# ------------------------------------------------------------------------------------------------
# What the rules of GraphCodeBERT's data flow do with a syntax tree, as a small program.
#
# The program holds reads of tokens, writes, choices (`if`) and loops; running it gives the edges.
# The rules are those of `DFG_java` and `DFG_python`, their oddities included: a statement that is
# no rule's business just shows its children in order.
#
# Source: microsoft/CodeBERT, GraphCodeBERT/clonedetection/parser/DFG.py.


COMES_FROM, COMPUTED_FROM = 0, 1

# Edges and their parents; a graph beyond is refused. The largest of the 9,134 functions of
# BigCloneBench has 3,508 edges; what gets here is a chain of thousands of assignments in one
# statement, whose edges grow with its square.
MAX_SIZE = 8_000_000


class NoGraph(Exception):
    """The original's rules break off on this code; the text says where and why."""


class TooLarge(Exception):
    """The graph, or what has to be kept while it is made, is beyond the bounds."""


@dataclass(slots=True, eq=False)
class Write:
    """Targets get a new value from the sources.

    `apart`: an edge for each pair of target and source, else one edge to all sources of a target.
    """

    kind: int
    targets: list[int]
    sources: tuple[int, ...]
    apart: bool


@dataclass(slots=True, eq=False)
class Choice:
    """Blocks that each start from the state before; afterwards the states are united."""

    blocks: list[Block] = field(default_factory=list)
    may_skip: bool = False  # the state before counts as a further outcome


@dataclass(slots=True, eq=False)
class Loop:
    """`head` once, then `body` once or twice; the edges of a token and kind become one edge."""

    names: list[int]
    passes: int = 2
    head: Block = field(default_factory=list)
    body: Block = field(default_factory=list)


Item = int | Write | Choice | Loop
Block = list[Item]


@dataclass(slots=True, kw_only=True)
class Program:
    """A block of items, and what they need to know of the tokens.

    An item that is a number reads this token.
    """

    block: Block
    names: list[int]  # (n_tokens,) equal texts, equal numbers; -1 for keywords and punctuation
    defines: list[bool]  # (n_tokens,) reading it for the first time gives its name a value


def compile_program(code: Code, language: str, compat: str) -> Program:
    """Return the program of a tree, in time linear in the tree.

    Raises:
        NoGraph: The original's rules break off on this code.
        TooLarge: The writes alone have more than `MAX_SIZE` sources.
    """
    compiler = _Compiler(code, strings_have_parts=compat != "checkpoint")
    rules, default = _RULES[language]
    tree = code.tree
    block: Block = []
    todo: list[tuple[int | _Emit, Block]] = [(0, block)]
    while todo:
        what, target = todo.pop()
        if isinstance(what, _Emit):
            target.append(what.item)
            continue
        is_leaf = code.token_of(what) is not None or tree.ends[what] == what + 1
        rule = _Compiler.leaf if is_leaf else rules.get(tree.kinds[what], default)
        steps = rule(compiler, what, target)
        todo.extend(reversed(steps))
    return Program(
        block=block,
        names=compiler.names,
        defines=[kind == "identifier" for kind in code.kinds],
    )


@dataclass(slots=True)
class _Emit:
    """An item to append once the nodes before it are done."""

    item: Item


Steps = list[tuple[int | _Emit, Block]]


class _Compiler:
    """One method for each rule: it returns what to do next, in order, and into which block."""

    def __init__(self, code: Code, *, strings_have_parts: bool) -> None:
        self.code, self.tree, self.strings_have_parts = code, code.tree, strings_have_parts
        self.sources = 0
        numbers: dict[str, int] = {}
        self.names = [
            -1 if kind == text else numbers.setdefault(text, len(numbers))
            for kind, text in zip(code.kinds, code.tokens, strict=True)
        ]
        # Variables: tokens that are no keyword or sign. `before[i]`: variables before token i.
        self.variables: list[int] = []
        self.before: list[int] = []
        for token, name in enumerate(self.names):
            self.before.append(len(self.variables))
            if name >= 0:
                self.variables.append(code.places[token])
        self.before.append(len(self.variables))

    def variables_of(self, node: int) -> list[int]:
        """Tokens of a subtree that are no keyword or sign."""
        firsts = self.code.firsts
        low, high = firsts[node], firsts[self.tree.ends[node]]
        return self.variables[self.before[low] : self.before[high]]

    def write(self, kind: int, targets: int, sources: int | None, *, apart: bool) -> _Emit:
        source_variables = tuple(self.variables_of(sources)) if sources is not None else ()
        self.sources += len(source_variables)
        if self.sources > MAX_SIZE:
            raise TooLarge
        return _Emit(Write(kind, self.variables_of(targets), source_variables, apart))

    def loop(self, node: int, *, passes: int = 2) -> Loop:
        return Loop(sorted({self.names[i] for i in self.variables_of(node)}), passes)

    def leaf(self, node: int, block: Block) -> Steps:
        token = self.code.token_of(node)
        if token is not None and self.names[token] >= 0:
            block.append(token)
        return []

    def children(self, node: int, block: Block) -> Steps:
        return [(child, block) for child in self.tree.children(node)]

    def declaration(self, node: int, block: Block) -> Steps:
        """`int a = b` or a default `a=b`: each name comes from each part of the value."""
        name, value = self.tree.field(node, "name"), self.tree.field(node, "value")
        if name is None:
            return self.children(node, block)
        emit = self.write(COMES_FROM, name, value, apart=value is not None)
        return [(emit, block)] if value is None else [(value, block), (emit, block)]

    def twice(self, node: int, block: Block) -> Steps:
        """`while`: the children, two times."""
        loop = self.loop(node)
        block.append(loop)
        return self.children(node, loop.body)

    # Java

    def java_assignment(self, node: int, block: Block) -> Steps:
        left, right = self.tree.field(node, "left"), self.tree.field(node, "right")
        if left is None or right is None:
            return self.children(node, block)
        return [(right, block), (self.write(COMPUTED_FROM, left, right, apart=True), block)]

    def java_update(self, node: int, block: Block) -> Steps:
        """`a[i]++`: every variable of it is computed from every one."""
        return [(self.write(COMPUTED_FROM, node, node, apart=True), block)]

    def java_if(self, node: int, block: Block) -> Steps:
        """Condition and first branch in one block; from `else` on, each child starts anew.

        A branch that is itself an `if`, without braces, also starts from the state before and only
        adds outcomes: a chain of them is one choice, so its cost does not grow with its square.
        """
        choice, steps = Choice(), []
        block.append(choice)
        waiting = [node]
        while waiting:
            first: Block = []
            choice.blocks.append(first)
            anew = has_else = False
            for child in self.tree.children(waiting.pop()):
                kind = self.tree.kinds[child]
                has_else = has_else or "else" in kind
                anew = anew or kind in ("if_statement", "else")
                if not anew:
                    steps.append((child, first))
                elif kind == "if_statement":
                    waiting.append(child)
                else:  # `else` itself, a block that changes nothing, lets the state before remain
                    choice.blocks.append([])
                    steps.append((child, choice.blocks[-1]))
            choice.may_skip = choice.may_skip or not has_else
        return steps

    def java_for(self, node: int, block: Block) -> Steps:
        """All children; then again those that follow a declaration, if there is one."""
        loop = self.loop(node, passes=1)
        block.append(loop)
        steps: Steps = []
        for child in self.tree.children(node):
            steps.append((child, loop.body if loop.passes == 2 else loop.head))
            if self.tree.kinds[child] == "local_variable_declaration":
                loop.passes = 2
        return steps

    def java_for_each(self, node: int, block: Block) -> Steps:
        name, value, body = (self.tree.field(node, f) for f in ("name", "value", "body"))
        if name is None or value is None or body is None:
            return self.twice(node, block)
        loop = self.loop(node)
        block.append(loop)
        emit = self.write(COMPUTED_FROM, name, value, apart=True)
        return [(value, loop.body), (emit, loop.body), (body, loop.body)]

    # Python

    def python_children(self, node: int, block: Block) -> Steps:
        """The loops of a comprehension come before what they feed."""
        kinds = self.tree.kinds
        order = sorted(self.tree.children(node), key=lambda c: kinds[c] != "for_in_clause")
        return [(child, block) for child in order]

    def python_assignment(self, node: int, block: Block) -> Steps:
        left, right = self.tree.field(node, "left"), self.tree.field(node, "right")
        if self.tree.kinds[node] != "for_in_clause":
            if right is None:  # an annotation alone
                return []
            return self.pairs(node, left, right, block)
        if left is None:
            return self.children(node, block)
        *_, last = self.tree.children(node)
        return [(last, block), (self.write(COMPUTED_FROM, left, last, apart=False), block)]

    def pairs(self, node: int, left: int | None, right: int, block: Block) -> Steps:
        """Evaluate the right side; then write left parts from right parts where they pair off."""
        if left is None:
            return self.children(node, block)
        lefts, rights = self.items(left), self.items(right)
        if len(lefts) != len(rights) or not lefts:
            lefts, rights = [left], [right]
        steps: Steps = [(source, block) for source in rights]
        for target, source in zip(lefts, rights, strict=True):
            steps.append((self.write(COMPUTED_FROM, target, source, apart=False), block))
        if self.strings_have_parts:
            self.check_string(left, right)
        return steps

    def items(self, node: int) -> list[int]:
        """Children other than commas; a string shows none."""
        if self.code.token_of(node) is not None:
            return []
        return [c for c in self.tree.children(node) if self.tree.kinds[c] != ","]

    def check_string(self, left: int, right: int) -> None:
        """Refuse a target with as many parts as the string has, as the original does.

        It pairs the target's parts with the parts of the string, which are no tokens, fails to find
        them, and drops the whole graph. In `self.a = "b"` both sides have three.
        """
        if self.code.token_of(right) is None or not self.tree.clean:
            return
        parts = sum(1 for _ in self.tree.children(right))
        if not parts or parts != len(self.items(left)):
            return
        firsts = self.code.firsts
        text = " ".join(self.code.tokens[firsts[left] : firsts[right] + 1])
        raise NoGraph(
            f"line {self.tree.line_of(left)}: the original's rule pairs the {parts} parts of the "
            f"target with those of a string and breaks off ({text[:60]}), so this function has no "
            'edges; grammar_compat="checkpoint" keeps the string whole'
        )

    def python_if(self, node: int, block: Block) -> Steps:
        """Condition and first branch in one block; each `elif` and `else` starts anew."""
        choice = Choice([[]], may_skip=True)
        block.append(choice)
        steps: Steps = []
        for child in self.tree.children(node):
            kind = self.tree.kinds[child]
            if kind in ("elif_clause", "else_clause"):
                choice.blocks.append([])
            target = choice.blocks[-1 if kind in ("elif_clause", "else_clause") else 0]
            choice.may_skip = choice.may_skip and "else" not in kind
            steps.append((child, target))
        return steps

    def python_for(self, node: int, block: Block) -> Steps:
        """Values, targets and, only where it stands last, the body: two times."""
        left, right = self.tree.field(node, "left"), self.tree.field(node, "right")
        if left is None or right is None:
            return self.twice(node, block)
        loop = self.loop(node)
        block.append(loop)
        steps = self.pairs(node, left, right, loop.body)
        *_, last = self.tree.children(node)
        return [*steps, (last, loop.body)] if self.tree.kinds[last] == "block" else steps


Rule = Callable[[_Compiler, int, Block], Iterable[tuple[int | _Emit, Block]]]

_JAVA: dict[str, Rule] = {
    "variable_declarator": _Compiler.declaration,
    "assignment_expression": _Compiler.java_assignment,
    "update_expression": _Compiler.java_update,
    "if_statement": _Compiler.java_if,
    "for_statement": _Compiler.java_for,
    "enhanced_for_statement": _Compiler.java_for_each,
    "while_statement": _Compiler.twice,
}
_PYTHON: dict[str, Rule] = {
    "default_parameter": _Compiler.declaration,
    "assignment": _Compiler.python_assignment,
    "augmented_assignment": _Compiler.python_assignment,
    "for_in_clause": _Compiler.python_assignment,
    "if_statement": _Compiler.python_if,
    "for_statement": _Compiler.python_for,
    "while_statement": _Compiler.twice,
}
_RULES: dict[str, tuple[dict[str, Rule], Rule]] = {
    "java": (_JAVA, _Compiler.children),
    "python": (_PYTHON, _Compiler.python_children),
}


# ------------------------------------------------------------------------------------------------
# Running a data-flow program: which tokens get their value from which.
#
# The state maps a name to the tokens that gave it its present value. A choice runs each block from
# the same state and unites what comes out. A loop's body is not walked again for each pass of each
# loop around it, which would take 2**depth walks: it is run once with a *marker* for the value that
# each name brings along, and a pass replaces the markers by these values. That is exact, because
# what a body does to one name never depends on the tokens that another name stands for, only on
# whether a name has a value at all, and for each set of names without one the body is run anew (in
# practice twice: on first sight, and with all names known).


Parents = tuple[int, ...]
Row = tuple[int, int, Parents]  # token, kind, tokens the value comes from


def run_program(program: Program, code: Code) -> list[Row]:
    """Return the edges in the order of their tokens, those kept by the original's last filter.

    Kept is every edge of a token that has a parent or is one.

    Raises:
        TooLarge: More than `MAX_SIZE` edges and parents.
    """
    rows: list[Row] = []
    _drive(_Runner(program, code).block(program.block, _State(), rows))
    rows.sort(key=lambda row: row[0])  # stable: equals sorting at every level
    linked = {row[0] for row in rows if row[2]}
    linked.update(chain.from_iterable(row[2] for row in rows))
    return [row for row in rows if row[0] in linked]


def _drive(task: Iterator[Iterator]) -> None:
    """Run a task that yields the tasks it waits for, without recursion."""
    stack = [task]
    while stack:
        waits_for = next(stack[-1], None)
        if waits_for is None:
            stack.pop()
        else:
            stack.append(waits_for)


class _State:
    """The values of names; `before` holds what a name had when the present block began."""

    def __init__(self, values: dict[int, Parents] | None = None) -> None:
        self.values: dict[int, Parents] = values or {}
        self.before: dict[int, Parents | None] = {}

    def put(self, name: int, value: Parents) -> None:
        if name not in self.before:
            self.before[name] = self.values.get(name)
        self.values[name] = value

    def changes(self) -> dict[int, Parents]:
        """What the present block has changed."""
        return {name: self.values[name] for name in self.before}

    def undo(self) -> None:
        """Go back to where the present block began."""
        for name, value in self.before.items():
            if value is None:
                del self.values[name]
            else:
                self.values[name] = value


class _Runner:
    """Runs blocks; the methods are tasks of `_drive`."""

    def __init__(self, program: Program, code: Code) -> None:
        self.names, self.defines, self.places = program.names, program.defines, code.places
        self.known: dict[tuple[Loop, Parents], tuple[list[Row], dict[int, Parents]]] = {}
        self.room = MAX_SIZE

    def spend(self, size: int) -> None:
        """Keep account of rows and their parents, so that memory cannot explode."""
        self.room -= size
        if self.room < 0:
            raise TooLarge

    def block(self, block: Block, state: _State, rows: list[Row]) -> Iterator[Iterator]:
        values, names, places = state.values, self.names, self.places
        spent = 0
        for item in block:
            if isinstance(item, int):
                name, place = names[item], places[item]
                value = values.get(name)
                if value is None:
                    value = ()
                    if self.defines[item]:
                        state.put(name, (place,))
                rows.append((place, COMES_FROM, value))
                spent += 1 + len(value)
                continue
            self.spend(spent)
            spent = 0
            if isinstance(item, Write):
                self.write(item, state, rows)
            elif isinstance(item, Choice):
                yield self.choice(item, state, rows)
            else:
                yield self.loop(item, state, rows)
        self.spend(spent)

    def write(self, item: Write, state: _State, rows: list[Row]) -> None:
        groups = [(source,) for source in item.sources] if item.apart else [item.sources]
        self.spend(len(item.targets) * (len(groups) + len(item.sources)))
        rows.extend((t, item.kind, group) for t in item.targets for group in groups)
        for target in item.targets:
            state.put(self.names[target], (target,))

    def choice(self, item: Choice, state: _State, rows: list[Row]) -> Iterator[Iterator]:
        around = state.before
        outcomes: dict[int, list[Parents]] = {}
        for block in item.blocks:
            state.before = {}
            yield self.block(block, state, rows)
            for name, value in state.changes().items():
                outcomes.setdefault(name, []).append(value)
            state.undo()
        state.before = around
        for name, values in outcomes.items():
            old = state.values.get(name)
            if old is not None and (item.may_skip or len(values) < len(item.blocks)):
                values.append(old)
            state.put(name, _union(values))

    def loop(self, item: Loop, state: _State, rows: list[Row]) -> Iterator[Iterator]:
        own: list[Row] = []
        yield self.block(item.head, state, own)
        for _ in range(item.passes):
            yield self.one_pass(item, state, own)
        rows.extend(self.merged(own))

    def one_pass(self, item: Loop, state: _State, rows: list[Row]) -> Iterator[Iterator]:
        """The body once, by putting the present values for the markers of its one run."""
        unknown = tuple(name for name in item.names if name not in state.values)
        effect = self.known.get((item, unknown))
        if effect is None:
            missing = set(unknown)
            marked = _State({name: (~name,) for name in item.names if name not in missing})
            body: list[Row] = []
            yield self.block(item.body, marked, body)
            effect = self.known[item, unknown] = (body, marked.changes())
        fill = _Filler(state.values)
        for token, kind, parents in effect[0]:
            filled = fill[parents] if parents and parents[0] < 0 else parents
            self.spend(1 + len(filled))
            rows.append((token, kind, filled))
        for name, value in {n: fill[v] for n, v in effect[1].items()}.items():
            state.put(name, value)

    def merged(self, rows: list[Row]) -> Iterable[Row]:
        """One row for each token and kind, from all its parents in ascending order."""
        parts_of: dict[tuple[int, int], list[Parents]] = {}
        for token, kind, parents in rows:
            parts_of.setdefault((token, kind), []).append(parents)
            self.room += 1 + len(parents)
        for (token, kind), parts in parts_of.items():
            parents = _union(parts)
            self.spend(1 + len(parents))
            yield token, kind, parents


def _union(values: list[Parents]) -> Parents:
    """A single value as it is; several as one, ascending."""
    first = values[0]
    if len(values) == 1 or (len(first) == 1 and all(value == first for value in values)):
        return first
    whole = tuple(sorted(set().union(*values)))
    return first if whole == first else whole


class _Filler(dict[Parents, Parents]):
    """Values with each marker (the complement of a name) replaced by the name's tokens."""

    def __init__(self, values: dict[int, Parents]) -> None:
        self.present = values

    def __missing__(self, parents: Parents) -> Parents:
        if not parents or parents[0] >= 0:
            return parents
        parts = [self.present[~p] if p < 0 else (p,) for p in parents]
        filled = parts[0] if len(parts) == 1 else tuple(sorted(set().union(*parts)))
        self[parents] = filled
        return filled


# ------------------------------------------------------------------------------------------------
# The graph of one function as an object, and how it is made of its text.


KINDS = ("comesFrom", "computedFrom")


class Edge(NamedTuple):
    """A token and the tokens that its value comes from; a token may have several edges.

    `parent_indices` is empty for a token that is only the parent of others.
    """

    token_index: int
    kind: str  # "comesFrom" | "computedFrom"
    parent_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """Tokens of a function and the edges between them, in the order of their tokens.

    Args:
        problem: "" or what the parser recovered from, or why there are no edges, with its line.
    """

    tokens: list[str]
    edges: list[Edge]
    problem: str

    def __repr__(self) -> str:
        problem = f"; {self.problem}" if self.problem else ""
        return f"DataFlow({len(self.tokens):,} tokens, {len(self.edges):,} edges{problem})"


def read_function(code: str, language: str, compat: str) -> tuple[list[str], list[Row], str, bool]:
    """Return tokens, edges, the problem or "", and whether the graph is too large to make.

    Raises:
        DataFlowUnavailable: There are no tokens, for a reason that it names.
    """
    function = read_code(code, language, compat)
    try:
        rows = run_program(compile_program(function, language, compat), function)
    except NoGraph as error:
        return function.tokens, [], str(error), False
    except TooLarge:
        reason = f"The data flow has more than {MAX_SIZE:,} edges and parents."
        return function.tokens, [], reason, True
    return function.tokens, rows, _problem(function.tree), False
