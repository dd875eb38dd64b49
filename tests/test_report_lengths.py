"""Promise: the lengths of the training samples stand against the length at which they are cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from finetune_on_disk import write_finetune

from nbhelpers.errors import ConfigError
from nbhelpers.reports.lengths import show_lengths


def test_lengths_are_bars_of_text_and_a_picture(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "finetune-t4-1")
    told = json.loads((folder / "result.json").read_text())["data"]["lengths"]
    found = show_lengths(folder)
    head, *bars = repr(found).splitlines()
    assert f"{sum(told['counts']):,} training samples" in head
    assert f"seq_len, {told['seq_len']:,} tokens" in head
    assert f"{100 * told['cut_share']:.1f} %" in head
    first = next(at for at, n in enumerate(told["counts"]) if n)
    assert len(bars) == len(told["counts"]) - first
    largest = max(range(len(bars)), key=lambda at: found.counts[first + at])
    assert bars[largest].count("#") == 20 and all(bar.count("#") <= 20 for bar in bars)
    assert found._repr_png_().startswith(b"\x89PNG")


def test_a_run_without_lengths_is_refused(tmp_path: Path) -> None:
    folder = write_finetune(tmp_path / "finetune-t4-1")
    data = json.loads((folder / "result.json").read_text())
    del data["data"]["lengths"]
    (folder / "result.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="tells no lengths"):
        show_lengths(folder)
