"""Batches of the memory grid: seeded, with real padding, of the lengths that a case names."""

from __future__ import annotations

from typing import Any

import torch

Batch = dict[str, torch.Tensor]


def make_batch(case: dict[str, Any], vocabulary: int, seed: int = 0) -> Batch:
    """Return one micro-batch on the CPU."""
    draw = torch.Generator().manual_seed(seed)
    makers = {"image": _images, "speech": _speech, "pairs": _pairs, "graph": _graphs}
    makers |= {"seq2seq": _translations, "classify": _labelled, "masked": _masked}
    return makers.get(case["task"], _texts)(case, vocabulary, draw)


def _tokens(rows: int, case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    """Token ids and a mask (rows, length); 1 marks a token, and the first row is full."""
    length = case["length"]
    ids = torch.randint(5, vocabulary, (rows, length), generator=draw)
    mask = torch.ones(rows, length, dtype=torch.long)
    if case["padding"]:
        lengths = torch.randint(length * 3 // 10, length, (rows,), generator=draw)
        lengths[0] = length
        mask = (torch.arange(length)[None] < lengths[:, None]).long()
        if case["padding"] == "left":
            mask = mask.flip(1)
        ids = torch.where(mask.bool(), ids, torch.ones_like(ids))
    return {"input_ids": ids, "attention_mask": mask}


def _texts(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    batch = _tokens(case["batch"], case, vocabulary, draw)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    if not case["padding"] and case["mask"] == "none":
        del batch["attention_mask"]
    return batch | {"labels": labels}


def _masked(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    batch = _tokens(case["batch"], case, vocabulary, draw)
    ids = batch["input_ids"]
    hidden = (torch.rand(ids.shape, generator=draw) < 0.15) & (batch["attention_mask"] == 1)
    labels = torch.where(hidden, ids, torch.full_like(ids, -100))
    return (
        batch
        | {"input_ids": torch.where(hidden, torch.full_like(ids, 4), ids)}
        | {"labels": labels}
    )


def _labelled(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    batch = _tokens(case["batch"], case, vocabulary, draw)
    return batch | {"labels": torch.randint(0, 2, (case["batch"],), generator=draw)}


def _pairs(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    batch = _tokens(2 * case["batch"], case, vocabulary, draw)
    return batch | {"labels": torch.randint(0, 2, (case["batch"],), generator=draw)}


def _graphs(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    rows, length = 2 * case["batch"], case["length"]
    nodes = length // 4
    batch = _tokens(rows, case | {"padding": False}, vocabulary, draw)
    positions = torch.cat([torch.arange(2, 2 + length - nodes), torch.zeros(nodes).long()])
    sees = torch.rand(rows, length, length, generator=draw) > 0.3
    sees[:, :, 0] = True
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": sees,
        "position_ids": positions[None].expand(rows, -1).contiguous(),
        "labels": torch.randint(0, 2, (case["batch"],), generator=draw),
    }


def _translations(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    batch = _tokens(case["batch"], case, vocabulary, draw)
    target = _tokens(case["batch"], case | {"length": case["target"]}, vocabulary, draw)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
    return batch | {"labels": labels}


def _images(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    size = 32 if case["tiny"] else 224
    pixels = torch.randn(case["batch"], 3, size, size, generator=draw)
    return {
        "pixel_values": pixels.to(getattr(torch, case["weights"])),
        "labels": torch.randint(0, 2, (case["batch"],), generator=draw),
    }


def _speech(case: dict[str, Any], vocabulary: int, draw: torch.Generator) -> Batch:
    frames = 40 if case["tiny"] else 3000
    sound = torch.randn(case["batch"], 80, frames, generator=draw)
    labels = torch.randint(5, vocabulary, (case["batch"], case["target"]), generator=draw)
    return {"input_features": sound.to(getattr(torch, case["weights"])), "labels": labels}
