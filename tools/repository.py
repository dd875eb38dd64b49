"""Write the repository's address (nbhelpers/notebook/environment.py) into badges and cells.

python tools/repository.py set --owner NAME [--name REPOSITORY]
python tools/repository.py check
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = "nbhelpers/notebook/environment.py"
ADDRESS = re.compile(
    r"(?P<host>https://github\.com/|colab\.research\.google\.com/github/)"
    r"(?P<owner>[\w.-]+)/(?P<name>[\w-]+)(?P<tag>@v[\w.]+)?"
)
GITHUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read_home(root: Path) -> tuple[str, str, str]:
    """Owner, repository name and version tag as the package has them."""
    text = (root / HOME).read_text(encoding="utf-8")
    found = dict(re.findall(r'^(OWNER|NAME) = "([^"]*)"$', text, re.MULTILINE))
    package = (root / "nbhelpers" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"$', package, re.MULTILINE)
    assert version, "nbhelpers/__init__.py has no __version__ line"
    return found["OWNER"], found["NAME"], f"v{version[1]}"


def carriers(root: Path) -> list[Path]:
    """Files that carry the address as text."""
    named = [
        root / name
        for name in ("README.md", "QUICK_START.md", "pyproject.toml", "docs/ci-example.yml")
    ]
    return [path for path in named if path.is_file()] + sorted(root.glob("notebooks/*.ipynb"))


def rewrite(text: str, owner: str, name: str, tag: str) -> str:
    """Return a text with every address of the project replaced."""

    def place(found: re.Match[str]) -> str:
        return f"{found['host']}{owner}/{name}{'@' + tag if found['tag'] else ''}"

    return ADDRESS.sub(place, text)


def set_owner(root: Path, owner: str, name: str) -> list[str]:
    """Write a new address into its home, then into every carrier; return what changed."""
    for value in (owner, name):
        if not GITHUB_NAME.fullmatch(value):
            sys.exit(f"{value!r} is no name on GitHub. Fix: make repo OWNER=name [NAME=repository]")
    home = root / HOME
    text = home.read_text(encoding="utf-8")
    text = re.sub(r'^OWNER = "[^"]*"$', f'OWNER = "{owner}"', text, flags=re.MULTILINE)
    text = re.sub(r'^NAME = "[^"]*"$', f'NAME = "{name}"', text, flags=re.MULTILINE)
    home.write_text(text, encoding="utf-8")
    changed = []
    for path in carriers(root):
        before = path.read_text(encoding="utf-8")
        after = rewrite(before, *read_home(root))
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path.relative_to(root).as_posix())
    return changed


def problems(root: Path) -> list[str]:
    """Carriers whose address or tag differs from the package's."""
    home = read_home(root)
    return [
        f"{path.relative_to(root)}: another address than {HOME} has; run make repo OWNER={home[0]}"
        for path in carriers(root)
        if rewrite(path.read_text(encoding="utf-8"), *home) != path.read_text(encoding="utf-8")
    ]


def main() -> int:
    """Set or check; 1 when a carrier differs."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    setting = commands.add_parser("set")
    setting.add_argument("--owner", required=True)
    setting.add_argument("--name", default="nbhelpers")
    commands.add_parser("check")
    chosen = parser.parse_args()
    if chosen.command == "set":
        changed = set_owner(ROOT, chosen.owner, chosen.name)
        print(f"address written to {', '.join([HOME, *changed])}")
        return 0
    found = problems(ROOT)
    print("\n".join(found) if found else "repository address: the same everywhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
