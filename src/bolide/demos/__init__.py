"""Small models and data sets for tests and demonstrations."""

from bolide.demos.boring_classes import BoringDataModule, BoringModel, DemoModel

__all__ = ["BoringDataModule", "BoringModel", "DemoModel"]
