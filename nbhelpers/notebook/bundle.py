"""One notebook that carries the library: for a place without this repository and its address."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.yaml_files import configs_dir
from nbhelpers.errors import ConfigError
from nbhelpers.notebook.environment import requirements
from nbhelpers.use.results import checked_output

if TYPE_CHECKING:
    from nbformat import NotebookNode

CARRIER = "# @title The library itself, which this notebook carries"
SOURCE_LINE = re.compile(r"^source = .*$", re.MULTILINE)


def bundle(notebook: Path, output: Path | None = None) -> Path:
    """Write a notebook that carries this library, and return its path.

    Its install cell takes the wheel that a folded cell above it holds; what the library needs is
    installed as usual, and nothing is where it is there. Everything else stays as it is.

    Args:
        notebook: One of this project's notebooks, or one with its install cell.
        output: By default `NAME-bundle.ipynb` in the working directory.

    Raises:
        ConfigError: No notebook of that name, one without the install cell's `source` line, one
            that is a bundle, or an output that is the notebook itself, a folder, or no .ipynb.
    """
    import nbformat

    from nbhelpers.notebook.headless import read_notebook

    content = read_notebook(notebook, notebook)
    place = next((at for at, cell in enumerate(content.cells) if _installs(cell)), None)
    if place is None:
        raise ConfigError(
            f"{notebook}: no cell says where nbhelpers is installed from (`source = ...`).",
            fix="bundle a notebook of this project, or copy its install cell into yours",
        )
    path = checked_output(output or f"{notebook.stem}-bundle.ipynb", [".ipynb"])
    if path.exists() and path.samefile(notebook):
        raise ConfigError(f"{path} is the notebook itself.", fix="name another file by --output")
    if any(CARRIER in cell.source for cell in content.cells):
        raise ConfigError(f"{notebook} carries the library already.", fix="use it as it is")
    name, wheel = make_wheel()
    install = content.cells[place]
    install.source = SOURCE_LINE.sub(f'source = str(Path("{name}").resolve())', install.source)
    text = base64.b85encode(wheel).decode("ascii")
    carrier = nbformat.v4.new_code_cell(
        f"{CARRIER}\n"
        f'from base64 import b85decode\nfrom pathlib import Path\n\nwheel = Path("{name}")\n'
        f'size = wheel.write_bytes(b85decode(\n    r"""{text}"""\n))',
        metadata={"cellView": "form", "jupyter": {"source_hidden": True}},
    )
    content.cells.insert(place, carrier)
    nbformat.write(content, path)
    return path


def _installs(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(SOURCE_LINE.search(cell.source))


def make_wheel() -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel of the library as it runs here.

    Source: the binary distribution format of the Python Packaging User Guide.
    """
    from nbhelpers import __version__

    about = f"nbhelpers-{__version__}.dist-info"
    files = dict(_files())
    files[f"{about}/METADATA"] = _metadata(__version__).encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: nbhelpers\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\nnbhelpers = nbhelpers.cli.app:main\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    return f"nbhelpers-{__version__}-py3-none-any.whl", stream.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    package, configs = Path(__file__).parents[1], configs_dir()
    for folder, inside in ((package, "nbhelpers"), (configs, "nbhelpers/configs")):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{inside}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _metadata(version: str) -> str:
    try:
        found = distribution("nbhelpers")
        return found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    except PackageNotFoundError:  # imported from a checkout that is not installed
        needs = "".join(f"Requires-Dist: {line}\n" for line in requirements())
        return f"Metadata-Version: 2.1\nName: nbhelpers\nVersion: {version}\n{needs}"
