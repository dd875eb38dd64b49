"""Contradictions between the settings of a detector that are each valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbhelpers.checks_clones import length_faults

Fault = tuple[str, str, str]  # setting, what is wrong, what to type instead
HOLD_OUT_FIELDS = ("source", "generator", "language")


def detector_faults(values: Mapping[str, Any], model: str | None) -> Iterator[Fault]:
    """Yield each fault; `model` is the short name, None where it has none."""
    if values.get("attention") == "flex":
        yield "attention", "attention=flex is for fine-tuning", "write auto or sdpa"
    yield from _hold_out_faults(values)
    yield from _list_faults(values)
    if values.get("objective") == "both" and values.get("contrastive_weight") == 0:
        text = "objective=both with contrastive_weight=0 trains no similarity"
        yield "contrastive_weight", text, "set a weight, such as 0.5, or objective to detect"
    members, size = values.get("members_per_task"), values.get("global_batch_size")
    if type(members) is int and type(size) is int and members > size:
        text = f"members_per_task={members} is more than global_batch_size={size}"
        yield "members_per_task", text, f"set members_per_task to {size} or less"
    shares = values.get("valid_share"), values.get("test_share")
    if all(isinstance(share, float) for share in shares) and sum(shares) >= 0.8:  # type: ignore[arg-type]
        text = f"valid_share and test_share take {sum(shares):.0%} of the rows"  # type: ignore[arg-type]
        yield "test_share", text, "leave at least a fifth for training"
    yield from length_faults(values, model)


def _hold_out_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    given = values.get("hold_out")
    if not isinstance(given, str):
        return
    name, sign, value = given.partition("=")
    if name.strip() not in HOLD_OUT_FIELDS or not sign or not value.strip():
        text = f"hold_out={given[:60]!r} does not name what is kept out"
        yield "hold_out", text, "write source=NAME, generator=NAME or language=NAME"
    elif values.get("objective") == "similar" and name.strip() == "generator":
        text = "hold_out=generator… is about who wrote the code, and objective=similar is not"
        yield "hold_out", text, "hold out a source or a language"


def _list_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    for name in ("augment", "languages", "prevalences"):
        given = values.get(name)
        if isinstance(given, list) and len(set(map(str, given))) < len(given):
            yield name, f"{name} names one thing twice", "keep one of each"
    if values.get("augment") == [] and values.get("augment_share"):
        text = f"augment_share={values['augment_share']} with no edit in augment changes nothing"
        yield "augment_share", text, "set augment_share to 0.0, or name edits in augment"
    languages = values.get("languages")
    if isinstance(languages, list) and (odd := [x for x in languages if x != str(x).lower()]):
        text = f"languages holds {str(odd[0])[:40]!r}"
        yield "languages", text, f"write {str(odd[0]).lower()[:40]}: names are in lower case"
