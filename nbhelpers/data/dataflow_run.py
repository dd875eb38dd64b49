"""Running a data-flow program: which tokens get their value from which.

The state maps a name to the tokens that gave it its present value. A choice runs each block from
the same state and unites what comes out. A loop's body is not walked again for each pass of each
loop around it, which would take 2**depth walks: it is run once with a *marker* for the value that
each name brings along, and a pass replaces the markers by these values. That is exact, because what
a body does to one name never depends on the tokens that another name stands for, only on whether a
name has a value at all, and for each set of names without one the body is run anew (in practice
twice: on first sight, and with all names known).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from .dataflow_program import (
    COMES_FROM,
    MAX_EDGES,
    MAX_PARENTS,
    Block,
    Choice,
    Loop,
    Program,
    TooLarge,
    Write,
)
from .dataflow_tree import Tree

Parents = tuple[int, ...]
Row = tuple[int, int, Parents]  # token, kind, tokens the value comes from

# Added to a kind while the program runs: the row stands for one edge to each of its parents.
_APART = 2


def run_program(program: Program, tree: Tree) -> list[Row]:
    """Return the edges in the order of their tokens, those kept by the original's last filter.

    Kept is every edge of a token that has a parent or is one.

    Raises:
        TooLarge: More than `MAX_EDGES` edges or `MAX_PARENTS` parents.
    """
    rows: list[Row] = []
    _drive(_Runner(program, tree).block(program.block, _State(), rows))
    edges = sum(len(row[2]) if row[1] & _APART else 1 for row in rows)
    if edges > MAX_EDGES or sum(len(row[2]) for row in rows) > MAX_PARENTS:
        raise TooLarge
    rows.sort(key=lambda row: row[0])  # stable: equals sorting at every level
    linked = {row[0] for row in rows if row[2]}
    linked.update(chain.from_iterable(row[2] for row in rows))
    return list(_spread(row for row in rows if row[0] in linked))


def _spread(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the edges that each row stands for."""
    for row in rows:
        if row[1] & _APART:
            token, kind, parents = row
            for parent in parents:
                yield token, kind - _APART, (parent,)
        else:
            yield row


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

    def __init__(self, program: Program, tree: Tree) -> None:
        self.names, self.defines, self.places = program.names, program.defines, tree.places
        self.known: dict[tuple[Loop, Parents], tuple[list[Row], dict[int, Parents]]] = {}
        self.charged: dict[int, Parents] = {}  # the value of a name that was counted last
        self.edges = self.parents = 0

    def count(self, edges: int, parents: int) -> None:
        """Keep account of rows and of the tuples in them, so that memory cannot explode."""
        self.edges += edges
        self.parents += parents
        if self.edges > MAX_EDGES or self.parents > MAX_PARENTS:
            raise TooLarge

    def block(self, block: Block, state: _State, rows: list[Row]) -> Iterator[Iterator]:
        values, names, places = state.values, self.names, self.places
        read = held = 0
        for item in block:
            if isinstance(item, int):
                name, place = names[item], places[item]
                value = values.get(name)
                if value is None:
                    value = ()
                    if self.defines[item]:
                        state.put(name, (place,))
                elif len(value) > 1 and self.charged.get(name) is not value:
                    self.charged[name] = value
                    held += len(value)
                rows.append((place, COMES_FROM, value))
                read += 1
                continue
            self.count(read, held)
            read = held = 0
            if isinstance(item, Write):
                self.write(item, state, rows)
            elif isinstance(item, Choice):
                yield self.choice(item, state, rows)
            else:
                yield self.loop(item, state, rows)
        self.count(read, held)

    def write(self, item: Write, state: _State, rows: list[Row]) -> None:
        kind = item.kind + _APART if item.apart else item.kind
        if item.sources or not item.apart:
            rows.extend((target, kind, item.sources) for target in item.targets)
        self.count(len(item.targets), 0)
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
            rows.append((token, kind, filled))
        self.count(len(effect[0]), sum(map(len, fill.values())))
        for name, value in {n: fill[v] for n, v in effect[1].items()}.items():
            state.put(name, value)

    def merged(self, rows: list[Row]) -> Iterable[Row]:
        """One row for each token and kind, from all its parents in ascending order."""
        found: dict[tuple[int, int], list[Parents]] = {}
        for token, kind, parents in rows:
            found.setdefault((token, kind & ~_APART), []).append(parents)
        self.edges -= len(rows) - len(found)
        for (token, kind), parts in found.items():
            parents = _union(parts)
            if parents is not parts[0]:
                self.count(0, len(parents))
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
        found = parts[0] if len(parts) == 1 else tuple(sorted(set().union(*parts)))
        self[parents] = found
        return found
