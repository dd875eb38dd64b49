"""Promise: a preset knows where each value came from, `auto` finds the one for a GPU and says so,
users bring their own, a model brings what differs for it, and a notebook's parameters are as strict
as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.presets.jobs import CLONES
from nbhelpers.presets.loading import list_presets, load_preset, parameter_overrides
from nbhelpers.presets.parameters import check_parameters
from nbhelpers.presets.preset import Preset

CODEGPT = "microsoft/CodeGPT-small-java-adaptedGPT2"
GRAPH = "microsoft/graphcodebert-base"
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


def no_gpu() -> Hardware:
    return replace(plan_hardware("t4"), gpus=(), reason="no driver", is_planned=False)


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def one_gpu(name: str, gib: float, capability: tuple[int, int]) -> Hardware:
    size = int(gib * 2**30)
    gpu = Gpu(
        index=0,
        uuid="",
        name=name,
        key=None,
        memory_total_bytes=size,
        memory_free_bytes=size,
        compute_capability=capability,
    )
    return replace(plan_hardware("t4"), gpus=(gpu,))


def write_pair(folder: Path, overlay: str) -> str:
    """A base with an entry for GraphCodeBERT, and an overlay; return the overlay's path."""
    settings = read_yaml(configs_dir() / "clones" / "base.yaml")["settings"]
    skipped = ("seq_len", "learning_rate", "seed")
    lines = [f"  {k}: {json.dumps(v)}" for k, v in settings.items() if k not in skipped]
    base = "\n".join([*lines, "  seed: 1"]).replace("1e-08", "1.0e-8")
    write(folder, BASE.format(base=base), "mybase.yaml")
    return write(folder, f"about: mine\nextends: mybase\n{overlay}\n")


def test_an_alias_becomes_its_hub_id_and_is_named():
    preset = load_preset("clones", "smoke", overrides={"model": "codegpt"})
    assert preset.settings.model == CODEGPT
    assert preset.provenance["model"] == "overrides (alias codegpt)"
    assert preset.override(seed=4).settings.model == CODEGPT


def test_another_model_on_smoke_drops_the_pretraining_and_says_so():
    preset = load_preset("clones", "smoke", overrides={"model": "codegpt"})
    assert preset.settings.pretrain_steps == 0
    assert any("pretrain_steps" in note for note in preset.notes)
    with pytest.raises(ConfigError, match="smoke models only"):
        load_preset("clones", "smoke", overrides={"model": "codegpt", "pretrain_steps": 10})


@pytest.mark.parametrize(
    ("gpu", "count", "name"),
    [
        ("t4", 1, "t4"),
        ("t4", 2, "t4"),
        ("rtx6000ada", 1, "rtx6000ada"),
        ("rtx6000ada", 2, "2x-rtx6000ada"),
        ("rtx6000ada", 4, "rtx6000ada"),
        ("h100", 8, "h100"),
    ],
)
def test_auto_takes_the_preset_of_this_gpu_and_count(gpu, count, name):
    preset = load_preset("clones", hardware=plan_hardware(gpu, count))
    assert preset.name == name
    assert not any("no preset was made" in note for note in preset.notes)
    assert (count in (1, preset.num_target_gpus)) or any("share" in n for n in preset.notes)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("rtx4090", "l4"),
        ("rtx3090", "l4"),
        ("rtx5090", "l4"),
        ("a10g", "l4"),
        ("rtx-a6000", "rtx6000ada"),
        ("l40s", "rtx6000ada"),
        ("v100-32gb", "t4"),
        ("quadro-rtx6000", "t4"),
        ("h200", "h100"),
        ("b200", "h100"),
        ("rtxpro6000", "h100"),
    ],
)
def test_an_unknown_gpu_gets_the_nearest_preset_and_a_note(gpu, name):
    preset = load_preset("clones", hardware=plan_hardware(gpu))
    assert preset.name == name
    assert any("no preset was made for" in note and name in note for note in preset.notes)


