"""Methods of transformers' Trainer that Bolide never calls: an override of one would have no effect, so it is told.

Owns the two tables. What is called, and may be overridden, is in docs/transformers.md. Who calls: trainer.py, at
construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bolide.core.messages import warn

_FOLDER = (
    "override _save_checkpoint(model, trial) or save_model(output_dir), which may write more into the folder after "
    "super(), or write a callback with on_save"
)
_RESUME = "override _load_from_checkpoint(folder), or write a callback with on_train_begin"
_STEP = "override training_step or compute_loss, or write a callback with on_step_begin, on_step_end or on_epoch_begin"
_START = "override set_initial_training_values, get_train_dataloader or create_optimizer, or write on_train_begin"
_CLIP = "override _clip_grad_norm(model), or write a callback with on_pre_optimizer_step"
_SEARCH = "write it into hp_space, compute_objective or model_init(trial)"
_SHARED = "leave it out: the strategy has the model's parallelism (fsdp=..., deepspeed=...)"

NEVER_CALLED: dict[str, str] = {
    "_build_accelerator_args": "override create_accelerator_and_postprocess",
    "_defer_fsdp_gradient_reduction": _SHARED,
    "_finalize_training": "write a callback with on_train_end, or override train",
    "_get_grad_norm": _CLIP,
    "_has_mixed_mesh_grads": _SHARED,
    "_hp_search_setup": _SEARCH,
    "_init_training_state": _START,
    "_issue_warnings_after_load": _RESUME,
    "_load_optimizer_and_scheduler": _RESUME,
    "_load_rng_state": "leave it out: random states are read as plain data; " + _RESUME,
    "_load_scaler": _RESUME,
    "_mixed_mesh_grad_norm": _SHARED,
    "_prepare_context_parallel_inputs": "override _prepare_inputs",
    "_prepare_for_training": _START,
    "_report_to_hp_search": _SEARCH,
    "_run_epoch": _STEP,
    "_save_optimizer_and_scheduler": _FOLDER,
    "_save_rng_state": _FOLDER,
    "_save_scaler": _FOLDER,
    "_sync_replicated_trainable_parameters": _SHARED,
    "_tune_save_checkpoint": _FOLDER,
    "_update_auto_batch_size": "write per_device_train_batch_size, and leave auto_find_batch_size out",
    "_wrap_model": "wrap the model before you give it; the strategy's wrapper has settings (ddp_..., fsdp=...)",
    "get_cp_size": _SHARED,
    "get_sp_size": _SHARED,
    "get_tp_size": _SHARED,
}
"""What transformers 5 calls and Bolide does not, and what to write instead."""

OLDER: dict[str, str] = {
    "_activate_neftune": "write neftune_noise_alpha",
    "_add_sm_patterns_to_gitignore": "leave it out",
    "_deactivate_neftune": "write neftune_noise_alpha",
    "_fsdp_qlora_plugin_updates": _SHARED,
    "_gather_and_numpify": "override evaluation_loop",
    "_nested_gather": "override evaluation_loop",
    "_pad_across_processes": "override evaluation_loop",
    "_rotate_checkpoints": "write save_total_limit, or a callback with on_save",
    "_sorted_checkpoints": "write save_total_limit, or a callback with on_save",
    "compare_trainer_and_checkpoint_args": "leave it out: what changed since a checkpoint is told",
    "ipex_optimize_model": "leave it out",
    "num_tokens": "write include_num_input_tokens_seen",
    "prediction_loop": "override evaluation_loop, which has the same arguments",
    "propagate_args_to_deepspeed": "write the settings into deepspeed=...",
    "torch_jit_model_eval": "leave it out",
}
"""What transformers 4 called and neither transformers 5 nor Bolide does."""

OF_WHOLE_MODELS = ("save_model", "_load_from_checkpoint", "_move_model_to_device")
"""What is not called where the model is spread over processes, as one of them has a part of it only."""


def without_effect(kind: type, base: type, spread: bool) -> Iterator[str]:
    """What is wrong with a subclass of the Trainer: overrides of what is never called. Those of 4.x are warned of.

    Args:
        kind: the subclass.
        base: the Trainer.
        spread: whether the model is spread over processes.
    """
    for name, text in NEVER_CALLED.items():
        if _overrides(kind, base, name):
            yield f"{kind.__name__}.{name} is never called by Bolide's Trainer, so it has no effect; {text}"
    if spread:
        for name in OF_WHOLE_MODELS:
            if _overrides(kind, base, name):
                yield (
                    f"{kind.__name__}.{name} is not called with fsdp or deepspeed; override _save(output_dir, "
                    "state_dict), which is given the whole weights"
                )
    older = [name for name in OLDER if _overrides(kind, base, name)]
    if older:
        told = "; ".join(f"{name} ({OLDER[name]})" for name in older)
        warn(f"{kind.__name__} has methods that Trainers of today never call, so they have no effect: {told}.")


def _overrides(kind: type, base: type, name: str) -> bool:
    own: Any = getattr(kind, name, None)
    return own is not None and own is not getattr(base, name, None)
