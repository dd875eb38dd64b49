"""An edit changes how a program looks and keeps what it does; where that is unsure, it refuses."""

import ast
import contextlib
import io
import json
import random
import sysconfig
from pathlib import Path

import pytest

from nbhelpers.data import edits
from nbhelpers.data.edit_comments import LEXERS
from nbhelpers.data.edit_java import reformat_java
from nbhelpers.data.edit_layout import draw_style
from nbhelpers.data.edit_python import reformat_python
from nbhelpers.data.edit_tree import parse_clean
from nbhelpers.data.edits import EDITS, MAX_CHARACTERS, edit_rows, edited
from nbhelpers.errors import ConfigError

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

# Programs with comments of one word, and with strings that look like comments.
OTHERS = {
    "c": '#include <a.h> // one\n#define TWICE(x) ((x)*2) /* one */\nchar *s = "// no"; // one\n',
    "cpp": 'auto raw = R"x(a // b")x";\nint f() { // one\n  return 1\'000;\n}\n',
    "csharp": '#region Don\'t\nstring s = $"{(1+2)} // {{}}"; string t = @"a\\"; // one\n',
    "javascript": "const re = /[/]\\/* x/g; // one\nconst t = `a ${f(`//${a}`)} c`\n",
    "typescript": 'let x: Array<number> = [1,2] /* one */\nx.push("//")\n',
    "go": 'func f(x int) int {\n\ts := `// "`\n\tx++ // one\n\treturn len(s)+x\n}\n',
    "rust": '/// one\nfn f<\'a>(x: &\'a str) {\n  /* one /* two */ */\n  let r = r#"// ""#;\n}\n',
    "kotlin": 'fun f(): String {\n  val a = "$b // ${c}" // one\n  return a\n}\n',
}


def program_of(name: str) -> str:
    return (LIBRARY / f"{name}.py").read_text(encoding="utf-8")


def differences(old: object, new: object, forth: dict[str, str]) -> list[str]:
    """What tells two trees apart beyond a renaming, which must be one to one."""
    found, back, todo = [], {}, [(old, new, "")]
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
        elif a != b:
            found.append(f"{a!r} became {b!r}")
    return found


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
    assert changed >= {"Basket", "largest", "pairs", "best", "thing", "RATE", "basket"}
    assert not changed & {
        "math",
        "Tally",
        "owner",
        "items",
        "limit",
        "self",
        "sum",
        "key",
        "count",
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
        ("class A(Base):\n    pass\nprint(A())\n", "A"),
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
        kept = [old.text(n) == new.text(n) for n in old.leaves if old.text(n) == stays]
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
    pairs = {old.text(n): new.text(m) for n, m in zip(old.leaves, new.leaves, strict=True)}
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


@pytest.mark.parametrize("language", LEXERS)
def test_other_languages_lose_their_comments_and_have_no_other_edit(language):
    code = OTHERS[language]
    bare = edited(code, language, "strip_comments")
    assert "one" not in bare and "//" in bare + "//" * (language == "cpp")
    assert edited(bare, language, "strip_comments") == bare
    assert all(edited(code, language, edit) is None for edit in EDITS if edit != "strip_comments")


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "x = <b>it's</b>;\n"),
        ("go", "x := 1 /* a\n b */ y := 2\n"),  # the line end ends a statement
        ("kotlin", 'val a = "${if (x) "//" else "b"}"\n'),
        ("c", "// nothing else\n"),
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
            style = draw_style(random.Random(seed))
            trees = [parse_clean(code, language) for code in codes]
            assert len({layout(tree, style, random.Random(1)) for tree in trees}) == 1


def test_a_seed_decides_and_another_seed_differs():
    for language, code in {"python": SHOP, "java": SORTER}.items():
        for edit in ("reformat", "rename", "rename_reformat"):
            texts = [edited(code, language, edit, seed=seed) for seed in range(8)]
            assert texts == [edited(code, language, edit, seed=seed) for seed in range(8)]
            assert len(set(texts)) >= 7


HOSTILE = {
    "bytes": bytes(range(256)).decode("latin-1") * 20,
    "surrogate": "x = '\ud800'\n",
    "nul": "\0" * 100,
    "empty": "",
    "blank": " \n\t",
    "deep": "(" * 900 + ")" * 900,
    "open": "f(" * 900,
    "blocks": "{" * 900 + "}" * 900,
    "holes": "`${" * 500,
    "old ends": "x = 1\ry = 2\r\n",
    "long": "x = [" + ",".join(["abc"] * 500) + "]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_raises(name):
    for language in ("python", "java", *LEXERS, "cobol"):
        for edit in EDITS:
            text = edited(HOSTILE[name], language, edit)
            assert text is None or text.split()
            assert text is None or language != "cobol"


def test_what_is_too_long_is_left_alone_at_once():
    code = "x = 1\n" * (MAX_CHARACTERS // 6 + 1)
    assert all(edited(code, "python", edit) is None for edit in EDITS)


def test_an_unknown_edit_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match="reformat, strip_comments, rename, rename_reformat"):
        edited("x = 1", "python", "shuffle")
    with pytest.raises(ConfigError, match="processes is 0"):
        edit_rows(["x = 1"], ["python"], "reformat", processes=0)


@pytest.fixture
def private_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_rows_come_in_order_and_from_the_cache(private_cache, monkeypatch):
    codes, languages = [SHOP, SORTER, "x =", SHOP], ["python", "java", "python", "python"]
    expected = [edited(c, n, "rename") for c, n in zip(codes, languages, strict=True)]
    seen = []
    assert edit_rows(codes, languages, "rename", report=lambda *done: seen.append(done)) == expected
    assert seen == [(0, 3), (3, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(edits, "edited", None)  # whatever is edited again fails
        assert edit_rows(codes, languages, "rename") == expected
        with pytest.raises(TypeError):
            edit_rows(codes, languages, "rename", seed=1)
    for file in private_cache.rglob("*.json"):
        file.write_text("{", encoding="utf-8")
    assert edit_rows(codes, languages, "rename") == expected


@pytest.mark.slow
def test_several_processes_give_the_same(private_cache):
    codes = [f"def f{i}(a):\n    return a  # {'long ' * 4000}\n" for i in range(40)] + ["\ud800"]
    expected = [edited(code, "python", "strip_comments") for code in codes]
    assert edit_rows(codes, ["python"] * 41, "strip_comments", processes=2) == expected


@pytest.mark.slow
def test_most_programs_of_the_real_data_can_be_edited(shared_data: Path):
    with (shared_data / "detector/paired.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for number, line in enumerate(file) if number % 150 == 0]
    for edit in EDITS:
        done = [edited(row["code"], row["language"], edit) for row in rows]
        assert sum(text is not None for text in done) >= 0.9 * len(rows)
