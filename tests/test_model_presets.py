"""Promise: `model: graphcodebert` is all that changes. A preset says under `models:` what differs
for a model, every value names its line, and a mistake there is reported like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.shapes import SMOKE_MODELS, find_shape
from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.catalog import POSITIONS
from nbhelpers.presets.jobs import CLONES
from nbhelpers.presets.loading import list_presets, load_preset, parameter_overrides
from nbhelpers.presets.parameters import check_parameters
from nbhelpers.presets.preset import Preset

GRAPH, TEXT = "microsoft/graphcodebert-base", "microsoft/codebert-base"
GPUS = sorted(read_yaml(configs_dir() / "gpus.yaml"))
FITTED = [n for n in list_presets("clones") if not n.startswith("seed-") and n != "smoke"]
BASE = """
about: b
settings:
{base}
  seq_len: 64
  learning_rate: 1.0e-3
models:
  graphcodebert:
    seq_len: 32
    seed: 2
    why: {{seq_len: short}}
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def write_pair(folder: Path, overlay: str) -> str:
    """A base with an entry for GraphCodeBERT, and an overlay; return the overlay's path."""
    settings = read_yaml(configs_dir() / "clones" / "base.yaml")["settings"]
    skipped = ("seq_len", "learning_rate", "seed")
    lines = [f"  {k}: {json.dumps(v)}" for k, v in settings.items() if k not in skipped]
    base = "\n".join([*lines, "  seed: 1"]).replace("1e-08", "1.0e-8")
    write(folder, BASE.format(base=base), "mybase.yaml")
    return write(folder, f"about: mine\nextends: mybase\n{overlay}\n")


# What the shipped presets say


def test_graphcodebert_brings_its_lengths_and_says_where_they_stand():
    preset = load_preset("clones", "l4", overrides={"model": "graphcodebert"})
    s = preset.settings
    assert (s.model, s.seq_len, s.data_flow_length, s.function_length) == (GRAPH, 400, 128, 528)
    assert preset.provenance["model"] == "overrides (alias graphcodebert)"
    assert preset.provenance["seq_len"] == "configs/clones/base.yaml (models: graphcodebert)"
    origin = preset.provenance["per_device_train_batch_size"]
    assert origin == "configs/clones/l4.yaml (models: graphcodebert)"
    assert {"seq_len", "data_flow_length"} <= {name for name, *_ in preset.changed()}
    assert preset.why["seq_len"] and "128 data-flow nodes" in repr(preset)
    assert not any("changes the experiment" in note for note in preset.notes)


def test_the_hub_id_counts_as_its_alias_and_a_folder_has_no_alias(tmp_path):
    by_id = load_preset("clones", "l4", overrides={"model": GRAPH})
    by_alias = load_preset("clones", "l4", overrides={"model": "graphcodebert"})
    assert by_id.settings == by_alias.settings
    folder = load_preset("clones", "l4", overrides={"model": str(tmp_path)})
    assert (folder.settings.seq_len, folder.settings.data_flow_length) == (1024, None)


def test_codebert_reads_plain_text_of_the_same_length():
    s = load_preset("clones", "t4", overrides={"model": "codebert"}).settings
    assert (s.model, s.seq_len, s.data_flow_length) == (TEXT, 400, None)


def test_the_model_alone_never_changes_the_rest_of_the_experiment():
    codegpt = load_preset("clones", "h100").settings.model_dump()
    for model in ("graphcodebert", "codebert"):
        other = load_preset("clones", "h100", overrides={"model": model}).settings.model_dump()
        may = {"model", "seq_len", "data_flow_length"}
        may |= {"per_device_train_batch_size", "per_device_eval_batch_size"}
        assert {name for name in codegpt if codegpt[name] != other[name]} <= may


def test_the_model_of_smoke_has_its_graph_and_keeps_its_pre_training():
    s = load_preset("clones", "smoke", overrides={"model": "smoke-graphcodebert"}).settings
    assert (s.seq_len, s.data_flow_length, s.pretrain_steps) == (256, 64, 500)
    assert set(CLONES.models.embedded) == set(SMOKE_MODELS)


