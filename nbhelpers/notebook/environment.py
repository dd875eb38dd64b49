"""Where the project lives, and whether a notebook's kernel can use what is installed.

This file is the one home of the repository's address. `make repo OWNER=name` writes it here and
copies it into the badges and the install cells, which must carry it as text.
"""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.common.display import Table
from nbhelpers.errors import ConfigError

OWNER = "OWNER"
NAME = "nbhelpers"

# Packages with compiled parts: a kernel that has one loaded cannot use another version of it.
_COMPILED = ("numpy", "pandas", "pyarrow", "torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Which nbhelpers a kernel imported, from where, under which Python."""

    version: str
    python: str
    folder: str

    def __repr__(self) -> str:
        return f"nbhelpers {self.version} from {self.folder}, Python {self.python}"

    def _repr_html_(self) -> str:
        rows = (("nbhelpers", self.version), ("from", self.folder), ("Python", self.python))
        return Table(("", ""), rows).html()


def check_environment() -> Environment:
    """Return what this kernel imported, or say in one sentence that it must be restarted.

    Raises:
        ConfigError: A loaded package was replaced on disk, or Python is outside the tested range.
    """
    import nbhelpers

    python = sys.version.split()[0]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise ConfigError(
            f"nbhelpers needs Python 3.11, 3.12 or 3.13; this kernel runs {python}.",
            fix="choose another kernel",
        )
    if stale := stale_modules():
        raise ConfigError(
            f"This kernel holds packages that were replaced on disk: {'; '.join(stale)}.",
            fix="restart the kernel, then run all cells",
        )
    return Environment(
        version=nbhelpers.__version__,
        python=python,
        folder=str(Path(nbhelpers.__file__).parent),
    )


def requirements() -> list[str]:
    """Return what this package needs, as its checkout or its metadata says."""
    file = Path(__file__).parents[2] / "requirements.txt"
    if not file.is_file():
        return [n for n in importlib.metadata.requires("nbhelpers") or () if "extra ==" not in n]
    lines = file.read_text(encoding="utf-8").splitlines()
    return list(filter(None, (line.partition("#")[0].strip() for line in lines)))


def stale_modules(names: tuple[str, ...] = _COMPILED) -> list[str]:
    """List loaded packages whose version differs from what is now on disk."""
    stale = []
    for name in names:
        loaded = getattr(sys.modules.get(name), "__version__", None)
        if loaded is None:
            continue
        try:
            on_disk = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if str(loaded).partition("+")[0] != on_disk.partition("+")[0]:
            stale.append(f"{name} {loaded} is loaded, {on_disk} is installed")
    return stale
