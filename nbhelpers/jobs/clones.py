"""Clone detection on function pairs: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data import load_clone_data
from nbhelpers.data.pairs import CloneData
from nbhelpers.floors import score_floors
from nbhelpers.jobs import outcome
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.pairs import PairTask, largest_batch_budget, load_weights
from nbhelpers.jobs.smoke import pretrained_encoder
from nbhelpers.jobs.training import Training, train_task
from nbhelpers.metrics import best_threshold, is_positive, score_pairs
from nbhelpers.models.clones import CloneModel
from nbhelpers.models.encoders import Tokeniser, build_clone_model, build_tokenizer
from nbhelpers.models.inputs import TokenTable, tokenise
from nbhelpers.models.weights import read_state_dict
from nbhelpers.predictions import PredictionWriter
from nbhelpers.schema import ClonesSettings

if TYPE_CHECKING:
    from nbhelpers.jobs.session import Session


HEAD = 1  # a stream of random numbers of its own


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run, tokenised."""

    data: CloneData
    table: TokenTable
    found: Tokeniser


def check(settings: ClonesSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    problems = []
    if settings.pretrain_steps and settings.model != "smoke":
        problems.append("pretrain_steps is for model=smoke only; set it to 0")
    return problems


def build_data(session: Session) -> Inputs:
    """Read the pairs and tokenise each distinct function once."""
    s = session.settings
    data = load_clone_data(
        s.data,
        revision=s.data_revision,
        on_bad_rows=s.on_bad_rows,
        train_fraction=s.train_fraction,
        max_train_samples=s.max_train_samples,
        seed=s.seed,
        require=("test",) if session.checkpoint else ("train", "valid", "test"),
    )
    found = build_tokenizer(s, [data.functions[row] for row in train_functions(data)])
    table = tokenise(
        data.functions,
        found.tokenizer,
        seq_len=s.seq_len,
        vocab_size=found.config.vocab_size,
        report=session.progress("tokenise"),
    )
    if table.truncated:
        share = table.truncated / len(data.functions)
        session.warn(
            f"{table.truncated} functions ({share:.1%}) are longer than seq_len={s.seq_len} and "
            "are cut."
        )
    return Inputs(data=data, table=table, found=found)


def train_functions(data: CloneData) -> np.ndarray:
    """Return the functions of the train pairs, ascending; without train pairs, none."""
    pairs = data.splits.get("train")
    if pairs is None:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([pairs.left, pairs.right]))


def build_model(session: Session, inputs: Inputs) -> CloneModel:
    """Return the model in fp32 on the CPU; the caller seeds before."""

    def pretrain(config: Any) -> Any:
        encoder = pretrained_encoder(
            config,
            inputs.table,
            train_functions(inputs.data),
            steps=session.settings.pretrain_steps,
            seed=session.settings.seed,
            report=session.progress("pretrain"),
        )
        # The head must start the same whether the encoder was trained just now or cached.
        seed_everything(session.settings.seed, HEAD)
        return encoder

    model = build_clone_model(session.settings, inputs.found, pretrain=pretrain)
    if session.checkpoint:
        load_weights(model, read_state_dict(session.checkpoint), str(session.checkpoint))
    return model


def train(session: Session, inputs: Inputs, model: CloneModel) -> Training:
    """Train on the pairs; the model ends as the checkpoint with the best F1 on valid."""

    def save_files(folder: Path) -> None:
        inputs.found.config.save_pretrained(folder)
        inputs.found.tokenizer.save_pretrained(folder)

    task = _task(session, inputs, model)
    return train_task(
        session,
        task,
        model,
        predict=lambda windows: largest_batch_budget(session, task, windows),
        save_files=save_files,
    )


def _task(session: Session, inputs: Inputs, model: CloneModel) -> PairTask:
    tflops = session.gpu_tflops
    return PairTask(session.settings, inputs, session.accelerator, model, gpu_tflops=tflops)