@pytest.mark.parametrize(
    "hardware",
    [
        one_gpu("GeForce GTX 1080", 8, (6, 1)),
        one_gpu("Tesla P100-PCIE-16GB", 16, (6, 0)),
        one_gpu("GeForce RTX 3060", 12, (8, 6)),
        one_gpu("unknown", 0, (0, 0)),
    ],
)
def test_a_gpu_below_all_presets_gets_t4_and_a_warning(hardware):
    preset = load_preset("clones", hardware=hardware)
    assert preset.name == "t4"
    assert any(note.startswith("warning: ") and "below every GPU" in note for note in preset.notes)


def test_an_a100_is_not_given_the_preset_of_a_newer_card_of_its_size():
    hardware = one_gpu("A800-SXM4-80GB", 80, (8, 0))
    assert load_preset("clones", hardware=hardware).name == "a100-80gb"


def test_of_unlike_gpus_the_smallest_decides_and_bf16_needs_all():
    small, large = plan_hardware("t4"), plan_hardware("a100-80gb")
    both = replace(large, gpus=(*large.gpus, *small.gpus))
    preset = load_preset("clones", hardware=both)
    assert preset.name == "t4" and any("unlike GPUs" in note for note in preset.notes)
    with pytest.raises(ConfigError, match="bf16"):
        load_preset("clones", hardware=both, overrides={"precision": "bf16"})


def test_num_gpus_decides_which_preset_a_pair_of_gpus_gets():
    hardware = plan_hardware("rtx6000ada", 2)
    assert load_preset("clones", hardware=hardware, overrides={"num_gpus": 1}).name == "rtx6000ada"


def test_many_gpus_share_the_global_batch_by_a_smaller_per_device_batch():
    preset = load_preset("clones", hardware=plan_hardware("h100", 8))
    assert preset.settings.per_device_train_batch_size == 8
    assert preset.settings.global_batch_size == 64
    assert preset.provenance["per_device_train_batch_size"] == "derived for 8 GPUs"
    given = {"per_device_train_batch_size": 32}
    kept = load_preset("clones", hardware=plan_hardware("h100", 8), overrides=given)
    assert kept.settings.per_device_train_batch_size == 32


@pytest.mark.parametrize("gpu", ["t4", "v100-16gb", "quadro-rtx6000"])
def test_capability_below_8_never_gets_bf16(gpu):
    hardware = plan_hardware(gpu)
    assert load_preset("clones", hardware=hardware).settings.precision != "bf16"
    with pytest.raises(ConfigError, match=r"needs 8\.0"):
        load_preset("clones", hardware=hardware, overrides={"precision": "bf16"})


def test_fp16_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="no GPU"):
        load_preset("clones", hardware=no_gpu(), overrides={"precision": "fp16"})


def test_a_users_folder_adds_presets_and_wins_over_shipped_ones(tmp_path, monkeypatch):
    folder = tmp_path / "clones"
    folder.mkdir()
    write(folder, "extends: base\ngpu: l4\nsettings: {seed: 9}\n", "own.yaml")
    write(folder, "extends: base\ngpu: t4\nsettings: {seed: 8}\n", "t4.yaml")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(tmp_path))
    assert {"own", "h100"} <= set(list_presets("clones"))
    preset = load_preset("clones", "own")
    assert preset.settings.seed == 9 and preset.settings.epochs == 2
    assert preset.provenance["seed"].endswith("clones/own.yaml")
    assert load_preset("clones", hardware=plan_hardware("t4")).settings.seed == 8


def test_a_users_folder_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("NBHELPERS_CONFIGS", "/no/such/place")
    with pytest.raises(ConfigError, match="does not exist"):
        list_presets("clones")


def test_a_preset_says_where_a_value_came_from():
    preset = load_preset("clones", "l4", overrides={"learning_rate": 2.5e-4})
    assert preset.provenance["seq_len"] == "configs/clones/base.yaml"
    assert preset.provenance["per_device_train_batch_size"] == "configs/clones/l4.yaml"
    assert preset.provenance["eval_steps"] == "nbhelpers/presets/schema.py (default)"
    sentence = preset.where("learning_rate")
    assert "0.00025" in sentence and "overrides" in sentence and "5e-05" in sentence
    assert "configs/clones/l4.yaml" in preset.where("per_device_train_batch_size")
    assert set(preset.provenance) == set(preset.settings.model_dump())


