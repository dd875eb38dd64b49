"""Clone detection on function pairs: check, build_data, build_model, train, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nbhelpers.data import load_clone_data
from nbhelpers.data.dataflow import extract_corpus
from nbhelpers.data.pairs import CloneData
from nbhelpers.job_specs import CLONES
from nbhelpers.jobs.clone_scores import score_splits
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.pairs import Inputs, PairTask, largest_batch_budget, load_weights
from nbhelpers.jobs.smoke import pretrained_encoder
from nbhelpers.jobs.training import Training, train_task
from nbhelpers.models.clones import CloneModel, is_of_graph_script
from nbhelpers.models.encoders import Tokeniser, build_clone_model, build_tokenizer
from nbhelpers.models.graph_inputs import GraphTable, graph_table
from nbhelpers.models.inputs import TokenTable, tokenise
from nbhelpers.models.weights import read_state_dict
from nbhelpers.schema import ClonesSettings

LANGUAGE = "java"  # of BigCloneBench
HEAD = 1  # a stream of random numbers of its own


def check(settings: ClonesSettings) -> list[str]:
    """Return what is wrong with the settings for this job; empty when nothing is."""
    problems = []
    if settings.pretrain_steps and settings.model not in CLONES.models.embedded:
        problems.append("pretrain_steps is for the smoke models only; set it to 0")
    return problems


def build_data(context: RunContext) -> Inputs:
    """Read the pairs and tokenise each distinct function once."""
    s = context.settings
    data = load_clone_data(
        s.data,
        revision=s.data_revision,
        on_bad_rows=s.on_bad_rows,
        train_fraction=s.train_fraction,
        max_train_samples=s.max_train_samples,
        seed=s.seed,
        require=("test",) if context.checkpoint else ("train", "valid", "test"),
    )
    found = build_tokenizer(s, [data.functions[row] for row in train_functions(data)])
    build = _text_table if s.data_flow_length is None else _graph_table
    table = build(context, data, found)
    if table.truncated:
        share = table.truncated / len(data.functions)
        context.warn(
            f"{table.truncated} functions ({share:.1%}) are longer than seq_len={s.seq_len} and "
            "are cut."
        )
    return Inputs(data=data, table=table, found=found)


def _text_table(context: RunContext, data: CloneData, found: Tokeniser) -> TokenTable:
    return tokenise(
        data.functions,
        found.tokenizer,
        seq_len=context.settings.seq_len,
        vocab_size=found.config.vocab_size,
        report=context.progress("tokenise"),
    )


def _graph_table(context: RunContext, data: CloneData, found: Tokeniser) -> GraphTable:
    s = context.settings
    flows = extract_corpus(
        data.functions,
        LANGUAGE,
        grammar_compat=s.grammar_compat,
        report=context.progress("data flow"),
    )
    if flows.problems:
        index, reason = next(iter(sorted(flows.problems.items())))
        context.warn(
            f"{len(flows.problems)} of {len(flows)} functions have no data flow or one that the "
            f"parser had to guess; the first is {data.ids[index]}: {reason.rstrip('.')}."
        )
    return graph_table(
        flows,
        found.tokenizer,
        seq_len=s.seq_len,
        data_flow_length=s.data_flow_length,
        positions=found.config.max_position_embeddings,
        vocab_size=found.config.vocab_size,
    )


def train_functions(data: CloneData) -> np.ndarray:
    """Return the functions of the train pairs, ascending; without train pairs, none."""
    pairs = data.splits.get("train")
    if pairs is None:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([pairs.left, pairs.right]))


def build_model(context: RunContext, inputs: Inputs) -> CloneModel:
    """Return the model in fp32 on the CPU; the caller seeds before."""

    def pretrain(config: Any) -> Any:
        encoder = pretrained_encoder(
            config,
            inputs.table,
            train_functions(inputs.data),
            steps=context.settings.pretrain_steps,
            seed=context.settings.seed,
            report=context.pretraining(),
        )
        # The head must start the same whether the encoder was trained just now or cached.
        seed_everything(context.settings.seed, HEAD)
        return encoder

    model = build_clone_model(context.settings, inputs.found, pretrain=pretrain)
    if context.checkpoint:
        state = read_state_dict(context.checkpoint)
        load_weights(model, state, str(context.checkpoint))
        if context.settings.data_flow_length is None and is_of_graph_script(state):
            context.warn(
                "The weights have the names of GraphCodeBERT's script, which reads data flow, and "
                "this run reads plain text: its scores are then not that model's. If it was "
                "trained there, set data_flow_length, such as 128."
            )
    return model


def train(context: RunContext, inputs: Inputs, model: CloneModel) -> Training:
    """Train on the pairs; the model ends as the checkpoint with the best F1 on valid."""

    def save_files(folder: Path) -> None:
        inputs.found.config.save_pretrained(folder)
        inputs.found.tokenizer.save_pretrained(folder)

    task = _task(context, inputs, model)
    return train_task(
        context,
        task,
        model,
        predict=lambda windows: largest_batch_budget(context, task, windows),
        save_files=save_files,
    )


def _task(context: RunContext, inputs: Inputs, model: CloneModel) -> PairTask:
    tflops = context.gpu_tflops
    return PairTask(context.settings, inputs, context.accelerator, model, gpu_tflops=tflops)


def evaluate(
    context: RunContext, inputs: Inputs, model: CloneModel, training: Training | None
) -> None:
    """Score valid and test, write predictions and the result; all ranks encode, rank 0 writes."""
    score_splits(context, inputs, _task(context, inputs, model), model, training)
