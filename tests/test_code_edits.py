"""An edit changes how a program looks and keeps what it does; where that is unsure, it refuses."""

import ast
import contextlib
import io
import sysconfig
from pathlib import Path

import pytest

from nbhelpers.data.edit_java import reformat_java
from nbhelpers.data.edit_layout import BY_LINE, LANGUAGES, draw_of, draw_style, lex
from nbhelpers.data.edit_python import reformat_python
from nbhelpers.data.edit_tree import parse_clean
from nbhelpers.data.edits import EDITS, edited

LIBRARY = Path(sysconfig.get_path("stdlib"))
MODULES = ("bisect", "heapq", "fnmatch", "sched", "string", "queue", "copy", "chunk", "textwrap")

SHOP = '''"""A shop."""
import math
from collections import Counter as Tally

RATE = 0.19


class Basket:
    """What somebody buys."""

    limit = 3

    def __init__(self, owner="me"):
        self.owner, self.items = owner, []

    def put_in(self, thing, price=1.5):  # chainable
        self.items.append((thing, price)); return self

    def whole(self):
        return sum(price for _, price in self.items) * (1 + RATE)


def largest(pairs, *, count=1):
    best = sorted(pairs, key=lambda pair: -pair[1])[:count]
    return {name: cost for name, cost in best}


basket = Basket(owner="you").put_in("tea", price=2).put_in('milk')
total = math.floor(basket.whole() * 100) / 100
if total > 4 and not total < -1: print(f"{total:.2f} for {basket.owner!r}", Tally("aab")["a"])
print(largest(basket.items, count=2), x := 1 .real, [y for y in range(3) if y != 1])
'''

SORTER = """import java.util.*;

/** Sorts. */
public class Sorter {
    private int steps = 0; // so far
    static class Pair { final int left; final String name; Pair(int left, String name) {
        this.left = left; this.name = name; } }
    @Override
    public String toString() { return "Sorter" + steps; }
    private static int rank(Pair pair, int... more) { return pair.left + more.length; }
    public <T extends Comparable<T>> List<T> sort(final List<T> values) throws Exception {
        for (int i = 0, j = values.size() - 1; i < j; i++, j--)
            if (values.get(i).compareTo(values.get(j)) > 0) steps++;
            else { this.steps -= - 1; }
        Map<String, List<Integer>> byName = new HashMap<>();
        byName.computeIfAbsent("a", key -> new ArrayList<>()).add(rank(new Pair(1, "b"), 2, 3));
        switch (steps) { case 0: case 1: break; default: return values; }
        try { Object[] all = {1, "x"}; } catch (RuntimeException | Error e) { throw e; }
        return values;
    }
    public static void main(String[] args) { System.out.println(rank(new Pair(3, "c"))); }
}
"""

OWN = "steps Pair rank pair more values i j byName key all e args"

BRACED = {
    "c": """#include <stdio.h>
#define TWICE(x) ((x)*2) /* sure */
int main(void)
{
\tint a=1, *b=&a; // one
\tif(a==1) {
\t\tprintf("%d // no", TWICE(*b));
\t}
\telse
\t\ta-=- 1;
}
""",
    "cpp": """#include <map>
auto raw = R"x(a // b")x";
int f(std::map<int,int>& m) { // one
  return m.size()>1'000 ? 1 : 2;
}
""",
    "csharp": """#region Don't
class A
{
  string s = $"{(1+2)} // {{}}"; string t = @"a\\";
  int F(int x) { return x; } // one
}
#endregion
""",
    "javascript": """const re = /[/]\\/* x/g; // one
function f(a){
  const t = `a ${f({b:`//${a}`})} c`
  return a
    .b(1,2)
}
""",
    "typescript": """let x: Array<number> = [1,2] /* one */
if (x.length==2) {
  x.push("//")
}
""",
    "go": 'package a\n\nfunc f(x int) int {\n\ts := `// "`\n\tx++ // one\n\treturn len(s)+x\n}\n',
    "rust": """fn f<'a>(x: &'a str) -> char {
  /* one /* two */ */
  let r = r#"// ""#; '\\''
}
""",
    "kotlin": """fun f(x: Int): String {
  val a = "${if (x>1) "//" else "b"}" // one
  return a
}
""",
}


def program_of(name: str) -> str:
    return (LIBRARY / f"{name}.py").read_text(encoding="utf-8")


