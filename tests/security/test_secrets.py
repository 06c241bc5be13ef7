"""Secrets among hyperparameters: none in any file that a run leaves, and one warning that names them."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import bolide
from bolide.core.errors import CheckpointError
from bolide.demos.boring_classes import BoringModel
from bolide.loggers import CSVLogger, TensorBoardLogger
from bolide.secrets import HIDDEN, hidden_at, hide, is_secret_name, mask

CANARIES: dict[str, Any] = {
    "password": "canary-hunter2",
    "api_key": "canary-0123456789",
    "hf_token": "canary-abcdef",
    "notes": "my key is AKIACANARY0123456789",
    "model_source": "hf_CANARYabcdefghij0123456789",
    "repository": "https://ghp_CANARYabcdefghij0123456789@github.com/a/b",
    "assistant": "sk-proj-CANARY0123456789abcdef",
    "header": "eyJCANARYhbGciOi.eyJCANARYzdWIiOi.canary-signature",
    "cert": "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
    "database": "postgresql://someone:canary-db-word@host:5432/db",
    "nested": {"aws": {"AWS_SECRET_ACCESS_KEY": "canary-nested"}},
    "several": ["fine", "xoxb-CANARY-0123456789"],
    "dbPassword": "canary-camel",
    "webhook": {"auth": {"bearer": "canary-bearer"}},
}

HARMLESS: dict[str, Any] = {
    "lr": 0.1,
    "layers": [1, 2],
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "mask_token": "[MASK]",
    "bos_token": "begin",
    "tokenizer": "bert-base-uncased",
    "max_tokens": 512,
    "num_tokens": "512",
    "tokens_per_step": "4096",
    "keyboard": "qwerty",
    "monkey": "banana",
    "key_dim": "64",
    "primary_key": "id",
    "sort_key": "name",
    "url": "https://host/path?x=1",
    "bucket": "s3://bucket/user@place/x",
    "mail": "someone@example.org",
    "skill": "sk-learn-is-a-long-word",
    "hub": "hf_hub_download",
    "password": None,
    "secret": "",
    "api_key": 0,
    "compass": "north",
    "author": "somebody",
}


def text_of(folder: Path) -> bytes:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return b"\n".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("key", CANARIES)
def test_each_secret_is_found(key: str) -> None:
    masked, names = mask({key: CANARIES[key], "lr": 0.1})
    assert names and names[0].startswith(key)
    assert "canary" not in repr(masked).lower() and masked["lr"] == 0.1


@pytest.mark.parametrize("key", HARMLESS)
def test_what_is_no_secret_stays(key: str) -> None:
    values = {key: HARMLESS[key]}
    masked, names = mask(values)
    assert names == [] and masked[key] is HARMLESS[key]


def test_only_the_password_of_an_address_is_hidden() -> None:
    masked, names = mask({"database": CANARIES["database"]})
    assert masked["database"] == f"postgresql://someone:{HIDDEN}@host:5432/db" and names == ["database"]


def test_containers_keep_their_kind_and_what_has_no_secret_its_identity() -> None:
    @dataclasses.dataclass
    class Login:
        user: str
        password: str

    plain = {"a": [1]}
    values = {
        "plain": plain, "login": Login("me", "canary"), "space": Namespace(token="canary-token", x=1),
        "pair": (1, "AKIACANARY0123456789"),
    }  # fmt: skip
    masked, names = mask(values)
    assert masked["plain"] is plain
    assert masked["login"] == {"user": "me", "password": HIDDEN} and masked["space"] == {"token": HIDDEN, "x": 1}
    assert masked["pair"] == (1, HIDDEN)
    assert names == ["login.password", "space.token", "pair[1]"]
    assert hidden_at(masked) == names
    assert values["space"].token == "canary-token"  # what the program has is left alone


def test_a_container_in_itself_ends() -> None:
    values: dict[str, Any] = {"password": "canary"}
    values["self"] = values
    assert mask(values)[0]["password"] == HIDDEN


def test_one_warning_names_them_and_shows_none() -> None:
    with pytest.warns(UserWarning) as caught:
        hide(CANARIES)
        hide({**CANARIES, "x": 1})
    assert len(caught) == 1
    told = str(caught[0].message)
    assert "'password'" in told and "'nested.aws.AWS_SECRET_ACCESS_KEY'" in told and "ignore=" in told
    assert "canary" not in told.lower()


@pytest.mark.parametrize("name", ["HF_TOKEN", "hfToken", "access-token", "myApiKey", "API_KEY", "x.client_secret"])
def test_names_in_any_style(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.filterwarnings("ignore:The hyperparameter")
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_a_logger_writes_none(kind: Any, tmp_path: Path) -> None:
    logger = kind(tmp_path, name="", version="v")
    logger.log_hyperparams(Namespace(**CANARIES, lr=0.125))
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.finalize("success")
    text = text_of(tmp_path)
    assert b"canary" not in text.lower() and b"lr" in text


# ---- in checkpoints, and back


class Model(BoringModel):
    def __init__(self, api_key: str, lr: float = 0.1, token: str | None = None, db: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    trainer = bolide.Trainer(
        max_steps=1, limit_val_batches=0, logger=CSVLogger(tmp_path / "logs"), enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    model = Model("canary-key", lr=0.5, token="canary-token", db={"host": "h", "password": "canary-db"})
    with pytest.warns(UserWarning, match="'api_key', 'token', 'db.password' look like secrets"):
        trainer.fit(model)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert model.hparams.api_key == "canary-key"
    return tmp_path / "a.ckpt"


def test_a_run_leaves_none_in_any_file(saved: Path) -> None:
    files = text_of(saved.parent)
    assert b"canary" not in files.lower() and b"api_key" in files


def test_loading_asks_for_a_secret_that_is_needed(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'api_key' is a secret.*load_from_checkpoint\(.*api_key=\.\.\."):
        Model.load_from_checkpoint(saved)


def test_loading_says_what_stands_for_the_others(saved: Path) -> None:
    with pytest.warns(UserWarning, match=r"The secret\(s\) 'token', 'db.password' of Model are not in"):
        model = Model.load_from_checkpoint(saved, api_key="new")
    assert dict(model.hparams) == {"api_key": "new", "lr": 0.5, "token": None, "db": {"host": "h", "password": HIDDEN}}


def test_loading_with_all_of_them_says_nothing(saved: Path, recwarn: pytest.WarningsRecorder) -> None:
    model = Model.load_from_checkpoint(saved, api_key="new", token="t", db={})
    assert model.hparams.token == "t" and not [one for one in recwarn if "secret" in str(one.message)]