@pytest.mark.parametrize("model", ["codegpt", "graphcodebert", "codebert"])
def test_the_known_positions_are_those_of_the_models_shape(model):
    s = load_preset("clones", "base", overrides={"model": model}).settings
    assert find_shape(s).code_positions == POSITIONS[model]
    with pytest.raises(ConfigError, match=f"set seq_len to {POSITIONS[model]} or less"):
        load_preset("clones", "base", overrides={"model": model, "seq_len": 1025})


@pytest.mark.parametrize("model", ["graphcodebert", "codebert"])
@pytest.mark.parametrize("name", FITTED)
def test_every_preset_fits_its_gpu_with_every_model_and_leaves_nothing_idle(name, model):
    bare = load_preset("clones", name, overrides={"model": model})
    hardware = plan_hardware(bare.gpu, bare.num_target_gpus)
    chosen = load_preset("clones", name, hardware=hardware, overrides={"model": model})
    size = chosen.settings.per_device_train_batch_size
    assert predict_memory(chosen, plan_batch(chosen, hardware), hardware).verdict == "fits"
    if size * bare.num_target_gpus < chosen.settings.global_batch_size:
        more = {"per_device_train_batch_size": 2 * size, "per_device_eval_batch_size": 8 * size}
        larger = chosen.override(**more)
        verdict = predict_memory(larger, plan_batch(larger, hardware), hardware).verdict
        assert verdict in ("tight", "does not fit")


@pytest.mark.parametrize("model", ["graphcodebert", "codebert"])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_auto_fits_on_every_gpu_that_we_know(gpu, count, model):
    hardware = plan_hardware(gpu, count)
    preset = load_preset("clones", hardware=hardware, overrides={"model": model})
    plan = plan_batch(preset, hardware)
    assert plan.global_batch_size == 64
    assert predict_memory(preset, plan, hardware).verdict == "fits"


@pytest.mark.parametrize("path", sorted((configs_dir() / "clones").glob("*.yaml")), ids=str)
def test_every_entry_for_a_model_is_a_difference_with_its_reason(path):
    for model, section in (read_yaml(path).get("models") or {}).items():
        reasons = section.get("why") or {}
        names = set(section) - {"why"}
        assert names and names == set(reasons), (path.stem, model)


def test_seed_graphcodebert_quotes_the_seed():
    preset = load_preset("clones", "seed-graphcodebert")
    s = preset.settings
    assert (s.model, s.seq_len, s.data_flow_length) == (GRAPH, 400, 128)
    assert (s.per_device_train_batch_size, s.global_batch_size, s.num_gpus) == (16, 64, "auto")
    assert (s.per_device_eval_batch_size, s.save_steps, s.save_total_limit) == (32, 500, 2)
    assert (s.learning_rate, s.epochs, s.seed, s.max_grad_norm) == (5e-5, 2, 3, 1.0)
    assert (s.padding, s.precision, s.attention) == ("fixed", "fp32", "eager")
    assert all(preset.why.get(name) for name, *_ in preset.changed())


# Order of precedence


def test_each_place_wins_over_those_before_it(tmp_path):
    overlay = "models:\n  graphcodebert: {seed: 4}\nsettings:\n  seed: 3\n  epochs: 7"
    path = write_pair(tmp_path, overlay)
    assert load_preset("clones", path).settings.seed == 3
    preset = load_preset("clones", path, overrides={"model": "graphcodebert"})
    s = preset.settings
    assert (s.seed, s.epochs, s.seq_len) == (4, 7, 32)
    given = {"model": "graphcodebert", "seed": 5}
    assert load_preset("clones", path, overrides=given).settings.seed == 5
    without = write_pair(tmp_path, "settings:\n  seed: 3")
    s = load_preset("clones", without, overrides={"model": "graphcodebert"}).settings
    assert s.seed == 2  # the base's line for the model beats the overlay's for another model


