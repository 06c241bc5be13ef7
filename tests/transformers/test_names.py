"""The names of the second door's Trainer are those of transformers' own, so that subclasses may set what they like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bolide.transformers as door
from tests.transformers.models import gpt2, texts

theirs = pytest.importorskip("transformers")

OWN = {
    "tokenizer": "the name of processing_class in releases 4.x of transformers, which documentation promises",
}
"""Public names that transformers' Trainer does not have, and why Bolide's has them."""


def public_names(package: Any, out: Path, kind: str) -> set[str]:
    """Those of a trainer that has trained, evaluated, predicted and saved."""
    args = getattr(package, "Seq2SeqTrainingArguments" if kind == "Seq2SeqTrainer" else "TrainingArguments")(
        str(out), report_to=[], use_cpu=True, eval_strategy="epoch", num_train_epochs=1, disable_tqdm=True,
        gradient_accumulation_steps=2, save_strategy="epoch", per_device_train_batch_size=2,
    )  # fmt: skip
    trainer = getattr(package, kind)(gpt2(), args, train_dataset=texts(9, padded=True), eval_dataset=texts(5))
    trainer.train()
    trainer.evaluate()
    trainer.predict(texts(5))
    return {name for name in dir(trainer) if not name.startswith("_")}


@pytest.mark.parametrize("kind", ["Trainer", "Seq2SeqTrainer"])
def test_no_public_name_but_transformers_own(tmp_path, kind):
    mine = public_names(door, tmp_path / "a", kind)
    original = public_names(theirs, tmp_path / "b", kind)
    assert "loss_weight" not in original  # what a subclass would call the weights of its classes
    assert mine - original == set(OWN)
    assert {"train", "evaluate", "accelerator", "state"} <= mine
