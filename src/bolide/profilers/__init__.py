"""Profilers by their public names. The base class and the one that does nothing are there; the others are refused."""

from bolide.profilers.advanced import AdvancedProfiler
from bolide.profilers.profiler import PassThroughProfiler, Profiler
from bolide.profilers.pytorch import PyTorchProfiler
from bolide.profilers.simple import SimpleProfiler
from bolide.profilers.xla import XLAProfiler

__all__ = [
    "AdvancedProfiler",
    "PassThroughProfiler",
    "Profiler",
    "PyTorchProfiler",
    "SimpleProfiler",
    "XLAProfiler",
]