def test_settings_beside_the_models_name_were_written_for_it(tmp_path):
    path = write_pair(tmp_path, "settings:\n  model: graphcodebert\n  seed: 3")
    preset = load_preset("clones", path)
    assert (preset.settings.seed, preset.settings.seq_len) == (3, 32)
    other = load_preset("clones", path, overrides={"model": "codegpt"}).settings
    assert (other.seed, other.seq_len) == (3, 64)


def test_an_override_is_measured_against_what_the_base_says_for_this_model(tmp_path):
    path = write_pair(tmp_path, "")
    notes = load_preset("clones", path, overrides={"model": "graphcodebert", "seq_len": 64}).notes
    assert any("seq_len=64 changes the experiment (base: 32)" in note for note in notes)
    same = load_preset("clones", path, overrides={"model": "graphcodebert", "seq_len": 32})
    assert not any("changes the experiment" in note for note in same.notes)
    later = load_preset("clones", path, overrides={"model": "graphcodebert"}).override(seq_len=64)
    assert any("seq_len=64 changes the experiment (base: 32)" in note for note in later.notes)


def test_another_model_after_loading_keeps_the_values_and_says_so():
    preset = load_preset("clones", "l4").override(model="codebert", seq_len=400)
    assert any("were chosen for codegpt" in note for note in preset.notes)


def test_a_gpt_2_drops_the_files_data_flow_and_refuses_yours():
    preset = load_preset("clones", "seed-graphcodebert", overrides={"model": "codegpt"})
    assert preset.settings.data_flow_length is None
    assert any("data_flow_length 128 -> None" in note for note in preset.notes)
    with pytest.raises(ConfigError, match="set model to graphcodebert"):
        load_preset("clones", "l4", overrides={"data_flow_length": 128})
    with pytest.raises(ConfigError, match="set model to smoke-graphcodebert"):
        load_preset("clones", "smoke", overrides={"data_flow_length": 0})


def test_data_flow_may_be_switched_off_and_is_named_as_another_experiment():
    given = {"model": "graphcodebert", "data_flow_length": 0}
    preset = load_preset("clones", "l4", overrides=given)
    assert preset.settings.function_length == 400
    assert any("data_flow_length=0 changes the experiment (base: 128)" in n for n in preset.notes)


# Mistakes under `models:`


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("graphcodebret: {seed: 4}", ["no model `graphcodebret`", "did you mean `graphcodebert`?"]),
        (f"{GRAPH}: {{seed: 4}}", ["no model `microsoft/graph", "did you mean `graphcodebert`?"]),
        ("codebert: {sed: 4}", ["there is no setting `sed`", "did you mean `seed`?"]),
        ("codebert: {seed: x}", ["`seed` must be an integer"]),
        ("codebert: {seed: -1}", ["set seed to 0 or more"]),
        ("codebert: 3", ["`models.codebert` must hold settings; it is 3"]),
        ("codebert:", ["`models.codebert` must hold settings; it is None"]),
        ("codebert: {why: text}", ["`models.codebert.why` must be of type dict"]),
        ("codebert: {seed: 4, why: {sede: x}}", ["`why` names no setting `sede`"]),
        ("codebert: {seed: 4, why: {seed: 3}}", ["`why.seed` is no text"]),
        ("codebert: {model: codegpt}", ["cannot choose another model", "under `settings:`"]),
        ("codebert: {seq_len: 512}", ["1024 -> 512 changes the experiment", "of this model"]),
        ("codebert: {code_length: 512}", ["1024 -> 512 changes the experiment", "of this model"]),
        ("codebert: {code_length: 8, seq_len: 9}", ["`code_length` is 8 and `seq_len` is 9"]),
    ],
)
@pytest.mark.parametrize("chosen", [{}, {"model": "codebert"}])
def test_a_mistake_for_a_model_is_named_with_its_line_whichever_model_runs(
    tmp_path, lines, words, chosen
):
    head = "about: mine\nextends: base0\nsettings:\n  seed: 5\nmodels:\n"
    base = read_yaml(configs_dir() / "clones" / "base.yaml")
    body = "\n".join(f"  {k}: {json.dumps(v)}" for k, v in base["settings"].items())
    write(tmp_path, "about: b\nsettings:\n" + body.replace("e-0", ".0e-0"), "base0.yaml")
    with pytest.raises(ConfigError) as error:
        load_preset("clones", write(tmp_path, f"{head}  {lines}\n"), overrides=chosen)
    assert "mine.yaml:6:" in str(error.value)
    assert error.value.fix
    for word in words:
        assert word in str(error.value)


