"""Small models and data of the second door's tests: the same bits each time they are made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset[Any]):
    """Dictionaries of tensors."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: int) -> Any:
        return {name: column[i] for name, column in self.columns.items()}


class Stream(IterableDataset[Any]):
    """Rows without a length."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return (self.rows[i] for i in range(len(self.rows)))


class Net(nn.Module):
    """A classifier; with dropout, so that the order of random draws shows."""

    def __init__(self, dropout: float = 0.3, seed: int | None = 1) -> None:
        super().__init__()
        if seed is not None:
            torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.body(x))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.tokens = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.tokens(input_ids))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def points(n: int = 24, seed: int = 0) -> Rows:
    """n points of three classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return Rows(x=x, labels=(x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


def texts(n: int = 16, length: int = 8, padded: bool = False, seed: int = 0) -> Rows:
    """n rows of tokens, their own labels; with `padded`, some labels count for nothing."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 30, (n, length), generator=generator)
    labels = ids.clone()
    if padded:
        lengths = torch.randint(3, length + 1, (n,), generator=generator)
        labels[torch.arange(length)[None] >= lengths[:, None]] = -100
    return Rows(input_ids=ids, labels=labels)


def labelled_texts(n: int = 16, seed: int = 0) -> Rows:
    """n rows of tokens with a class."""
    rows = texts(n, seed=seed)
    return Rows(input_ids=rows.columns["input_ids"], labels=(rows.columns["input_ids"][:, 0] > 15).long())


def gpt2(dropout: float = 0.0, loss_type: str | None = "ForCausalLM") -> Any:
    """A GPT-2 of two layers. By itself it has no loss_type, and transformers then counts one label a row too many."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
            attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    if loss_type is not None:
        model.loss_type = loss_type
    return model


def bert(dropout: float = 0.0) -> Any:
    """A BERT classifier of one layer."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(4)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, num_labels=2,
        )
    )  # fmt: skip


def t5() -> Any:
    """A T5 of one layer."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(5)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of classes that were found."""
    predictions, labels = prediction
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}