def differences(old: object, new: object, forth: dict[str, str]) -> list[str]:
    """What tells two trees apart beyond a renaming, which must be one to one.

    What stands behind a dot is another kind of name: a method has its one new name or its old one.
    """
    found, back, behind, todo = [], {}, {}, [(old, new, "")]
    while todo:
        a, b, field = todo.pop()
        if type(a) is not type(b):
            found.append(f"{a!r} became {b!r}")
        elif isinstance(a, ast.AST):
            todo += [(getattr(a, n, None), getattr(b, n, None), n) for n in a._fields]
        elif isinstance(a, list):
            todo += [(one, other, field) for one, other in zip(a, b, strict=True)]
        elif isinstance(a, str) and field in ("id", "name", "arg", "names"):
            is_keyword = field == "arg" and a == b
            if not is_keyword and (forth.setdefault(a, b) != b or back.setdefault(b, a) != a):
                found.append(f"{a!r} became {b!r} and {forth[a]!r}")
        elif isinstance(a, str) and field == "attr":
            if behind.setdefault(a, b) != b:
                found.append(f".{a} became .{b} and .{behind[a]}")
        elif a != b:
            found.append(f"{a!r} became {b!r}")
    return found + [f".{a} became .{b}" for a, b in behind.items() if b not in (a, forth.get(a))]


def output_of(code: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    return shown.getvalue()


@pytest.mark.parametrize("name", [name for name in MODULES if (LIBRARY / f"{name}.py").exists()])
def test_the_tree_of_a_library_module_survives(name):
    code = program_of(name)
    tree = ast.parse(code)
    laid_out = edited(code, "python", "reformat", seed=len(name))
    assert ast.dump(ast.parse(laid_out)) == ast.dump(tree)
    renamed = edited(code, "python", "rename")
    if renamed is not None:  # a module that evaluates text is refused
        names: dict[str, str] = {}
        assert not differences(tree, ast.parse(renamed), names)
    bare = edited(code, "python", "strip_comments")
    assert edited(bare, "python", "strip_comments") == bare
    has_text = (ast.Module, ast.FunctionDef, ast.ClassDef)
    if "__doc__" not in code:
        left = [n for n in ast.walk(ast.parse(bare)) if isinstance(n, has_text)]
        assert not any(ast.get_docstring(node) for node in left)


def test_an_edited_program_still_says_the_same():
    shown = output_of(SHOP)
    assert "4.16" in shown
    for seed in range(6):
        for edit in EDITS:
            assert output_of(edited(SHOP, "python", edit, seed=seed)) == shown


def test_names_of_the_program_change_and_all_others_stay():
    names = {}
    renamed = edited(SHOP, "python", "rename", seed=3)
    assert not differences(ast.parse(SHOP), ast.parse(renamed), names)
    changed = {old for old, new in names.items() if old != new}
    assert changed >= {"Basket", "largest", "pairs", "count", "best", "thing", "RATE", "basket"}
    assert not changed & {
        "math",
        "Tally",
        "owner",
        "items",
        "limit",
        "self",
        "sum",
        "key",
        "put_in",
    }


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        ("def entry(n):\n    return n\n", "entry"),  # nobody calls it: others may
        ("class S:\n    def solve(self, n):\n        return n\n", "solve"),
        ("from lib import *\ndef f():\n    e = 1\n    return e\nprint(e, f())\n", "e"),
        ("def f(size):\n    return size\ng = f\nprint(g(size=1))\n", "size"),
        ("def f(size):\n    return size\nprint(f(**{'size': 1}))\n", "size"),
        ("import app\n@app.route('/')\ndef page(name):\n    return name\nprint(page)\n", "page"),
        ("def f():\n    pass\nimport timeit\ntimeit.timeit('f()')\nf()\n", "f"),
        ("x = 1\nprint(f'{x=}')\n", "x"),
        ("class A(Base):\n    def run_it(self):\n        pass\nA().run_it()\n", "run_it"),
        ("def f(x):\n    return x\nprint(f.__name__, f(1))\n", "f"),
        ("a = [i for i in range(3)]\nprint i, a\n", "i"),  # Python 2 lets it out
        (
            "class P:\n    width = 1\n    def f(self, width):\n        return self.width + width\n",
            "width",
        ),
    ],
)
def test_a_name_that_others_may_know_stays(code, stays):
    for seed in range(3):
        old = parse_clean(code, "python")
        new = parse_clean(edited(code, "python", "rename", seed=seed), "python")
        kept = [old.text(n) == new.text(n) for n in old.tokens() if old.text(n) == stays]
        assert kept and all(kept)


def test_a_program_that_makes_code_of_text_is_not_renamed():
    code = "x = 1\nprint(eval('x'))\n"
    assert edited(code, "python", "rename") is None
    assert edited(code, "python", "rename_reformat") is None
    assert edited(code, "python", "reformat") is not None


def test_java_keeps_its_tokens_and_comments_in_every_style():
    words = "".join(SORTER.split())
    for seed in range(12):
        laid_out = edited(SORTER, "java", "reformat", seed=seed)
        assert "".join(laid_out.split()) == words
    assert edited("int f(int a) { return a - -1 + +a; }", "java", "reformat") is not None


