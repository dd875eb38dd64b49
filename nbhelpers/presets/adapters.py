"""What a study varies: adapters by their short names or as mappings, and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError

ALL = (("base", None), ("lora", 8), ("lora", 16), ("lora", 32), ("qlora", 16))
VARIED = ("method", "lora_r", "lora_alpha", "lora_target_modules", "seed")
_KEYS = ("name", *VARIED[:-1])
_FORM = re.compile(r"(?:(q?)lora-?)?r?(\d{1,4})")
_OFFERED = ("all", "base", "r4", "r8", "r16", "r32", "r64", "qlora-r8", "qlora-r16", "qlora-r32")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")
_SEED = re.compile(r"\s*[0-9]{1,10}\s*")
LARGEST_RANK = 1024
_LARGEST_SEED = 2**31 - 1


class Variant(NamedTuple):
    """One adapter of a study: its name, and the settings that make it."""

    name: str
    changes: dict[str, Any]


def parse_adapters(adapters: str | Iterable[str]) -> list[tuple[str, int | None]]:
    """Return the method and the rank of every adapter that is named, in order.

    Args:
        adapters: `all` (base, r8, r16, r32, qlora-r16), one name, names with commas, or a list.
            `lora16` and `lora-r16` are other spellings of r16, `qlora16` of qlora-r16.

    >>> parse_adapters("r8, qlora-r16"), parse_adapters("base")
    ([('lora', 8), ('qlora', 16)], [('base', None)])

    Raises:
        ConfigError: A name is none (the nearest is offered), or stands there twice.
    """
    items = adapters.split(",") if isinstance(adapters, str) else list(adapters)
    names = [item.strip() if isinstance(item, str) else item for item in items]
    if not any(names):
        raise ConfigError("adapters names no adapter.", fix='write "all", or for instance "r16"')
    choices: list[tuple[str, int | None]] = []
    for name in names:
        group = ALL if isinstance(name, str) and name.lower() == "all" else (_adapter(name),)
        for adapter in group:
            if adapter in choices:
                text = f"adapters names {adapter_name(*adapter)} twice"
                text += " (`all` holds it)" if "all" in [str(n).lower() for n in names] else ""
                raise ConfigError(f"{text}.", fix="keep one of the two")
            choices.append(adapter)
    return choices


def _adapter(name: object) -> tuple[str, int | None]:
    text = name.lower() if isinstance(name, str) else ""
    if text == "base":
        return "base", None
    match = _FORM.fullmatch(text)
    number = int(match[2]) if match else 0
    if not match or not 1 <= number <= LARGEST_RANK or not text.startswith(("r", "lora", "qlora")):
        is_rank = number in range(1, LARGEST_RANK + 1)
        near = f"r{number}" if is_rank else name
        hint = did_you_mean(near, {*_OFFERED, f"r{number}"} if is_rank else _OFFERED)
        hint = f"{hint} " if hint.startswith("did") else ""
        fix = f"{hint}Write base, r8 (LoRA of rank 8), qlora-r16, or all; ranks go from 1 to 1024"
        raise ConfigError(f"There is no adapter `{name}`.", fix=fix)
    return ("qlora" if match[1] else "lora"), number


def adapter_name(method: str, lora_r: int | None) -> str:
    """Return the short name of an adapter.

    >>> adapter_name("qlora", 16), adapter_name("lora", 8), adapter_name("base", None)
    ('qlora-r16', 'r8', 'base')
    """
    return {"base": "base", "lora": f"r{lora_r}"}.get(method, f"{method}-r{lora_r}")


def parse_variants(adapters: str | Iterable[str | Mapping[str, Any]]) -> list[Variant]:
    """Return every adapter with the settings that make it.

    Args:
        adapters: As for `parse_adapters`; a list may also hold mappings with a `name` of your own
            and any of method, lora_r, lora_alpha, lora_target_modules.

    Raises:
        ConfigError: A name or a setting is wrong, or a name stands there twice.
    """
    entries = [adapters] if isinstance(adapters, Mapping | int) else adapters
    if not isinstance(entries, Iterable) or isinstance(entries, bytes):
        text = f"adapters={entries!r} names no adapter."
        raise ConfigError(text, fix='write "all", or for instance "r16"')
    items = entries.split(",") if isinstance(entries, str) else list(entries)
    texts = [item for item in items if not isinstance(item, Mapping)]
    if texts or not items:
        parse_adapters(texts)  # refuses wrong names, and any that stands there twice
    variants: list[Variant] = []
    for item in items:
        if isinstance(item, Mapping):
            variants.append(_own_variant(item))
        else:
            variants += [plain_variant(*adapter) for adapter in parse_adapters([item])]
    for variant in variants:
        if sum(other.name == variant.name for other in variants) > 1:
            text = f"Two adapters are named `{variant.name}`."
            raise ConfigError(text, fix="give each mapping a name of its own")
    return variants


def plain_variant(method: str, lora_r: int | None) -> Variant:
    """Return the variant of a named adapter."""
    rank = {} if lora_r is None else {"lora_r": lora_r}
    return Variant(adapter_name(method, lora_r), {"method": method} | rank)


def _own_variant(item: Mapping[str, Any]) -> Variant:
    name = item.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = f"An adapter given as a mapping has the name {name!r}."
        raise ConfigError(text, fix='add "name": letters, digits and ._+-, such as "r16-attention"')
    for key in item:
        if key not in _KEYS:
            text = f"The adapter {name} sets `{key}`, and a study varies only the adapter."
            raise ConfigError(
                text, fix=f"{did_you_mean(key, _KEYS)}; other settings: in the preset"
            )
    changes = {key: value for key, value in item.items() if key != "name" and value is not None}
    changes = {"method": "lora"} | changes
    if not isinstance(changes["method"], str):  # what else is wrong, the preset tells
        text = f"The adapter {name} has the method {changes['method']!r}."
        raise ConfigError(text, fix="write base, lora or qlora")
    return Variant(name, changes)


def parse_seeds(seeds: str | int | Sequence[int] | None) -> list[int] | None:
    """Return seeds as a list; None: the preset's own.

    >>> parse_seeds("3, 4"), parse_seeds(7), parse_seeds(None)
    ([3, 4], [7], None)

    Raises:
        ConfigError: One is no seed, or stands there twice.
    """
    if seeds is None or seeds == "":
        return None
    is_list = isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes | Mapping)
    items = seeds.split(",") if isinstance(seeds, str) else list(seeds) if is_list else [seeds]
    numbers = [int(i) if isinstance(i, str) and _SEED.fullmatch(i) else i for i in items]
    for seed in numbers:
        if type(seed) is not int or not 0 <= seed <= _LARGEST_SEED:
            fix = "write whole numbers from 0 on, such as 3,4,5"
            raise ConfigError(f"{seed!r} is no seed.", fix=fix)
        if numbers.count(seed) > 1:
            raise ConfigError(f"The seed {seed} is given twice.", fix="keep one of the two")
    if not numbers:
        raise ConfigError("seeds is empty.", fix="leave it out, or write for instance 3,4,5")
    return numbers
