"""How checkpoints are written and read: the base class for a format of one's own, and Bolide's."""

from bolide.plugins.io.checkpoint_io import CheckpointIO, TorchCheckpointIO

__all__ = ["CheckpointIO", "TorchCheckpointIO"]
