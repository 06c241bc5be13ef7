"""What the Trainer's functions look at before they start: the module, its hooks, the loaders or the datamodule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.core.errors import ConfigError, MisconfigurationException
from bolide.core.hooks import HOOKS, overrides
from bolide.core.messages import info, warn_once
from bolide.module import LightningModule, missing_super_init

if TYPE_CHECKING:
    from bolide.datamodule import LightningDataModule


def checked_module(trainer: Any, model: Any, fn: str, needed: tuple[str, ...]) -> LightningModule:
    """The module itself, looked at: its kind, its constructor, its hooks old and misspelt.

    Raises:
        MisconfigurationException: no LightningModule, its base's constructor not called, or a step missing.
        ConfigError: hooks that are no longer called, all of them.
    """
    from bolide.compat.hooks_args import check_callback, check_module, misspelt_hooks

    module = unwrap_compiled(model)
    if isinstance(model, type):
        raise MisconfigurationException(
            f"trainer.{fn} was given the class {model.__name__}; give an object of it: write {model.__name__}(...)"
        )
    if not isinstance(module, LightningModule):
        raise MisconfigurationException(
            f"trainer.{fn} was given a {type(model).__name__}; give a LightningModule (a subclass of it with "
            "training_step and configure_optimizers)"
        )
    if "_parameters" not in module.__dict__ or "_automatic_optimization" not in module.__dict__:
        raise missing_super_init(module)
    wrong = check_module(module)
    wrong += [text for callback in trainer.callbacks for text in check_callback(callback)]
    if wrong:
        raise ConfigError(wrong)
    for text in misspelt_hooks(module, {*HOOKS, "predict_step", "forward"}):
        warn_once(text)
    for callback in trainer.callbacks:
        for text in misspelt_hooks(callback, set(HOOKS)):
            warn_once(text)
    for name in needed:
        if not overrides(module, name):
            raise MisconfigurationException(
                f"{type(module).__name__} has no {name}; trainer.{fn} needs one. Write def {name}(self, batch, "
                "batch_idx)"
            )
    return module


def split_data(
    fn: str, loaders: Any, datamodule: Any, argument: str, val: Any = None
) -> tuple[Any, LightningDataModule | None]:
    """Tells loaders from a datamodule given in their place.

    Raises:
        MisconfigurationException: both were given, or something that is no datamodule.
    """
    from bolide.datamodule import LightningDataModule

    if isinstance(loaders, LightningDataModule):
        if datamodule is not None:
            raise MisconfigurationException(f"trainer.{fn} was given two datamodules; leave one of them out")
        loaders, datamodule = None, loaders
    if datamodule is not None:
        given = [name for name, value in ((argument, loaders), ("val_dataloaders", val)) if value is not None]
        if given:
            raise MisconfigurationException(
                f"trainer.{fn} was given {' and '.join(given)} and a datamodule; leave one of them out"
            )
        if not isinstance(datamodule, LightningDataModule):
            raise MisconfigurationException(
                f"trainer.{fn}(datamodule={type(datamodule).__name__}) is no LightningDataModule"
            )
    return loaders, datamodule


def unwrap_compiled(model: Any) -> Any:
    """The module in what `torch.compile(module)` made, its forward compiled."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None or not isinstance(inner, LightningModule):
        return model
    inner.__dict__["_compiled_forward"] = model.dynamo_ctx(type(inner).forward.__get__(inner))
    info("The compiled module runs with its forward compiled; its steps are not.")
    return inner
