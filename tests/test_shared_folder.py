"""Promise: ranks on several nodes go on from one checkpoint, whatever their view of it shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contexts import make_context
from ranks import in_ranks

from nbhelpers.common.files import save_in_cache
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import training
from tests.shared_view_probe import DELAY_S, main, save

CASES = ("resume", "best", "start", "never")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of two ranks got in each case; both started once."""
    folder = tmp_path_factory.mktemp("views")
    in_ranks(2, lambda: [main(folder / what, what) for what in CASES])
    return {
        what: [json.loads((folder / what / f"rank{rank}.json").read_text()) for rank in (0, 1)]
        for what in CASES
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", ["resume", "best"])
def test_a_rank_with_an_old_listing_takes_the_checkpoint_that_rank_0_chose(ranks: dict, what: str):
    first, second = ranks[what]
    assert first["weight"] == second["weight"] == 2.0
    assert first["step"] == second["step"] == (2 if what == "resume" else None)
    assert second["seconds"] >= DELAY_S and not second["error"]


@pytest.mark.slow
def test_a_rank_that_never_sees_the_checkpoint_says_where_to_look(ranks: dict):
    first, second = ranks["never"]
    assert first["step"] == 2 and not first["error"]
    assert "step-00000002" in second["error"] and "does not see it whole" in second["error"]
    assert "all nodes share" in second["error"]
    assert second["weight"] != 1.0, "the older checkpoint was taken instead"


@pytest.mark.slow
def test_without_a_checkpoint_both_ranks_start_anew(ranks: dict):
    assert [facts["step"] for facts in ranks["start"]] == [0, 0]


def test_one_process_chooses_alone_and_never_waits(tmp_path: Path):
    alone = SimpleNamespace(num_processes=1)
    assert ck.agree(alone, tmp_path, lambda: None) is None
    save(tmp_path, 1, is_best=True)
    (path,) = ck.list_checkpoints(tmp_path)
    assert ck.agree(alone, tmp_path, lambda: ck.find_best(tmp_path)) == path


@pytest.mark.parametrize(
    ("nodes", "processes", "wanted"), [(1, 2, [0, 1]), (2, 8, [4, 5, 6, 7]), (2, 4, [4, 5])]
)
def test_rank_0_watches_the_gpus_of_its_own_node_only(monkeypatch, nodes, processes, wanted):
    planned = plan_hardware("h100", 4)
    there = SimpleNamespace(gpus=[SimpleNamespace(index=i, name="H100") for i in range(4, 8)])
    monkeypatch.setattr(training, "detect_hardware", lambda: there)
    plan = SimpleNamespace(use_gpu=True, num_nodes=nodes, processes_per_node=processes // nodes)
    facts = {"hardware": planned.to_dict()}
    assert list(training.watched_gpus(make_context(plan=plan, facts=facts))) == wanted
    assert training.watched_gpus(make_context(plan=plan, facts=facts, rank=1)) == {}


def test_two_nodes_with_equal_process_ids_fill_a_cache_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path, seen = tmp_path / "x.npz", []

    def slow(part: Path) -> None:
        part.write_text("slow, half")
        save_in_cache(path, lambda other: (seen.append(other), other.write_text("quick")))
        assert part.read_text() == "slow, half"
        part.write_text("slow, whole")

    save_in_cache(path, slow)
    assert seen[0].suffix == ".npz" and path.read_text() == "slow, whole"
    assert list(tmp_path.iterdir()) == [path]
