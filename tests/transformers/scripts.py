"""Scripts that run under both doors: each is given the package that its Trainer comes from, and an output folder.

A script returns its trainer, or (trainer, more) with something else to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.transformers.models import (
    Net,
    Rows,
    Stream,
    accuracy,
    bert,
    gpt2,
    labelled_texts,
    points,
    t5,
    texts,
)

Script = Callable[[Any, str], Any]
SCRIPTS: dict[str, Script] = {}


def script(fn: Script) -> Script:
    SCRIPTS[fn.__name__] = fn
    return fn


def arguments(door: Any, out: str, kind: str = "TrainingArguments", **more: Any) -> Any:
    settings = {
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 2, "logging_steps": 2,
        "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "report_to": [],
    }  # fmt: skip
    return getattr(door, kind)(out, **{**settings, **more})


@script
def plain_module(door, out):
    trainer = door.Trainer(Net(), arguments(door, out), train_dataset=points())
    trainer.train()
    return trainer


@script
def accumulation(door, out):
    args = arguments(door, out, per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=3)
    trainer = door.Trainer(Net(), args, train_dataset=points())
    trainer.train()
    return trainer


@script
def causal_model_by_tokens(door, out):
    args = arguments(door, out, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    trainer = door.Trainer(gpt2(), args, train_dataset=texts(padded=True))
    trainer.train()
    return trainer


@script
def causal_model_with_dropout(door, out):
    trainer = door.Trainer(gpt2(0.1), arguments(door, out), train_dataset=texts())
    trainer.train()
    return trainer


@script
def classifier_with_evaluation(door, out):
    args = arguments(door, out, eval_strategy="steps", eval_steps=3, logging_first_step=True)
    trainer = door.Trainer(
        bert(0.1), args, train_dataset=labelled_texts(), eval_dataset=labelled_texts(10, 1), compute_metrics=accuracy
    )
    trainer.train()
    return trainer, trainer.predict(labelled_texts(6, 2))


@script
def encoder_decoder(door, out):
    rows = texts(12)
    trainer = door.Trainer(t5(), arguments(door, out, lr_scheduler_type="constant"), train_dataset=rows)
    trainer.train()
    return trainer, trainer.evaluate(texts(5, seed=1))["eval_loss"]


@script
def generating(door, out):
    args = arguments(
        door, out, "Seq2SeqTrainingArguments", predict_with_generate=True, generation_max_length=7, num_train_epochs=1
    )
    trainer = door.Seq2SeqTrainer(t5(), args, train_dataset=texts(8), eval_dataset=texts(8, seed=1))
    trainer.train()
    found = trainer.predict(texts(8, seed=1), max_length=9)
    # transformers pads to the model's own max_length, whatever was asked for here
    return trainer, (found.predictions[:, :9], found.label_ids[:, :9], found.metrics["test_loss"])


@script
def cosine_with_warmup_and_decay(door, out):
    args = arguments(
        door, out, lr_scheduler_type="cosine", warmup_steps=0.3, weight_decay=0.1, max_grad_norm=0.05, logging_steps=1
    )
    trainer = door.Trainer(bert(), args, train_dataset=labelled_texts())
    trainer.train()
    return trainer, sorted(trainer.get_decay_parameter_names(trainer.model))


@script
def no_clipping_and_another_optimizer(door, out):
    args = arguments(door, out, optim="sgd", optim_args="momentum=0.9", max_grad_norm=0.0, logging_strategy="epoch")
    trainer = door.Trainer(Net(0.0), args, train_dataset=points())
    trainer.train()
    return trainer


@script
def adafactor(door, out):
    trainer = door.Trainer(bert(), arguments(door, out, optim="adafactor"), train_dataset=labelled_texts())
    trainer.train()
    return trainer


@script
def label_smoothing(door, out):
    trainer = door.Trainer(
        gpt2(), arguments(door, out, label_smoothing_factor=0.1, optim="sgd", learning_rate=0.5),
        train_dataset=texts(padded=True), eval_dataset=texts(6, seed=1),
    )  # fmt: skip
    trainer.train()
    return trainer, trainer.evaluate()["eval_loss"]


class Ragged(Rows):
    """Rows cut to lengths of their own, that a collator pads again."""

    def __getitem__(self, i):
        row = super().__getitem__(i)
        length = 2 + (5 * i) % 7
        return {"input_ids": row["input_ids"][:length], "labels": row["labels"]}


def padded(samples):
    width = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    for row, sample in zip(ids, samples, strict=True):
        row[: len(sample["input_ids"])] = sample["input_ids"]
    return {"input_ids": ids, "labels": torch.stack([sample["labels"] for sample in samples])}


@script
def group_by_length(door, out):
    args = arguments(door, out, train_sampling_strategy="group_by_length")
    rows = Ragged(**labelled_texts(24).columns)
    trainer = door.Trainer(bert(), args, data_collator=padded, train_dataset=rows)
    trainer.train()
    return trainer


@script
def best_model_at_end(door, out):
    args = arguments(
        door, out, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, save_total_limit=1,
        metric_for_best_model="accuracy", num_train_epochs=4, learning_rate=0.2,
    )  # fmt: skip
    trainer = door.Trainer(Net(), args, train_dataset=points(), eval_dataset=points(10, 1), compute_metrics=accuracy)
    trainer.train()
    import os

    best = trainer.state.best_model_checkpoint
    return trainer, (
        os.path.basename(best), trainer.state.best_metric, sorted(n for n in os.listdir(out) if n.startswith("check"))
    )  # fmt: skip


@script
def resume(door, out):
    settings = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 3, "gradient_accumulation_steps": 2}
    first = door.Trainer(Net(), arguments(door, out, per_device_train_batch_size=2, **settings), train_dataset=points())
    first.train()
    trainer = door.Trainer(
        Net(), arguments(door, out, per_device_train_batch_size=2, **settings), train_dataset=points()
    )
    trainer.train(resume_from_checkpoint=f"{out}/checkpoint-8")
    for a, b in zip(first.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)
    return trainer


@script
def callbacks(door, out):
    heard = []

    class Recorder(door.TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            heard.append(("epoch_begin", state.global_step))

        def on_step_end(self, args, state, control, **kwargs):
            heard.append(
                ("step_end", state.global_step, round(state.epoch, 6), sorted(k for k in kwargs if k != "tokenizer"))
            )
            if state.global_step == 3:
                control.should_epoch_stop = True
            if state.global_step == 5:
                control.should_evaluate = True
            if state.global_step == 7:
                control.should_training_stop = True

    for event in ("on_train_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step",
                  "on_log", "on_evaluate", "on_epoch_end", "on_train_end", "on_prediction_step",
                  "on_init_end"):  # fmt: skip

        def hear(self, args, state, control, event=event, **kwargs):
            heard.append((event, state.global_step, control.should_log, control.should_evaluate, control.should_save))

        setattr(Recorder, event, hear)
    args = arguments(door, out, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    trainer = door.Trainer(Net(), args, train_dataset=points(), eval_dataset=points(8, 1), callbacks=[Recorder])
    trainer.train()
    return trainer, heard


@script
def early_stopping(door, out):
    args = arguments(
        door, out, eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="loss", num_train_epochs=8,
        load_best_model_at_end=True, learning_rate=0.5, logging_strategy="epoch",
    )  # fmt: skip
    trainer = door.Trainer(
        Net(0.0), args, train_dataset=points(), eval_dataset=points(10, 1),
        callbacks=[door.EarlyStoppingCallback(early_stopping_patience=2)],
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step < 48
    return trainer


@script
def adapters(door, out):
    from peft import LoraConfig, get_peft_model

    model = gpt2()
    torch.manual_seed(6)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True))
    args = arguments(door, out, save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True)
    trainer = door.Trainer(model, args, train_dataset=texts(), eval_dataset=texts(6, seed=1))
    trainer.train()
    import os

    names = [n for n in os.listdir(f"{out}/checkpoint-4") if n.startswith("adapter")]
    return trainer, sorted(names)


@script
def own_compute_loss(door, out):
    class Own(door.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs["logits"], labels, label_smoothing=0.2)
            return (loss, outputs) if return_outputs else loss

    args = arguments(door, out, gradient_accumulation_steps=2, eval_strategy="epoch")
    trainer = Own(Net(), args, train_dataset=points(), eval_dataset=points(9, 1), compute_metrics=accuracy)
    trainer.train()
    return trainer


@script
def own_training_step(door, out):
    class Own(door.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs) / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    trainer = Own(Net(), arguments(door, out, gradient_accumulation_steps=2), train_dataset=points())
    trainer.train()
    return trainer


@script
def loss_function_with_count(door, out):
    def summed(outputs, labels, num_items_in_batch=None):
        loss = torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
        return loss / (num_items_in_batch if num_items_in_batch is not None else len(labels))

    args = arguments(door, out, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    trainer = door.Trainer(Net(), args, train_dataset=points(), compute_loss_func=summed)
    trainer.train()
    return trainer


@script
def iterable_dataset(door, out):
    args = arguments(door, out, max_steps=11)
    trainer = door.Trainer(Net(), args, train_dataset=Stream(points(16)))
    trainer.train()
    return trainer


@script
def plateau(door, out):
    args = arguments(
        door, out, lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0, "factor": 0.1},
        eval_strategy="epoch", num_train_epochs=4, learning_rate=0.5,
    )  # fmt: skip
    trainer = door.Trainer(Net(0.0), args, train_dataset=points(), eval_dataset=points(10, 1))
    trainer.train()
    return trainer


@script
def bfloat16(door, out):
    trainer = door.Trainer(gpt2(), arguments(door, out, bf16=True), train_dataset=texts())
    trainer.train()
    return trainer


@script
def model_made_anew_and_a_part_of_an_epoch(door, out):
    args = arguments(door, out, num_train_epochs=1.5, logging_steps=0.25, eval_strategy="epoch", seed=7)
    trainer = door.Trainer(
        model_init=lambda: Net(seed=None), args=args, train_dataset=points(),
        eval_dataset={"easy": points(8, 1), "hard": points(8, 2)}, compute_metrics=accuracy,
    )  # fmt: skip
    trainer.train()
    return trainer


@script
def tokens_seen_and_own_optimizer(door, out):
    model = gpt2()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    args = arguments(door, out, include_num_input_tokens_seen="all")
    trainer = door.Trainer(model, args, train_dataset=texts(), optimizers=(optimizer, schedule))
    trainer.train()
    return trainer, (trainer.state.num_input_tokens_seen, trainer.state.total_flos)


@script
def own_columns_and_reference(door, out):
    """As packages of preference training do it: columns named by the subclass, a frozen model beside, own log keys."""

    class Own(door.Trainer):
        def __init__(self, *args, reference, **kwargs):
            super().__init__(*args, **kwargs)
            self.reference = self.accelerator.prepare_model(reference, evaluation_mode=True)
            self.model_accepts_loss_kwargs = False
            self._metrics = {"train": [], "eval": []}  # a name of theirs

        def _set_signature_columns_if_needed(self):
            if self._signature_columns is None:
                self._signature_columns = ["x", "target"]

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            assert sorted(inputs) == ["target", "x"]
            outputs = model(x=inputs["x"])
            with torch.no_grad():
                reference = self.reference(x=inputs["x"])["logits"]
            distance = (outputs["logits"] - reference).square().mean()
            self._metrics["train" if model.training else "eval"].append(
                self.accelerator.gather_for_metrics(distance.detach()).mean().item()
            )
            loss = torch.nn.functional.cross_entropy(outputs["logits"], inputs["target"]) + 0.1 * distance
            return (loss, outputs) if return_outputs else loss

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            with torch.no_grad():
                return self.compute_loss(model, self._prepare_inputs(inputs)), None, None

        def log(self, logs, start_time=None):
            mode = "train" if self.model.training else "eval"
            found = self._metrics[mode]
            own = {f"{mode}_distance": sum(found) / len(found)} if found else {}
            found.clear()
            super().log({**logs, **own}, start_time)

    rows = points().columns
    data = Rows(x=rows["x"], target=rows["labels"], unused=rows["labels"])
    args = arguments(door, out, eval_strategy="steps", eval_steps=4)
    trainer = Own(Net(), args, train_dataset=data, eval_dataset=data, reference=Net(seed=9))
    trainer.train()
    return trainer


@script
def several_labels_may_hold(door, out):
    """Label smoothing does not apply there, and is left out; after a last evaluation the model is in eval mode."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=3, problem_type="multi_label_classification",
    )  # fmt: skip
    rows = texts().columns["input_ids"]
    data = Rows(input_ids=rows, labels=(rows[:, :3] > 15).float())
    trainers = [
        door.Trainer(
            BertForSequenceClassification(config), arguments(door, f"{out}-{when}", label_smoothing_factor=0.1,
            eval_strategy=when, num_train_epochs=1), train_dataset=data, eval_dataset=data,
        ) for when in ("epoch", "no")
    ]  # fmt: skip
    for trainer in trainers:
        trainer.train()
    return trainers[0], [trainer.model.training for trainer in trainers]


