"""The public path of TorchCheckpointIO; plugins/io/checkpoint_io.py owns it."""

from bolide.plugins.io.checkpoint_io import TorchCheckpointIO

__all__ = ["TorchCheckpointIO"]