def test_asking_where_for_an_unknown_name_suggests_the_right_one():
    with pytest.raises(ConfigError, match="learning_rate"):
        load_preset("clones", "base").where("lerning_rate")


def test_an_override_of_the_experiment_leaves_a_note_and_no_foreign_reason():
    preset = load_preset("clones", "smoke", overrides={"global_batch_size": 64, "epochs": 2})
    assert not any("global_batch_size" in note for note in preset.notes)
    assert "global_batch_size" not in preset.why  # equal to the base again: nothing to explain
    preset = load_preset("clones", "base", overrides={"learning_rate": 1e-3})
    assert any("learning_rate=0.001 changes the experiment" in note for note in preset.notes)


def test_none_means_that_an_override_is_not_given():
    preset = load_preset("clones", "t4", overrides={"seq_len": None, "seed": 7})
    assert preset.settings.seq_len == 1024 and preset.settings.seed == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": 1}, "lacks or adds"),
        ({"why": ...}, "lacks or adds"),
        ({"settings": {"seq_len": "1024"}}, "seq_len"),
    ],
)
def test_a_saved_preset_of_another_form_is_refused(change, words):
    saved = load_preset("clones", "base").to_dict()
    settings = saved["settings"] | change.get("settings", {})
    data = saved | change | {"settings": settings}
    with pytest.raises(ConfigError, match=words):
        Preset.from_dict({key: value for key, value in data.items() if value is not ...})


def test_the_repr_is_one_line_and_the_html_escapes_what_users_write(tmp_path):
    folder = tmp_path / "<b>model"
    folder.mkdir()
    preset = load_preset("clones", "base", overrides={"model": str(folder)})
    assert "\n" not in repr(preset)
    shown = preset._repr_html_()
    assert "<b>model" not in shown and "&lt;b&gt;model" in shown
    assert "overrides" in shown and "configs/clones/base.yaml" in shown
    first, _, rest = shown.partition("<details>")
    assert "overrides" in first and "overrides" not in rest


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


def test_empty_parameters_leave_everything_to_the_preset():
    parameters = {"preset": "auto", "model": "", "seq_len": None, "run_dir": "runs", "track": ""}
    assert parameter_overrides("clones", parameters) == ("auto", {})
    assert parameter_overrides("clones", {}) == ("auto", {})


def test_given_parameters_become_overrides():
    name, overrides = parameter_overrides(
        "clones", {"preset": "t4", "num_gpus": 2, "train_fraction": 1, "seed": 0, "run_dir": "x"}
    )
    assert name == "t4"
    assert overrides == {"num_gpus": 2, "train_fraction": 1, "seed": 0}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"epochs": True}, "truth value True"),
        ({"epochs": "3"}, "without quotes: 3"),
        ({"epochs": 2.0}, "an integer"),
        ({"epochs": 0}, "set epochs to 1 or more"),
        ({"train_fraction": "0.1"}, "0.1"),
        ({"trak": "none"}, "did you mean `track`?"),
        ({"preset": "smok"}, "did you mean `smoke`?"),
        ({"preset": 3}, "must be a text"),
        ({"run_dir": 3}, "must be a text"),
        ({"track": "mlflow"}, "'wandb'"),
        ({"model": "graphcodebret"}, "did you mean `graphcodebert`?"),
        ({"code_length": 400, "seq_len": 512}, "they are one setting"),
        ({"data_flow_length": "128"}, "without quotes: 128"),
        ({"data": "smok"}, "did you mean `smoke`?"),
        ({"data": "no"}, "check the path"),
        ({"train_fraction": 2.0}, "set train_fraction to 1 or less"),
        ({"train_fraction": 0.0}, "set train_fraction to more than 0"),
        ({"preset": False}, "must be a text"),
    ],
)
def test_a_wrong_parameter_is_refused(parameters, words):
    with pytest.raises(ConfigError) as error:
        parameter_overrides("clones", parameters)
    assert words in str(error.value)


def test_all_wrong_parameters_are_reported_at_once():
    with pytest.raises(ConfigError, match="5 problems"):
        parameter_overrides(
            "clones", {"preset": "x", "epochs": "3", "seed": 1.5, "sed": 1, "run_dir": 2}
        )
