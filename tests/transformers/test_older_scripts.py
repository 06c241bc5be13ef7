"""Scripts as tutorials of 2021 to 2023 write them run as written; and a plain module trains without transformers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

TEXTS = ["a fine film", "a dull film", "not bad at all", "a waste of time", "I liked it", "I fell asleep"] * 4

SCRIPT = """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from {door} import Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained("local-model")
    model = AutoModelForSequenceClassification.from_pretrained("local-model", num_labels=2)
    texts = {texts!r}
    encoded = tokenizer(texts, truncation=True, padding=True)


    class Reviews(torch.utils.data.Dataset):
        def __getitem__(self, idx):
            item = {{key: torch.tensor(val[idx]) for key, val in encoded.items()}}
            item["labels"] = torch.tensor(idx % 2)
            return item

        def __len__(self):
            return len(texts)


    training_args = TrainingArguments(
        output_dir="./results",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=2e-5,
        fp16=True,
        logging_dir="./logs",
        logging_steps=1,
        report_to="tensorboard",
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=Reviews(), tokenizer=tokenizer)
    trainer.train()
    trainer.save_model("final")
    print("steps", trainer.state.global_step, "loss", trainer.state.log_history[-1]["train_loss"])
"""


def local_model(folder: Path) -> None:
    """A model and tokenizer in a folder, as a hub would give them."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = sorted({word for text in TEXTS for word in text.lower().split()})
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    Path("script.py").write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, *options, "script.py"], capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def test_the_common_older_script_runs_as_written(tmp_path):
    pytest.importorskip("transformers")
    local_model(tmp_path / "local-model")
    done = python(SCRIPT.format(door="bolide.transformers", texts=TEXTS))
    assert done.returncode == 0, done.stderr
    assert "steps 6 loss" in done.stdout
    assert done.stderr.count("logging_dir is now") == 1
    assert done.stderr.count("tokenizer is now processing_class") == 1
    assert any(name.startswith("events.out") for name in os.listdir(tmp_path / "logs"))
    assert {"model.safetensors", "config.json", "tokenizer_config.json"} <= set(os.listdir(tmp_path / "final"))


def test_the_same_script_unchanged_through_the_drop_in(tmp_path):
    pytest.importorskip("transformers")
    local_model(tmp_path / "local-model")
    done = python(SCRIPT.format(door="transformers", texts=TEXTS), "-m", "bolide.compat.drop_in", "--transformers")
    assert done.returncode == 0, done.stderr
    assert "steps 6 loss" in done.stdout
    assert (tmp_path / "results" / "checkpoint-6" / "bolide_manifest.json").exists()


WITHOUT = """
    import sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("transformers", "accelerate", "peft", "huggingface_hub", "tokenizers"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing())
    import importlib.util
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "transformers" else real(name, package)

    import torch
    from torch import nn
    from bolide.transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
    from bolide.transformers import EvalPrediction, get_last_checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, x, labels=None):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = [{"x": torch.randn(4), "labels": i % 2} for i in range(12)]
    heard = []

    class Hears(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            heard.append(state.global_step)

    def metrics(prediction):
        predictions, labels = prediction
        assert isinstance(prediction, EvalPrediction)
        return {"accuracy": float((predictions.argmax(-1) == labels).mean())}

    def trainer():
        args = TrainingArguments(
            "out", per_device_train_batch_size=4, num_train_epochs=3, eval_strategy="epoch", save_strategy="epoch",
            load_best_model_at_end=True, use_cpu=True, disable_tqdm=True,
        )
        return Trainer(
            Net(), args, train_dataset=data, eval_dataset=data, compute_metrics=metrics,
            callbacks=[Hears, EarlyStoppingCallback(9)],
        )

    trainer().train()
    assert heard == list(range(1, 10)), heard
    assert get_last_checkpoint("out").endswith("checkpoint-9")
    trainer().train(resume_from_checkpoint="out/checkpoint-6")
    assert heard[9:] == [7, 8, 9], heard
    assert not any(name.partition(".")[0] == "transformers" for name in sys.modules)
    try:
        from bolide.transformers import HfArgumentParser
    except ModuleNotFoundError as error:
        assert "pip install transformers" in str(error)
    print("done")
"""


def test_a_plain_module_trains_without_transformers():
    done = python(WITHOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("done\n")


def test_callbacks_are_those_of_transformers_where_it_is_installed():
    theirs = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import bolide.transformers as ours

        assert ours.TrainerCallback is theirs.TrainerCallback
        assert ours.TrainerState is theirs.TrainerState
        assert ours.TrainerControl is theirs.TrainerControl
        assert ours.EvalPrediction is theirs.EvalPrediction


DROPPED_IN = """
    from transformers import HfArgumentParser, PrinterCallback, Trainer, TrainingArguments
    from transformers.hf_argparser import HfArgumentParser as parser
    from transformers.trainer import Trainer as trainer, TrainingArguments as arguments
    from transformers.trainer_callback import PrinterCallback as printer, EarlyStoppingCallback as stopping
    import transformers

    assert (HfArgumentParser, PrinterCallback, Trainer, TrainingArguments) == (parser, printer, trainer, arguments)
    assert transformers.EarlyStoppingCallback is stopping
    for kind in (parser, printer, trainer, arguments, stopping):
        assert kind.__module__.startswith("bolide."), kind
    print("done")
"""


def test_the_drop_in_answers_under_each_path_of_a_name():
    pytest.importorskip("transformers")
    done = python(DROPPED_IN, "-m", "bolide.compat.drop_in", "--transformers")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("done\n")
