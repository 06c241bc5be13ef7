"""The public path of the trainer's states; they are defined in core/states."""

from bolide.core.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

__all__ = ["RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"]