def evaluate(
    session: Session, inputs: Inputs, model: CloneModel, training: Training | None
) -> None:
    """Score valid and test, write predictions and the result; all ranks encode, rank 0 writes."""
    task, splits = _task(session, inputs, model), inputs.data.splits
    names = [name for name in splits if name != "train"]
    predicted = {
        name: task.predict(splits[name], session.progress(f"evaluate {name}")) for name in names
    }
    ranks = outcome.gather_memory(session, training)
    if not session.is_main:
        return
    threshold = _threshold(session, splits, predicted)
    scores = _scores(session, inputs, predicted, threshold["value"])
    _write_predictions(session, inputs, predicted, threshold["value"])
    if session.settings.floors:
        _add_floors(session, inputs, predicted, threshold["value"], scores)
    parts = {
        "data": inputs.data.to_dict() | {"truncated_functions": inputs.table.truncated},
        "model": _model_facts(session, inputs, model),
        "threshold": threshold,
        "scores": scores,
        "throughput": _throughput(training, task),
    }
    outcome.write_result(session, training, ranks, parts)


def _threshold(session: Session, splits: Any, predicted: Any) -> dict[str, Any]:
    """Choose the threshold on valid; test never takes part."""
    if "valid" in predicted:
        value = best_threshold(splits["valid"].label, predicted["valid"][0])
        return {"value": float(value), "chosen_on": "valid", "criterion": "f1"}
    session.warn("There are no valid pairs: the threshold is 0.5, not a chosen one.")
    return {"value": 0.5, "chosen_on": "nothing", "criterion": "fixed"}


def _scores(session: Session, inputs: Inputs, predicted: Any, threshold: float) -> dict[str, Any]:
    s, data = session.settings, inputs.data
    scores = {}
    for name, (given, swapped) in predicted.items():
        pairs = data.splits[name]
        scores[name] = score_pairs(
            pairs.left,
            pairs.right,
            pairs.label,
            given,
            swapped,
            threshold,
            seen=data.seen_members(name) if "train" in data.splits else None,
            priors=dict(s.priors),
            bootstrap_samples=s.bootstrap_samples,
            seed=s.seed,
        )
    for name in sorted(scores, key=lambda name: name == "test"):  # last: what progress shows
        session.emit_main("eval", step=-1, split=name, scores=scores[name]["orders"]["given"])
    return scores


def _write_predictions(session: Session, inputs: Inputs, predicted: Any, threshold: float) -> None:
    """Write one line per pair of each test split, in file order."""
    ids = inputs.data.ids
    with PredictionWriter(session.run.predictions_path) as writer:
        for name in (n for n in predicted if n.startswith("test")):
            pairs, (given, swapped) = inputs.data.splits[name], predicted[name]
            decided = is_positive(given, threshold)
            for row in range(len(pairs)):
                writer.write(
                    split=name,
                    row=row,
                    id1=ids[pairs.left[row]],
                    id2=ids[pairs.right[row]],
                    label=int(pairs.label[row]),
                    p=float(given[row]),
                    p_reversed=float(swapped[row]),
                    prediction=int(decided[row]),
                )


def _add_floors(
    session: Session, inputs: Inputs, predicted: Any, threshold: float, scores: dict[str, Any]
) -> None:
    if "train" not in inputs.data.splits or "valid" not in inputs.data.splits:
        session.warn("The floors need train and valid pairs and were left out.")
        return
    session.clock.phase("floors")
    floors = score_floors(
        inputs.data.functions,
        inputs.data.splits,
        seed=session.settings.seed,
        bootstrap_samples=session.settings.bootstrap_samples,
        model={name: (given, threshold) for name, (given, _) in predicted.items()},
    )
    for name, found in floors.items():
        scores[name]["floors"] = found


def _model_facts(session: Session, inputs: Inputs, model: CloneModel) -> dict[str, Any]:
    weights = inputs.found.weights
    return {
        "name": session.settings.model,
        "revision": weights.revision if weights else None,
        "architecture": type(model.encoder).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "random_weights": session.settings.random_weights and session.checkpoint is None,
        "tokenizer": inputs.found.note,
        "seq_len": session.settings.seq_len,
    }


def _throughput(training: Training | None, task: PairTask) -> dict[str, float]:
    if training is None or not training.state.examples:
        return {}
    # With every function of every pair padded to seq_len, as the legacy script does.
    fixed = float(task.costs.mean()) / (2 * task.table.seq_len)
    return outcome.throughput(training.state) | {"fixed_padding_useful_share": fixed}
