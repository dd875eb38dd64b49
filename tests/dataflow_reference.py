"""The rules of data flow written down plainly, for comparison with the fast form.

Recursive, one state copied at every node, a loop's body walked twice each time it is met: right for
small programs that parse without an error, hopeless for deep ones.
"""

from __future__ import annotations

import importlib
from typing import Any

State = dict[str, list[int]]
Row = tuple[int, str, list[int]]


def reference_edges(code: str, language: str) -> list[Row]:
    """The edges of code without comments."""
    tree_sitter = importlib.import_module("tree_sitter")
    grammar = importlib.import_module(f"tree_sitter_{language}").language()
    root = tree_sitter.Parser(tree_sitter.Language(grammar)).parse(code.encode()).root_node
    assert not root.has_error, code
    walker = (_Java if language == "java" else _Python)(root)
    rows, _ = walker.see(root, {})
    rows.sort(key=lambda row: row[0])
    kept = {row[0] for row in rows if row[2]}.union(*(row[2] for row in rows))
    return [row for row in rows if row[0] in kept]


def _union(states: list[State]) -> State:
    names = {name for state in states for name in state}
    return {n: sorted({i for s in states for i in s.get(n, [])}) for n in names}


def _as_one(rows: list[Row]) -> list[Row]:
    """A loop has one row for each token and kind."""
    found: dict[tuple[int, str], list[list[int]]] = {}
    for token, kind, parents in rows:
        found.setdefault((token, kind), []).append(parents)
    return [
        (*key, parts[0] if len(parts) == 1 else sorted(set().union(*parts)))
        for key, parts in found.items()
    ]


class _Walker:
    def __init__(self, root: Any) -> None:
        self.number = {(n.start_byte, n.end_byte): i for i, n in enumerate(self.leaves(root))}

    def is_leaf(self, node: Any) -> bool:
        return not node.children or node.type == "string"

    def leaves(self, node: Any) -> list[Any]:
        if self.is_leaf(node):
            return [] if node.type == "comment" else [node]
        return [leaf for child in node.children for leaf in self.leaves(child)]

    def variables(self, node: Any) -> list[tuple[int, str]]:
        found = []
        for leaf in self.leaves(node):
            text = leaf.text.decode().replace("\n", "")
            if text != leaf.type:
                found.append((self.number[leaf.start_byte, leaf.end_byte], text))
        return found

    def read(self, node: Any, state: State) -> tuple[list[Row], State]:
        found = self.variables(node)
        if not found:
            return [], state
        ((token, text),) = found
        if text in state:
            return [(token, "comesFrom", list(state[text]))], state
        after = {**state, text: [token]} if node.type == "identifier" else state
        return [(token, "comesFrom", [])], after

    def in_order(self, nodes: list[Any], state: State) -> tuple[list[Row], State]:
        rows: list[Row] = []
        for node in nodes:
            more, state = self.see(node, state)
            rows += more
        return rows, state

    def put(
        self, kind: str, left: Any, right: Any, state: State, *, apart: bool
    ) -> tuple[list[Row], State]:
        sources = [token for token, _ in self.variables(right)] if right else []
        groups = [[source] for source in sources] if apart else [sources]
        targets = self.variables(left)
        rows = [(token, kind, group) for token, _ in targets for group in groups]
        return rows, state | {text: [token] for token, text in targets}

    def twice(self, nodes: list[Any], state: State) -> tuple[list[Row], State]:
        rows, state = self.in_order(nodes + nodes, state)
        return _as_one(rows), state

    def declare(self, node: Any, state: State) -> tuple[list[Row], State]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        rows, state = self.see(value, state) if value else ([], state)
        more, state = self.put("comesFrom", name, value, state, apart=value is not None)
        return rows + more, state

    def see(self, node: Any, state: State) -> tuple[list[Row], State]:
        raise NotImplementedError


class _Java(_Walker):
    def see(self, node: Any, state: State) -> tuple[list[Row], State]:
        kind, children = node.type, node.children
        if self.is_leaf(node):
            return self.read(node, state)
        if kind == "variable_declarator":
            return self.declare(node, state)
        if kind == "assignment_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            rows, state = self.see(right, state)
            more, state = self.put("computedFrom", left, right, state, apart=True)
            return rows + more, state
        if kind == "update_expression":
            return self.put("computedFrom", node, node, state, apart=True)
        if kind == "if_statement":
            return self.branch(node, state)
        if kind == "while_statement":
            return self.twice(children, state)
        if kind == "for_statement":
            rows, state = self.in_order(children, state)
            kinds = [child.type for child in children]
            if "local_variable_declaration" in kinds:
                again = children[kinds.index("local_variable_declaration") + 1 :]
                more, state = self.in_order(again, state)
                rows += more
            return _as_one(rows), state
        if kind == "enhanced_for_statement":
            rows = []
            name, value, body = (node.child_by_field_name(f) for f in ("name", "value", "body"))
            for _ in range(2):
                first, state = self.see(value, state)
                second, state = self.put("computedFrom", name, value, state, apart=True)
                third, state = self.see(body, state)
                rows += first + second + third
            return _as_one(rows), state
        return self.in_order(children, state)

    def branch(self, node: Any, state: State) -> tuple[list[Row], State]:
        kinds = [child.type for child in node.children]
        cut = next((i for i, k in enumerate(kinds) if k in ("if_statement", "else")), len(kinds))
        rows, first = self.in_order(node.children[:cut], state)
        ends = [first]
        for child in node.children[cut:]:
            more, end = self.see(child, state)
            rows += more
            ends.append(end)
        return rows, _union(ends if "else" in kinds else [*ends, state])


class _Python(_Walker):
    def see(self, node: Any, state: State) -> tuple[list[Row], State]:
        kind, children = node.type, node.children
        if self.is_leaf(node):
            return self.read(node, state)
        if kind == "default_parameter":
            return self.declare(node, state)
        if kind in ("assignment", "augmented_assignment", "for_in_clause"):
            return self.assign(node, state)
        if kind == "if_statement":
            return self.branch(node, state)
        if kind == "while_statement":
            return self.twice(children, state)
        if kind == "for_statement":
            rows: list[Row] = []
            for _ in range(2):
                more, state = self.assign(node, state)
                rows += more
                if children[-1].type == "block":
                    more, state = self.see(children[-1], state)
                    rows += more
            return _as_one(rows), state
        loops = [child for child in children if child.type == "for_in_clause"]
        return self.in_order(loops + [c for c in children if c not in loops], state)

    def assign(self, node: Any, state: State) -> tuple[list[Row], State]:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if node.type == "for_in_clause":
            lefts, rights = [left], [node.children[-1]]
        elif right is None:
            return [], state
        else:
            lefts = [child for child in left.children if child.type != ","]
            rights = [child for child in right.children if child.type != ","]
            if len(lefts) != len(rights) or not lefts:
                lefts, rights = [left], [right]
        rows, state = self.in_order(rights, state)
        for target, source in zip(lefts, rights, strict=True):
            more, state = self.put("computedFrom", target, source, state, apart=False)
            rows += more
        return rows, state

    def branch(self, node: Any, state: State) -> tuple[list[Row], State]:
        clauses = [c for c in node.children if c.type in ("elif_clause", "else_clause")]
        rows, first = self.in_order([c for c in node.children if c not in clauses], state)
        ends = [first]
        for clause in clauses:
            more, end = self.see(clause, state)
            rows += more
            ends.append(end)
        has_else = any(clause.type == "else_clause" for clause in clauses)
        return rows, _union(ends if has_else else [*ends, state])
