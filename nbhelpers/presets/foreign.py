"""Names that other libraries have for our settings: transformers' arguments, PEFT, bitsandbytes.

They are answered with the line to write, value included, and are never matched by spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from nbhelpers.common.files import is_file
from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Known = Mapping[str, Any]  # the settings in force, as far as they are known
Answer = dict[str, Any] | str  # settings to write, or what to do instead

# Ours: theirs, of the same meaning. A whole number may be typed as 3.0.
_SAME = {
    "seq_len": "max_length max_seq_length max_seq_len model_max_length block_size cutoff_len "
    "max_source_length",
    "lora_r": "r lora_rank rank lora_dim",
    "lora_alpha": "alpha",
    "lora_target_modules": "target_modules",
    "per_device_train_batch_size": "per_gpu_train_batch_size micro_batch_size mini_batch_size",
    "per_device_eval_batch_size": "per_gpu_eval_batch_size eval_batch_size",
    "global_batch_size": "batch_size train_batch_size effective_batch_size total_batch_size",
    "num_gpus": "n_gpu n_gpus num_processes nproc_per_node world_size",
    "max_new_tokens": "max_target_length generation_max_length",
    "max_train_samples": "max_samples n_samples",
    "seed": "random_state random_seed",
    "max_grad_norm": "gradient_clipping clip_grad gradient_clip_val",
    "adam_epsilon": "adam_eps",
    "warmup_ratio": "warmup_proportion",
    "model": "model_name_or_path model_name base_model model_id pretrained_model_name_or_path "
    "base_model_name_or_path",
    "gradient_checkpointing": "activation_checkpointing",
    "model_revision": "revision",
    "data": "dataset dataset_name dataset_id dataset_path data_path data_dir train_file "
    "train_data_file",
}
# What is so without a setting, or is done elsewhere.
_INSTEAD = {
    "leave it out: `run_dir` says where runs are kept (in a shell: --run-dir FOLDER)": "output_dir "
    "run_dir logging_dir save_dir",
    "leave it out; after the run: nbhelpers export RUN FOLDER --push-to OWNER/NAME": "push_to_hub "
    "hub_model_id",
    "leave it out: launching the same settings again goes on from the last checkpoint": ""
    "resume_from_checkpoint",
    "leave it out: --fresh, or launch(..., fresh=True), starts anew": "overwrite_output_dir",
    "leave it out and log in: hf auth login, or set HF_TOKEN": "token hf_token hub_token "
    "use_auth_token",
    "leave it out: the optimizer is AdamW with betas 0.9 and 0.999": "adam_beta1 adam_beta2 "
    "optimizer optim_args",
    "leave it out: qlora computes in `precision`, with NF4 and double quantisation": ""
    "bnb_4bit_quant_type bnb_4bit_use_double_quant quantization_config bnb_config",
    "leave it out: LoRA adapts the layers of lora_target_modules, without biases": "bias task_type "
    "modules_to_save use_rslora use_dora peft_config fan_in_fan_out inference_mode",
    "leave it out: processes and their GPUs are set by num_gpus": "local_rank ddp_backend "
    "deepspeed fsdp device device_map no_cuda use_cpu",
    "leave it out: `seed` also draws the order of the rows": "data_seed",
    "leave it out: rows are tokenised once and sorted by length": "dataloader_num_workers "
    "group_by_length preprocessing_num_workers "
    "remove_unused_columns dataset_text_field dataset_num_proc",
    "leave it out: the best checkpoint by the validation split is kept and scored": ""
    "load_best_model_at_end metric_for_best_model greater_is_better early_stopping_patience",
    "leave it out: a run trains, then evaluates": "do_train do_eval do_predict evaluate_during_"
    "training",
    "leave it out: the loss is on the answers alone": "completion_only_loss train_on_inputs "
    "response_template",
    "leave it out: tables of columns are recognised; what a prompt looks like, `template` says": ""
    "formatting_func instruction_template",
    "leave it out: code of a model's repository is never run": "trust_remote_code",
    "leave it out: nbhelpers budget says which batch fits": "auto_find_batch_size",
    "leave it out: `data` is one place that holds all splits": "eval_data_file test_data_file "
    "validation_file test_file eval_file",
    "leave it out: `data` names both, as owner/name:configuration:split": "dataset_config_name "
    "dataset_config dataset_split dataset_train_split",
    "leave it out: answers are the most likely tokens": "num_beams generation_num_beams top_p "
    "top_k do_sample generation_config",
    "leave it out: there is no such option here": "neftune_noise_alpha label_smoothing_factor "
    "run_name disable_tqdm log_level log_level_replica logging_first_step tf32 tokenizer_name "
    "config_name cache_dir use_fast_tokenizer full_determinism model_type mlm do_lower_case "
    "gradient_checkpointing_kwargs activation_checkpointing_kwargs lr_scheduler_kwargs "
    "optim_target_modules average_tokens_across_devices bf16_full_eval fp16_full_eval debug "
    "torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache "
    "torch_empty_cache_steps log_on_each_node logging_nan_inf_filter project label_names "
    "include_num_input_tokens_seen include_for_metrics eval_delay prediction_loss_only "
    "eval_on_start eval_do_concat_batches eval_accumulation_steps batch_eval_metrics "
    "save_only_model save_on_each_node save_safetensors hub_always_push hub_revision "
    "ignore_data_skip accelerator_config parallelism_config train_sampling_strategy "
    "length_column_name skip_memory_metrics sortish_sampler model_init_kwargs eos_token pad_token "
    "chat_template_path dataset_kwargs shuffle_dataset packing_strategy padding_free eval_packing "
    "pad_to_multiple_of loss_type activation_offloading peft_type exclude_modules lora_bias "
    "init_lora_weights layers_to_transform layers_pattern rank_pattern alpha_pattern loftq_config "
    "target_parameters restore_callback_states_from_checkpoint eval_use_gather_object "
    "enable_jit_checkpoint",
}


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on")


def _epochs(value: Any, known: Known) -> Answer:
    if not isinstance(value, int | float) or value <= 0 or value == int(value):
        return {"epochs": value}
    if value < 1:
        share = known["train_fraction"]  # an epoch is one pass over it
        share = share if isinstance(share, int | float) else 1
        return {"epochs": 1, "train_fraction": round(value * share, 6)}
    return {"epochs": int(value) + 1}


def _max_steps(value: Any, known: Known) -> Answer:
    rows = known["global_batch_size"]
    if not isinstance(value, int | float) or value < 1 or not isinstance(rows, int):
        return "leave it out: a run makes all its epochs"
    return {"epochs": 1, "max_train_samples": int(value) * rows}


def _accumulation(value: Any, known: Known) -> Answer:
    size, gpus = known["per_device_train_batch_size"], known["num_gpus"]
    if not isinstance(value, int | float) or value <= 1 or not isinstance(size, int):
        return "leave it out: it follows from global_batch_size"
    return {"global_batch_size": int(value) * size * (gpus if isinstance(gpus, int) else 1)}


def _learning_rate(value: Any, known: Known) -> Answer:
    name = "encoder_learning_rate"  # of a detector, whose `learning_rate` is that of new heads
    return {name if name in known else "learning_rate": value}


def _precision(name: str) -> Callable[[Any, Known], Answer]:
    return lambda value, _: (
        {"precision": name} if _is_on(value) else "leave it out: precision=auto suits the GPU"
    )


def _dtype(value: Any, _: Known) -> Answer:
    names = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32"}
    return {"precision": names.get(str(value).removeprefix("torch."), "auto")}


def _four_bits(value: Any, _: Known) -> Answer:
    return {"method": "qlora" if _is_on(value) else "lora"}


def _schedule(value: Any, _: Known) -> Answer:
    names = {"constant_with_warmup": "constant", "cosine_with_restarts": "cosine"}
    chosen = names.get(str(value), value)
    return {"lr_schedule": chosen if chosen in ("linear", "cosine", "constant") else "linear"}


def _every(setting: str, default: Any) -> Callable[[Any, Known], Answer]:
    """`eval_strategy` and its like: by steps, or as it is by default."""

    def answer(value: Any, known: Known) -> Answer:
        if value == "steps":
            return {setting: known.get(setting) or default}
        return "leave it out: it is done once per epoch"

    return answer


def _report_to(value: Any, _: Known) -> Answer:
    first = value[0] if isinstance(value, list) and value else value
    if first in ("tensorboard", "wandb", "trackio"):
        return {"track": first}
    if first in (None, "", "none", []):
        return {"track": "none"}
    return "leave it out, or name one tracker by `track`: tensorboard, wandb or trackio"


def _optimizer(value: Any, _: Known) -> Answer:
    note = "" if str(value).startswith("adamw_torch") else f", and {value} is not offered"
    return f"leave it out: the optimizer is torch's AdamW (on a GPU fused){note}"


def _attention(value: Any, _: Known) -> Answer:
    names = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex"}
    return {"attention": names.get(str(value), "auto")}


def _warmup_steps(value: Any, _: Known) -> Answer:  # a setting of fine-tuning only
    if isinstance(value, float) and 0 < value < 1:
        return {"warmup_ratio": value}
    if value == 0:
        return {"warmup_ratio": 0.0}
    return "write warmup_ratio, a share of all steps, such as warmup_ratio=0.1"


_ANSWERS: dict[str, Callable[[Any, Known], Answer]] = {
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "max_epochs"), _epochs),
    **dict.fromkeys(("max_steps", "max_train_steps", "num_train_steps"), _max_steps),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), _accumulation),
    **dict.fromkeys(("lr", "init_lr", "peak_lr"), _learning_rate),
    "fp16": _precision("fp16"),
    "bf16": _precision("bf16"),
    **dict.fromkeys(("dtype", "torch_dtype", "bnb_4bit_compute_dtype", "mixed_precision"), _dtype),
    **dict.fromkeys(("load_in_4bit", "use_4bit", "use_qlora"), _four_bits),
    "load_in_8bit": lambda value, _: {"method": "qlora" if _is_on(value) else "lora"},
    "assistant_only_loss": lambda value, _: {"supervise": "all" if _is_on(value) else "last"},
    **dict.fromkeys(("use_lora", "use_peft"), lambda value, _: {"method": "lora"}),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), _schedule),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), _every("eval_steps", 100)),
    "save_strategy": _every("save_steps", 100),
    "logging_strategy": _every("logging_steps", 10),
    "report_to": _report_to,
    "optim": _optimizer,
    "attn_implementation": _attention,
    "use_flash_attention_2": lambda value, _: {"attention": "auto"},
    "torch_compile": lambda value, _: {"compile_layers": "on" if _is_on(value) else "off"},
    "predict_with_generate": lambda value, _: {"evaluate": "text" if _is_on(value) else "none"},
    "warmup_steps": _warmup_steps,
}
_NOTHING = "leave it out: without a value it sets nothing"
_SAME_BY_NAME = {name: ours for ours, names in _SAME.items() for name in names.split()}
_INSTEAD_BY_NAME = {name: text for text, names in _INSTEAD.items() for name in names.split()}
NAMES = _ANSWERS.keys() | _SAME_BY_NAME.keys() | _INSTEAD_BY_NAME.keys()


def answer(job: str, name: str, value: Any, given: Known, *, as_yaml: bool = False) -> str:
    """Return what to write for another library's name with its value; "" where it is unknown.

    Args:
        job: Such as `finetune`.
        name: Such as `num_train_epochs`.
        value: As it was typed.
        given: Settings that are known beside it; others are as in the job's base preset.
        as_yaml: The line is for a file, `name: value`; else `name=value`.

    >>> answer("finetune", "num_train_epochs", 3.0, {})
    'write epochs=3'
    >>> answer("finetune", "max_steps", 60, {"global_batch_size": 16})
    'write epochs=1 and max_train_samples=960'
    >>> answer("clones", "r", 8, {})
    'leave it out: the job clones has no lora_r'
    >>> answer("finetune", "lr", 0, {})
    'write learning_rate=VALUE, greater than 0'
    """
    if name in _INSTEAD_BY_NAME:
        return _INSTEAD_BY_NAME[name]
    fields = JOBS[job].settings.model_fields
    if ours := _SAME_BY_NAME.get(name):
        settings: Answer = {ours: value}
    elif value is None and name in _ANSWERS and name != "report_to":  # none of the trackers
        return _NOTHING
    elif name in _ANSWERS:
        file = configs_dir() / job / "base.yaml"
        base = read_yaml(file).get("settings") or {} if is_file(file) else {}
        defaults = {n: f.get_default(call_default_factory=True) for n, f in fields.items()}
        settings = _ANSWERS[name](value, {**defaults, **base, **given})
    else:
        return _INSTEAD_BY_NAME.get(_family(name), "")
    if isinstance(settings, str):
        return settings
    if lacking := next((ours for ours in settings if ours not in fields), None):
        return f"leave it out: the job {job} has no {lacking}"
    if value is None and name in _SAME_BY_NAME:
        return _NOTHING
    for ours, new in settings.items():
        if bound := _broken_bound(fields[ours], new):
            return f"write {_line(ours, 'VALUE', as_yaml=as_yaml)}, {bound}"
    return "write " + " and ".join(_line(*item, as_yaml=as_yaml) for item in settings.items())


def _broken_bound(field: FieldInfo, value: Any) -> str:
    """Such as `greater than 0`, where a number is out of the setting's range; else ""."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(Annotated[field.annotation, field]).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"].startswith(("greater_than", "less_than")):
            return first["msg"].removeprefix("Input should be ")
    return ""


def _family(name: str) -> str:
    """A known name that stands for all of a prefix, such as `fsdp` for `fsdp_config`; else ""."""
    families = {"dataloader_": "dataloader_num_workers", "ddp_": "ddp_backend", "fsdp_": "fsdp"}
    families |= {"llm_int8_": "bnb_config", "bnb_4bit_": "bnb_config", "hub_": "push_to_hub"}
    families |= {"trackio_": "run_name", "deepspeed_": "deepspeed"}
    return next((known for prefix, known in families.items() if name.startswith(prefix)), "")


def _line(name: str, value: Any, *, as_yaml: bool) -> str:
    """A setting as it is typed; whole numbers without a point."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) >= 1
    text = str(int(value) if is_whole else value)
    if isinstance(value, list):
        text = f"[{', '.join(map(str, value))}]" if as_yaml else ",".join(map(str, value))
    return f"{name}: {text}" if as_yaml else f"{name}={text}"
