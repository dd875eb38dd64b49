"""Copy run folders and studies into `folders/` as the golden tests read them.

`python tests/golden/freeze.py ROOT PATH...`: weights, caches, pictures and pages stay out; ROOT
(the folder above the folder of runs) and other places of that machine become marks, which the
tests fill in. Times, numbers and events stay as they were recorded.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT_MARK = "@ROOT@"
LEFT_OUT = {".safetensors", ".pt", ".bin", ".png", ".html", ".lock"}
LARGE = {"tokenizer.json", "vocab.json", "merges.txt"}
MOST_BYTES = 500_000
PACKAGES = re.compile(r"/[\w./-]+/(?=site-packages/|dist-packages/|golden_site/)")
PYTHON = re.compile(r"/[\w./-]+/bin/python[\d.]*")
HOST = re.compile(r'("(?:host|hostname|node)": )"[^"]*"')
CHECKOUT = re.compile(r"/[\w./-]+/(?=nbhelpers/\w+[/.])")


def frozen_text(text: str, root: str) -> str:
    """Return the text of a file with marks in the place of one machine's paths."""
    text = text.replace(root, ROOT_MARK)
    text = PYTHON.sub("@PYTHON@", text)
    text = PACKAGES.sub("@PACKAGES@/", text)
    text = HOST.sub(r'\1"recorded"', text)
    return CHECKOUT.sub("@CODE@/", text)


def freeze(folder: Path, root: str) -> int:
    """Copy one run folder or study; return its size in bytes.

    Raises:
        SystemExit: A file is too large to be stored.
    """
    size = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in LEFT_OUT or path.name in LARGE:
            continue
        text = frozen_text(path.read_text("utf-8", errors="replace"), root)
        if len(text.encode()) > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")
        target = HERE / "folders" / folder.name / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        size += len(text.encode())
    return size


if __name__ == "__main__":
    for name in sys.argv[2:]:
        bytes_kept = freeze(Path(name).absolute(), sys.argv[1].rstrip("/"))
        print(f"{Path(name).name}: {bytes_kept:,} bytes")  # noqa: T201
