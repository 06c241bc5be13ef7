"""Where a run stands: the only counters there are.

Every counter is committed before the hooks that may save it run, so a checkpoint taken in any hook holds the truth
of that moment. `visible_*` properties give what Lightning's users see at the same place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class Progress:
    """Counts of what was completed.

    `epoch` counts the closed epochs, so it is the number of the running one, from 0. `epoch_open` is set while an epoch
    runs, `epoch_done` once its batches are all done and its end hooks run. `batch` counts the batches done in the epoch
    that was opened last, `total_batches` those of all, `step` the optimizer steps, `stepped_batches` the batches that
    ended in one (the loggers' axis), `optimizer_steps` the steps of all optimizers added up. `validated_at` is the
    `total_batches` at which validation last ran. The two `before_epoch` counters are what stood when the epoch began.
    `ended_early` is set where a stop ended an epoch before its last batch: in this process it counts as an epoch, and
    a run that goes on from a checkpoint takes it up again.
    """

    epoch: int = 0
    epoch_open: bool = False
    epoch_done: bool = False
    batch: int = 0
    is_last_batch: bool = False
    total_batches: int = 0
    step: int = 0
    step_before_epoch: int = 0
    stepped_batches: int = 0
    optimizer_steps: int = 0
    scheduler_steps: int = 0
    scheduler_steps_before_epoch: int = 0
    validated_at: int = -1
    ended_early: bool = False

    def leave_early(self) -> None:
        """A stop ended the epoch before its last batch, and its end hooks have run."""
        self.ended_early = True

    def abandon_epoch(self) -> None:
        """The epoch that an exception or a stop left open is not taken up again."""
        self.epoch = self.visible_epoch
        self.epoch_open = self.ended_early = False

    @property
    def visible_epoch(self) -> int:
        """The number of the running epoch, or of the next one where none runs: what users see as the current epoch."""
        return self.epoch + 1 if self.ended_early else self.epoch

    def open_epoch(self) -> None:
        """Begins the next epoch; goes on with the one that is open."""
        if not self.epoch_open:
            self.batch = 0
            self.step_before_epoch = self.step
            self.scheduler_steps_before_epoch = self.scheduler_steps
            self.epoch_open = True

    def commit_batch(self) -> None:
        """One batch was trained on."""
        self.batch += 1
        self.total_batches += 1

    def commit_step(self) -> None:
        """One optimizer step was done."""
        self.step += 1
        self.optimizer_steps += 1

    def commit_epoch(self) -> None:
        """All batches of the running epoch are done; its end hooks run now."""
        self.epoch_done = True

    def close_epoch(self) -> None:
        """The end hooks of a done epoch have run. Does nothing where the epoch goes on."""
        if self.epoch_done:
            self.epoch += 1
            self.epoch_open = self.epoch_done = False

    @property
    def mid_epoch(self) -> bool:
        """Whether an epoch is open whose batches are not all done."""
        return self.epoch_open and not self.epoch_done and self.batch > 0

    @property
    def epochs_completed(self) -> int:
        """How many epochs are wholly done."""
        return self.epoch + 1 if self.epoch_done else self.epoch

    def state_dict(self) -> dict[str, int | float | bool]:
        """All counters as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int | float | bool]) -> None:
        """Takes over counters; those that `state` does not know keep their value."""
        for field in fields(self):
            if field.name in state:
                setattr(self, field.name, type(getattr(self, field.name))(state[field.name]))