def test_all_mistakes_of_all_models_come_at_once(tmp_path):
    text = "extends: base\nmodels:\n  codebert: {sed: 4}\n  grapcodebert: {epochs: 0}\n"
    with pytest.raises(ConfigError) as error:
        load_preset("clones", write(tmp_path, text), overrides={"model": "codegtp"})
    found = str(error.value)
    for words in ("mine.yaml:3: there is no setting `sed`", "mine.yaml:4: `models` names no model"):
        assert words in found
    assert "mine.yaml:4: `epochs` must be" in found and "did you mean `codegpt`?" in found


def test_an_unhashable_model_is_an_error_and_no_crash(tmp_path):
    for text in ("settings: {model: [1]}", "models: [1]", "models: {codebert: [1]}", "models: 3"):
        with pytest.raises(ConfigError):
            load_preset("clones", write(tmp_path, f"extends: base\n{text}\n"))


# `code_length`


def test_code_length_is_another_spelling_of_seq_len_everywhere(tmp_path):
    text = "extends: base\nsettings:\n  code_length: 256\nwhy:\n  code_length: short\n"
    path = write(tmp_path, text)
    preset = load_preset("clones", path)
    assert preset.settings.seq_len == 256 and preset.why["seq_len"] == "short"
    assert load_preset("clones", path, overrides={"code_length": 99}).settings.seq_len == 99
    assert preset.override(code_length=98).settings.seq_len == 98
    assert parameter_overrides("clones", {"code_length": 97})[1] == {"seq_len": 97}
    assert "code_length" not in json.dumps(preset.to_dict()["settings"])
    wrong = write(tmp_path, "extends: base\nsettings:\n  seed: 3\n  code_length: x\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:4: `seq_len` must be an integer"):
        load_preset("clones", wrong)


def test_both_spellings_may_agree_and_must(tmp_path):
    for given, fine in (({"code_length": 64, "seq_len": 64}, True), ({"code_length": 64}, True)):
        assert load_preset("clones", "base", overrides=given).settings.seq_len == 64, fine
    unlike = {"code_length": 64, "seq_len": 65}
    with pytest.raises(ConfigError, match="they are one setting"):
        load_preset("clones", "base", overrides=unlike)
    with pytest.raises(ConfigError, match="they are one setting"):
        load_preset("clones", "base").override(**unlike)


def test_bare_papermill_may_inject_code_length():
    cells = [
        "seq_len = None  # @param\nrun_dir = 'runs'  # @param",
        "# Parameters\ncode_length = 9",
    ]
    names = {"In": cells, "seq_len": None, "run_dir": "runs", "code_length": 9}
    assert check_parameters("clones", names) == {"seq_len": 9}


# A saved preset


def test_a_preset_of_an_earlier_version_is_still_read():
    saved = load_preset("clones", "l4").to_dict()
    del saved["per_device_limit"]
    for name in ("data_flow_length", "grammar_compat"):
        del saved["settings"][name], saved["provenance"][name]
    assert Preset.from_dict(saved).settings == load_preset("clones", "l4").settings


@pytest.mark.parametrize("model", CLONES.models.names)
def test_every_known_model_loads_and_survives_json(model):
    preset = load_preset("clones", "smoke", overrides={"model": model})
    assert preset.settings.model == CLONES.models.aliases.get(model, model)
    again = Preset.from_dict(json.loads(json.dumps(preset.to_dict())))
    assert again == preset


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_folder_with_another_kind_of_model_is_refused_before_the_launch(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(ConfigError, match=rf"of the type {family}") as caught:
        load_preset("clones", "base", overrides={"model": str(tmp_path)})
    assert "gpt2 or roberta" in str(caught.value)
