"""`LightningDataModule`: the data of an experiment in one object, reusable with any module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from bolide.core.errors import UserCodeError
from bolide.core.hooks import overrides, stub
from bolide.data.hooks import DataHooks
from bolide.data.loaders import length_of
from bolide.hparams import HyperparametersMixin

if TYPE_CHECKING:
    from typing_extensions import Self


class LightningDataModule(HyperparametersMixin, DataHooks):
    """Datasets, loaders and their preparation.

    Example::

        class Numbers(LightningDataModule):
            def setup(self, stage):
                self.train = torch.utils.data.TensorDataset(torch.arange(100.0))

            def train_dataloader(self):
                return torch.utils.data.DataLoader(self.train, batch_size=10, shuffle=True)
    """

    name: str | None = None
    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "datamodule_hparams_type"
    prepare_data_per_node: bool = True
    allow_zero_length_dataloader_with_multiple_devices: bool = False
    trainer: Any = None
    _log_hyperparams: bool = False
    _hparams_name: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "trainer"}  # a copy belongs to none

    @stub
    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this datamodule: tensors and plain data."""
        return {}

    @stub
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    @stub
    def on_exception(self, exception: BaseException) -> None:
        """The run is ended by `exception`."""

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> Self:
        """A datamodule over datasets; training is shuffled, the rest is not.

        Args:
            train_dataset: a Dataset, or a list or dictionary of them; so the others.
            val_dataset: as above.
            test_dataset: as above.
            predict_dataset: as above.
            batch_size: samples in a batch.
            num_workers: worker processes of each loader.
            datamodule_kwargs: arguments of the constructor.
        """

        def loader(dataset: Any, shuffle: bool = False) -> DataLoader[Any]:
            shuffle = shuffle and not isinstance(dataset, IterableDataset)
            return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, num_workers=num_workers, pin_memory=True)

        def loaders(datasets: Any, shuffle: bool = False) -> Any:
            if isinstance(datasets, Mapping):
                return {key: loader(dataset, shuffle) for key, dataset in datasets.items()}
            if isinstance(datasets, Sequence) and not isinstance(datasets, Dataset):
                return [loader(dataset, shuffle) for dataset in datasets]
            return loader(datasets, shuffle)

        datamodule = cls(**datamodule_kwargs)
        # set on the instance: each is a hook of this datamodule alone, and only where there is data for it
        if train_dataset is not None:
            datamodule.train_dataloader = lambda: loaders(train_dataset, True)  # type: ignore[method-assign]
        if val_dataset is not None:
            datamodule.val_dataloader = lambda: loaders(val_dataset)  # type: ignore[method-assign]
        if test_dataset is not None:
            datamodule.test_dataloader = lambda: loaders(test_dataset)  # type: ignore[method-assign]
        if predict_dataset is not None:
            datamodule.predict_dataloader = lambda: loaders(predict_dataset)  # type: ignore[method-assign]
        return datamodule

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A datamodule with the hyperparameters and the state of a checkpoint.

        Args:
            checkpoint_path: a file or URL.
            map_location: where the tensors go, as in `torch.load`.
            hparams_file: a .yaml or .csv file whose values replace those of the checkpoint.
            weights_only: accepted as None or True; Bolide never unpickles code.
            kwargs: constructor arguments, which replace the saved ones.
        """
        from bolide.checkpoint.modules import load_module
        from bolide.module import refuse_unpickling

        refuse_unpickling(weights_only, "load_from_checkpoint")
        return load_module(cls, checkpoint_path, map_location, hparams_file, None, **kwargs)

    def __str__(self) -> str:
        """The datamodule with the sizes of its loaders."""
        parts = [f"{{Train dataloader: {self._size('train_dataloader')}}}"]
        parts += [f"{{Validation dataloader: {self._size('val_dataloader')}}}"]
        parts += [f"{{Test dataloader: {self._size('test_dataloader')}}}"]
        parts += [f"{{Predict dataloader: {self._size('predict_dataloader')}}}"]
        return type(self).__name__ + "\n" + "\n".join(parts)

    def _size(self, hook: str) -> str:
        if not overrides(self, hook):
            return "None"
        try:
            loaders = getattr(self, hook)()
        except (AttributeError, UserCodeError):  # before setup there may be no dataset to read
            return "not set up"
        if isinstance(loaders, Mapping):
            return ", ".join(f"{key}: size={length_of(x):g}" for key, x in loaders.items())
        if isinstance(loaders, (list, tuple)):
            return ", ".join(f"size={length_of(x):g}" for x in loaders)
        return f"size={length_of(loaders):g}"
