"""Promise: a preset file is checked as a whole: every mistake comes with its place and its fix, all
of them at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.presets.checks import yaml_number
from nbhelpers.presets.loading import list_presets, load_preset

GRAPH = "microsoft/graphcodebert-base"


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2e-4\n", 2, ["as text", "2.0e-4"]),
        ("b: 2.5e4\n", 1, ["2.5e+4"]),
        ("b: -1E6\n", 1, ["-1.0e+6"]),
        ("a: 1\nb: 2\na: 3\n", 3, ["`a` is given twice", "first in line 1"]),
        ("s:\n  x: 1\n  x: 1\n", 3, ["`x` is given twice"]),
        ("a:\n\tb: 1\n", 2, ["tab", "spaces"]),
        ("a: [1, 2\n", 2, ["not valid YAML"]),
        ("on: 1\n", 1, ["not text", '"on"']),
        ("b: 010\n", 1, ["base 8"]),
        ("a: !!python/object:os.x {}\n", 1, ["not valid YAML"]),
    ],
)
def test_a_yaml_mistake_is_named_with_its_line_and_its_fix(tmp_path, text, line, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert f"mine.yaml:{line}:" in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("value", ["0", "0.5", "10", "1_000", "'010'", "0.010"])
def test_an_ordinary_value_passes(tmp_path: Path, value: str) -> None:
    assert set(read_yaml(write(tmp_path, f"b: {value}\n"))) == {"b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# a comment only\n", "is empty"),
        ("- 1\n- 2\n", "holds a list"),
        ("text\n", "holds a str"),
        ("a: &x [*x]\n", "not valid YAML"),
        ("day: 2024-13-45\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("settings: &s\n  priors: *s\n", "refers to itself"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        read_yaml(write(tmp_path, text))


def test_all_yaml_mistakes_of_a_file_come_in_one_error(tmp_path):
    with pytest.raises(ConfigError) as error:
        read_yaml(write(tmp_path, "a: 2e-4\nb: 1e5\nb: 1\n"))
    assert all(f"mine.yaml:{line}:" in str(error.value) for line in (1, 2, 3))


def test_a_missing_and_a_badly_encoded_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_yaml(tmp_path / "latin.yaml")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(tmp_path / "bom.yaml") == {"a": 1}


@pytest.mark.parametrize("value", [2e-4, 5e-05, 1e20, 64, 0.1, 2.5e-10])
def test_a_number_written_by_us_is_read_back_as_that_number(tmp_path, value):
    assert read_yaml(write(tmp_path, f"a: {yaml_number(value)}\n")) == {"a": value}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("lerning_rate: 1.0e-4", ["`lerning_rate`", "did you mean `learning_rate`?"]),
        ('seq_len: "512"', ["must be an integer", "the text '512'", "without quotes: 512"]),
        ("epochs: true", ["must be an integer", "truth value True"]),
        ("floors: 1", ["must be true or false"]),
        ("model: no", ["must be a string", "YAML 1.1 reads no", 'model: "no"']),
        ("track: off", ["'none'", "YAML 1.1"]),
        ("precision: fp8", ["'auto'", "'bf16'", "fp8"]),
        ("seed:", ["must be an integer", "null"]),
        ("train_fraction: 1.5", ["less than or equal to 1"]),
        ("warmup_ratio: 1.0", ["less than 1"]),
        ("learning_rate: .inf\nwhy: {learning_rate: x}", ["finite"]),
        ("priors: {natural: 2}", ["priors.natural", "less than 1"]),
        ("targets: {f1_makro: 0.9}", ["f1_makro", "did you mean `f1_macro`?"]),
        ("per_device_train_batch_size: 128", ["larger than global_batch_size=64", "64 or less"]),
        ("save_minutes: null", ["save_minutes and save_steps are both empty", "10.0"]),
        ("seq_len: 2048\nwhy: {seq_len: x}", ["2048", "1024 positions", "1024 or less"]),
        ("model: codegtp", ["did you mean `codegpt`?"]),
        ("model: graphcodbert", ["did you mean `graphcodebert`?"]),
        ("code_length: 2048\nwhy: {seq_len: x}", ["2048", "1024 positions"]),
        ("data_flow_length: -1\nwhy: {data_flow_length: x}", ["set data_flow_length to 0 or more"]),
        ("data_flow_length: 128", ["without a reason"]),
        ("code_length: 512", ["seq_len 1024 -> 512", "without a reason"]),
        ("{code_length: 512, seq_len: 400}", ["`code_length` is 512 and `seq_len` is 400"]),
        ("model: ./no/such/folder", ["does not exist", "check the path"]),
        ("data: smok", ["did you mean `smoke`?"]),
        ("data: /no/such/folder", ["does not exist", "check the path"]),
        ("learning_rate: 1.0e-3", ["without a reason", "under `why:`"]),
        ("global_batch_size: 32", ["without a reason"]),
        ("seq_len: 512", ["without a reason"]),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_its_fix(tmp_path, settings, words):
    body, *rest = settings.split("\n")
    text = f"about: mine\nextends: base\nsettings:\n  {body}\n" + "\n".join(rest)
    with pytest.raises(ConfigError) as error:
        load_preset("clones", write(tmp_path, text))
    assert "mine.yaml:4:" in str(error.value)
    assert error.value.fix
    for word in words:
        assert word in str(error.value)


def test_all_problems_of_both_files_and_the_overrides_come_at_once(tmp_path):
    write(tmp_path, "about: b\nsettings:\n  sed: 3\n", "mybase.yaml")
    text = "abuot: x\nextends: mybase\ngpu: t5\ngpus: 0\nsettings:\n  seq_len: x\nwhy:\n  sede: y\n"
    with pytest.raises(ConfigError) as error:
        load_preset("clones", write(tmp_path, text), overrides={"epochs": "two"})
    found = str(error.value)
    for words in (
        "mybase.yaml:3: there is no setting `sed`",
        "mine.yaml:1: there is no key `abuot` in a preset; did you mean `about`?",
        "mine.yaml:3: there is no gpu `t5`",
        "mine.yaml:4: gpus=0",
        "mine.yaml:6: `seq_len` must be an integer",
        "mine.yaml:8: `why` names no setting `sede`",
        "overrides: `epochs` must be an integer",
        "`learning_rate` is missing",
    ):
        assert words in found


@pytest.mark.parametrize("line", ["settings: [1]", "why: text", "about: 3", "gpus: true"])
def test_an_outer_key_of_a_wrong_type_is_refused(tmp_path, line):
    with pytest.raises(ConfigError, match="must be of type"):
        load_preset("clones", write(tmp_path, f"extends: base\n{line}\n"))


def test_a_file_that_extends_nothing_is_told_so_once(tmp_path):
    text = "preset: smoke\nlearning_rate: 1.0e-3\n"
    with pytest.raises(ConfigError) as caught:
        load_preset("finetune", write(tmp_path, text))
    said = str(caught.value)
    assert "3 problems" in said and said.count("extends: base") == 2
    assert "write it under `settings:`" in said


def test_extends_has_one_level(tmp_path):
    write(tmp_path, "extends: base\nsettings: {seed: 4}\n", "middle.yaml")
    with pytest.raises(ConfigError, match="one level only"):
        load_preset("clones", write(tmp_path, "extends: middle\nsettings: {seed: 5}\n"))


def test_a_path_in_extends_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    base = Path(__file__).resolve().parent.parent / "configs" / "clones" / "base.yaml"
    (tmp_path / "own.yaml").write_text(base.read_text())
    assert load_preset("clones", write(tmp_path / "deep", "extends: ../own.yaml\n")).name == "mine"


@pytest.mark.parametrize("line", ["gpu: [t4]", "gpu: t4\ngpus: x", "gpu: {a: 1}", "gpu: 4"])
def test_a_broken_preset_of_the_user_does_not_crash_auto(
    tmp_path: Path, monkeypatch, line: str
) -> None:
    (tmp_path / "clones").mkdir()
    write(tmp_path / "clones", f"extends: base\n{line}\n", "broken.yaml")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(tmp_path))
    try:
        load_preset("clones", "auto", hardware=plan_hardware("t4"))
    except ConfigError as error:
        assert "broken.yaml" in error.message


def test_an_unknown_preset_or_job_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean `a100-80gb`"):
        load_preset("clones", "a100-80g")
    with pytest.raises(ConfigError, match="did you mean `clones`"):
        load_preset("clone", "t4")
    with pytest.raises(ConfigError, match="did you mean `clones`"):
        list_presets("clons")


def test_several_wrong_overrides_are_reported_together():
    preset = load_preset("clones", "base")
    with pytest.raises(ConfigError) as error:
        preset.override(seed=True, learning_rate="2e-4", num_gpus="two", epoch=3)
    found = str(error.value)
    assert "4 problems" in found and "0.0002" in found and "`epochs`" in found
    assert "an integer or 'auto'" in found


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


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_folder_with_another_kind_of_model_is_refused_before_the_launch(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(ConfigError, match=rf"of the type {family}") as caught:
        load_preset("clones", "base", overrides={"model": str(tmp_path)})
    assert "gpt2 or roberta" in str(caught.value)
