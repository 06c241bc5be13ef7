"""The front door: `Trainer`, and the states it can be in."""

from bolide.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from bolide.trainer.trainer import Trainer

__all__ = ["RunningStage", "Trainer", "TrainerFn", "TrainerState", "TrainerStatus"]