def test_java_renames_what_no_other_program_knows():
    old = parse_clean(SORTER, "java")
    new = parse_clean(edited(SORTER, "java", "rename"), "java")
    pairs = {old.text(n): new.text(m) for n, m in zip(old.tokens(), new.tokens(), strict=True)}
    changed = {a for a, b in pairs.items() if a != b}
    assert changed >= set(OWN.split())
    assert changed <= set(OWN.split()) | {"left", "name"}
    # Fields that are not private stay, also where a parameter of their name changes.
    text = edited(SORTER, "java", "rename")
    assert "this.left = " in text and "this.left = left" not in text and ".left +" in text
    assert "public class Sorter" in text and "toString()" in text and " sort(" in text


def test_java_knows_a_local_name_from_a_field_and_from_a_package():
    code = (
        "class A { int n; java.awt.Point p; void f() { n = 1; int n = 2; n++; g(); }"
        " void g() { n = 3; } }\nclass Point { } class B { Point q = new Point(); }"
    )
    text = edited(code, "java", "rename")
    assert "{ n = 1; int " in text and "{ n = 3; }" in text and "int n = 2" not in text
    assert "java.awt.Point" in text and "new Point()" in text


@pytest.mark.parametrize(
    ("language", "code", "bare"),
    [
        ("python", "# a\n\nx = '#'  # b\n", "x = '#'\n"),
        ("python", 'def f():\n    """Doc."""\n', "def f():\n    pass\n"),
        ("python", 'def f():\n    """Doc."""; return 1\n', "def f():\n    return 1\n"),
        ("python", "def f():\n    f'{g()}'\n", "def f():\n    f'{g()}'\n"),
        ("python", '"""Doc."""\nprint(__doc__)\n', '"""Doc."""\nprint(__doc__)\n'),
        ("java", "int/* a */x = 1; // b\n", "int x = 1;\n"),
        ("c", 'char *s = "/*"; /* a */\n// b\n', 'char *s = "/*";\n'),
        ("javascript", "a = b /* x */ / c / d // e\n", "a = b / c / d\n"),
    ],
)
def test_comments_go_and_nothing_else(language, code, bare):
    assert edited(code, language, "strip_comments") == bare
    assert edited(bare, language, "strip_comments") == bare


def test_languages_with_braces_keep_their_tokens_and_meaningful_line_ends():
    assert set(BRACED) == set(LANGUAGES)
    for language, code in BRACED.items():
        tokens = lex(code, language)
        outputs = {edited(code, language, "reformat", seed=seed) for seed in range(6)}
        assert len(outputs) > 2 and None not in outputs, language
        for text in outputs:
            after = lex(text, language)
            assert [t.text for t in after] == [t.text for t in tokens]
            if language in BY_LINE:
                assert [t.breaks > 0 for t in after] == [t.breaks > 0 for t in tokens]
        bare = edited(code, language, "strip_comments")
        assert "one" not in bare and "//" in bare
        assert edited(code, language, "rename") is None


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "function f() {}\n/a/g.test(b)\n"),  # a pattern, or two divisions
        ("javascript", "x = <b>it's</b>;\n"),
        ("c", 'char *s = "open;\n'),
        ("c", "#if A\nint f() {\n#else\nint g() {\n#endif\n}\n"),
        ("rust", "/* open"),
        ("python", "print 'a' if\n"),
        ("python", "# nothing else\n" * 2),
        ("cobol", "MOVE A TO B.\n"),
        ("", "x = 1\n"),
    ],
)
def test_what_is_unsure_is_refused(language, code):
    assert edited(code, language, "strip_comments") is None


WIDE = """def f(a,b):
        if a: return b
        x = {'k':[a,
  b]}; return x



f( 1,2 )
"""
TIDY = """def f(a, b):

    if a:

        return b
    x = {'k': [a, b]}
    return x
f(1, 2)
"""


def test_where_lines_broke_before_leaves_no_trace():
    java = SORTER.replace("// so far", "").replace("/** Sorts. */", "")
    for seed in range(8):
        for layout, codes, language in (
            (reformat_python, (WIDE, TIDY), "python"),
            (reformat_java, (java, " ".join(java.split())), "java"),
        ):
            style = draw_style(draw_of("", "", seed))
            trees = [parse_clean(code, language) for code in codes]
            assert len({layout(tree, style, draw_of("", "", 1)) for tree in trees}) == 1


def test_a_seed_decides_and_another_seed_differs():
    for language, code in {"python": SHOP, "java": SORTER}.items():
        for edit in ("reformat", "rename", "rename_reformat"):
            texts = [edited(code, language, edit, seed=seed) for seed in range(8)]
            assert texts == [edited(code, language, edit, seed=seed) for seed in range(8)]
            assert len(set(texts)) >= 7
