"""Publishing: thin calls of huggingface_hub, where it is installed.

Who calls: the trainer.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from bolide.checkpoint import io
from bolide.core.errors import MissingPackageError

LEFT_OUT = ["checkpoint-*", "checkpoint-*/**", ".checkpoint-*", ".checkpoint-*/**", "runs/**", "bolide_*"]
"""What of output_dir is not published: checkpoints and logs."""


def _api(token: str | None) -> Any:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingPackageError("push_to_hub", "huggingface_hub")
    from huggingface_hub import HfApi

    return HfApi(token=token)


def repository_of(trainer: Any) -> str:
    """The name of the repository: hub_model_id, else the output folder's."""
    args = trainer.args
    return str(args.hub_model_id or os.path.basename(os.path.abspath(args.output_dir)))


def make_repository(trainer: Any, token: str | None = None, private: bool | None = None) -> str:
    """Makes the repository, where it is not there; returns its full name.

    Raises:
        MissingPackageError: huggingface_hub is not installed.
    """
    args = trainer.args
    made = _api(token or args.hub_token).create_repo(
        repository_of(trainer), private=args.hub_private_repo if private is None else private, exist_ok=True
    )
    trainer.hub_model_id = made.repo_id
    return str(made.repo_id)


def push(
    trainer: Any, folder: str, message: str | None, blocking: bool = True, token: str | None = None,
    revision: str | None = None, private: bool | None = None,
) -> Any:  # fmt: skip
    """Uploads a folder without its checkpoints and logs."""
    args = trainer.args
    name = trainer.hub_model_id or make_repository(trainer, token, private)
    return _api(token or args.hub_token).upload_folder(
        repo_id=name, folder_path=folder, commit_message=message, run_as_future=not blocking,
        ignore_patterns=LEFT_OUT, revision=revision or args.hub_revision,
    )  # fmt: skip


def push_on_save(trainer: Any, folder: str) -> None:
    """Uploads what was saved just now, as hub_strategy says."""
    args, step = trainer.args, trainer.state.global_step
    if args.hub_strategy == "end" or not trainer.is_world_process_zero():
        return
    push(trainer, folder, f"Training in progress, step {step}")  # waited for: the folder may be removed soon
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        name = trainer.hub_model_id
        where = "last-checkpoint" if args.hub_strategy == "checkpoint" else os.path.basename(folder)
        _api(args.hub_token).upload_folder(
            repo_id=name, folder_path=folder, path_in_repo=where, commit_message=f"Checkpoint of step {step}",
            revision=args.hub_revision,
        )  # fmt: skip


def write_card(trainer: Any, facts: dict[str, Any]) -> None:
    """Writes README.md into output_dir: settings, last metrics, and `facts`."""
    args, history = trainer.args, trainer.state.log_history
    name = facts.pop("model_name", None) or os.path.basename(os.path.abspath(args.output_dir))
    tags = facts.pop("tags", None) or []
    lines = ["---", "library_name: transformers", "tags:", "- bolide"]
    lines += [f"- {tag}" for tag in ([tags] if isinstance(tags, str) else tags)]
    lines += ["---", "", f"# {name}", ""]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in facts.items() if value is not None]
    metrics = next((line for line in reversed(history) if "eval_loss" in line), None)
    if metrics is not None:
        lines += ["", "| metric | value |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in metrics.items()]
    lines += ["", "Settings:", ""]
    shown = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
             "max_steps", "lr_scheduler_type", "warmup_steps", "optim", "seed", "fp16", "bf16")  # fmt: skip
    lines += [f"- {key}: {getattr(args, key)}" for key in shown]
    text = "\n".join(lines) + "\n"
    io.write_atomically(os.path.join(args.output_dir, "README.md"), lambda file: file.write(text.encode()))