class Shuffled(Stream):
    """A stream with another order in each epoch, that it is told of."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return (self.rows[i] for i in order)


@script
def a_stream_shuffled_by_epoch(door, out):
    trainer = door.Trainer(Net(), arguments(door, out, max_steps=15), train_dataset=Shuffled(points()))
    trainer.train()
    return trainer


@script
def schedule_free(door, out):
    import pytest

    pytest.importorskip("schedulefree")
    args = arguments(
        door, out, optim="schedule_free_sgd", lr_scheduler_type="constant", weight_decay=0.1, warmup_steps=2,
        eval_strategy="steps", eval_steps=4, learning_rate=0.1,
    )  # fmt: skip
    trainer = door.Trainer(Net(), args, train_dataset=points(), eval_dataset=points(8, 1))
    trainer.train()
    return trainer


@script
def an_optimizer_of_a_part(door, out):
    """The others have gradients all the same, that do not add up from step to step."""
    model = Net(0.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    args = arguments(door, out, max_grad_norm=0.5, logging_steps=1)
    trainer = door.Trainer(model, args, train_dataset=points(), optimizers=(optimizer, None))
    trainer.train()
    return trainer, [parameter.grad for parameter in model.parameters()]


@script
def trained_again(door, out):
    """The second training begins a schedule of its own, with the same optimizer."""
    trainer = door.Trainer(Net(), arguments(door, out, num_train_epochs=1, logging_steps=1), train_dataset=points())
    trainer.train()
    first = trainer.state.log_history
    trainer.train()
    return trainer, first


@script
def trained_again_with_a_schedule_that_was_given(door, out):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 12)
    args = arguments(door, out, num_train_epochs=1, logging_steps=1)
    trainer = door.Trainer(model, args, train_dataset=points(), optimizers=(optimizer, schedule))
    trainer.train()
    trainer.train()
    return trainer


def asking(door, out, **asks):
    """A training in which something is asked for within a step: what became of it."""
    heard = []

    class Asks(door.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            heard.append(("save", state.global_step))

        def on_evaluate(self, args, state, control, **kwargs):
            heard.append(("evaluate", state.global_step))

    for event, (wish, step) in asks.items():

        def hear(self, args, state, control, wish=wish, step=step, **kwargs):
            if state.global_step == step:
                setattr(control, wish, True)

        setattr(Asks, event, hear)
    trainer = door.Trainer(
        Net(), arguments(door, out, logging_steps=500), train_dataset=points(), eval_dataset=points(8, 1),
        callbacks=[Asks()],
    )  # fmt: skip
    trainer.train()
    return trainer, heard


@script
def asked_for_within_a_step(door, out):
    return asking(
        door, out, on_step_begin=("should_save", 1), on_pre_optimizer_step=("should_evaluate", 3),
        on_optimizer_step=("should_log", 5),
    )  # fmt: skip


@script
def stopped_within_a_step(door, out):
    return asking(door, out, on_optimizer_step=("should_training_stop", 7))


@script
def epochs_that_end_early(door, out):
    """They count: training ends with the last of them, before the last step."""
    return asking(door, out, on_step_end=("should_epoch_stop", 2))


@script
def asked_for_by_the_loss(door, out):
    class Stops(door.Trainer):
        def compute_loss(self, *args, **kwargs):
            self.control.should_training_stop = self.state.global_step == 4
            return super().compute_loss(*args, **kwargs)

    trainer = Stops(Net(), arguments(door, out, logging_steps=500), train_dataset=points())
    trainer.train()
    return trainer


@script
def asked_for_by_the_model(door, out):
    class Asks(Net):
        def forward(self, x, labels=None):
            self.trainer.control.should_save = self.trainer.state.global_step in (2, 4)
            return super().forward(x, labels)

    saved = []

    class Hears(door.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            saved.append(state.global_step)

    model = Asks()
    trainer = door.Trainer(model, arguments(door, out, logging_steps=500), train_dataset=points(), callbacks=[Hears()])
    object.__setattr__(model, "trainer", trainer)
    trainer.train()
    return trainer, saved


def with_two_rates(door, out):
    class Rates(door.Trainer):
        def create_optimizer(self, model=None):
            body, head = self.model.body.parameters(), self.model.head.parameters()
            self.optimizer = torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": head, "lr": 0.1}])
            return self.optimizer

    return Rates(Net(), arguments(door, out, save_strategy="epoch", logging_steps=1), train_dataset=points())


@script
def rates_of_ones_own_after_a_resume(door, out):
    with_two_rates(door, out).train()
    trainer = with_two_rates(door, out)
    trainer.train(resume_from_checkpoint=f"{out}/checkpoint-6")
    return trainer, [group["initial_lr"] for group in trainer.optimizer.param_groups]
