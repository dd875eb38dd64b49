"""Tag this version, and try what the tag holds as a user gets it.

python tools/release.py [--dry-run]

The wheel is built from the tag's own files and installed into an empty environment, where every
import of this checkout's notebooks is tried and the demo runs. A tag that does not pass is removed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.make_venv import has_gpu  # noqa: E402
from tools.repository import problems, read_home  # noqa: E402

PLACEHOLDER = "OWNER"
DEMO = ("run", "notebooks/03_find_clones.ipynb", "-p", "preset=smoke")


def ask(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it prints; one that fails ends the release."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def blockers(root: Path, *, is_dry: bool) -> list[str]:
    """Return what keeps this checkout from being released, each with what to do."""
    owner, _, tag = read_home(root)
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = problems(root)
    if not is_dry and owner == PLACEHOLDER:
        found.append("the repository has no owner: make repo OWNER=name")
    if not is_dry and not re.search(rf"^## \[{re.escape(tag[1:])}\]", changes, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section [{tag[1:]}]: give Unreleased its version")
    if ask("git", "status", "--porcelain", cwd=root).strip():
        found.append("there are changes that are not committed: commit or remove them")
    return found


def notebook_imports(folder: Path) -> list[str]:
    """Return the statements by which the notebooks import from nbhelpers, each once."""
    statements: dict[str, None] = {}
    for path in sorted(folder.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                text = "".join(cell["source"])
                pattern = (
                    r"^\s*((?:from nbhelpers[\w.]* import (?:\([^)]*\)|.+))|import nbhelpers.*)$"
                )
                statements |= dict.fromkeys(re.findall(pattern, text, re.MULTILINE))
    return list(statements)


def try_it(revision: str, folder: Path) -> None:
    """Build and install what a revision holds, and use it from an empty folder."""
    source, environment, place = folder / "source", folder / "venv", folder / "place"
    source.mkdir()
    ask("git", "archive", "--output", folder / "source.tar", revision)
    ask("tar", "-xf", folder / "source.tar", "-C", source)
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "-q")
    ask(*pip, "wheel", "--no-deps", "--wheel-dir", folder, source)
    wheel = next(folder.glob("*.whl"))
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
    constraint = () if has_gpu() else ("--constraint", ROOT / "constraints-cpu.txt")
    ask(*pip, "install", wheel, *constraint)
    place.mkdir()
    statements = notebook_imports(ROOT / "notebooks")
    ask(python, "-c", "\n".join(statements), cwd=place)
    print(f"{len(statements)} imports of the notebooks work", flush=True)
    ask("cp", "-r", source / "notebooks", place)
    print(ask(environment / "bin" / "nbhelpers", *DEMO, cwd=place)[-2000:])


def main() -> int:
    """Check, tag, try; 1 with what is in the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="try the last commit, tag nothing")
    is_dry = parser.parse_args().dry_run
    found = blockers(ROOT, is_dry=is_dry)
    if found:
        print("\n".join(found))
        return 1
    tag = read_home(ROOT)[2]
    if not is_dry:
        ask("git", "tag", "--annotate", tag, "--message", f"nbhelpers {tag[1:]}")
    is_good = False
    try:
        with tempfile.TemporaryDirectory(prefix="nbhelpers-release-") as folder:
            try_it("HEAD" if is_dry else tag, Path(folder))
        is_good = True
    finally:
        if not is_good and not is_dry:
            ask("git", "tag", "--delete", tag)
    print("all works" if is_dry else f"tagged: git push origin {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
