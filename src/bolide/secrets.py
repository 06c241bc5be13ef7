"""Finds secrets among hyperparameters and hides them: passwords, tokens, keys, by name and by the look of the value.

Pure but for the one warning of `hide`. It knows common names and forms, and cannot know all. Who calls: what writes
hyperparameters: checkpoint/state.py, engine/session.py, loggers/folders.py.
"""

from __future__ import annotations

import dataclasses
import re
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from bolide.core.messages import said, warn

HIDDEN = "***"
"""What stands in the place of a secret."""

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")

_SECRET_WORDS = {
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential", "credentials", "apikey",
    "authorization", "bearer", "accesskey", "secretkey", "privatekey", "authtoken", "accesstoken", "apitoken", "cookie",
}  # fmt: skip
_SECRET_PAIRS = {
    ("api", "key"), ("access", "key"), ("secret", "key"), ("private", "key"), ("account", "key"), ("auth", "key"),
    ("storage", "key"), ("service", "key"), ("signing", "key"), ("ssh", "key"), ("encryption", "key"),
    ("connection", "string"), ("wandb", "key"), ("license", "key"), ("webhook", "url"),
}  # fmt: skip
_TOKEN = {"token", "tok"}
_TOKENS_OF_TEXT = {
    "pad", "padding", "eos", "bos", "unk", "unknown", "cls", "sep", "separator", "mask", "image", "img", "audio",
    "video", "start", "end", "stop", "special", "num", "max", "min", "new", "first", "last", "class", "register",
    "prefix", "suffix", "begin", "target", "query", "patch", "decoder", "encoder", "eot", "sot", "eod", "blank",
    "space", "word", "delimiter", "forced", "per", "by", "level", "type", "dim", "id", "ids", "ignore", "placeholder",
}  # fmt: skip
"""Words beside "token" by which it is a piece of text that a model reads."""

_LOOKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}",  # Amazon
        r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{12,}",  # Hugging Face
        r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{12,}",  # GitHub
        r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{12,}",
        r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{12,}",  # GitLab
        r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{12,}",  # OpenAI, Anthropic
        r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}",  # Google
        r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{20,}",
        r"(?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{20,}",
        r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*",  # a JSON web token
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----",
        r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{12,}",
    )
)
_URL_WITH_USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s:@?#]*):?(?P<word>[^/\s@?#]*)@")


def mask(values: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """`values` with every secret replaced by "***", and where they stood.

    A value is a secret by the name it has (`api_key`, `db_password`, `hf_token`; not `pad_token`), or by its look (a
    key of a cloud, a JSON web token, a private key, a password in a URL). Values that hold no secret are the same
    objects as before. Numbers, truth values, None and empty texts are no secrets.

    Returns:
        The values, and the paths of the secrets, such as "db.password".
    """
    found: list[str] = []
    masked = _masked(values, "", False, found, ())
    return (masked if isinstance(masked, dict) else dict(masked)), found


def hide(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """`values` with every secret replaced by "***"; a warning names each of them, once a process."""
    masked, names = mask(values)
    new = [name for name in names if said.first(f"secret hyperparameter {name}")]
    if new:
        warn(
            f"The hyperparameter(s) {', '.join(map(repr, new))} look like secrets: they are saved and logged as "
            f"{HIDDEN!r}, and load_from_checkpoint asks for them. To leave them out write: "
            f"self.save_hyperparameters(ignore={[name.partition('.')[0].partition('[')[0] for name in new]!r})",
            stacklevel=3,
        )
    return masked


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret: "api_key", "dbPassword"; not "keyboard" or "max_tokens"."""
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET_WORDS & set(words) or any(pair in _SECRET_PAIRS for pair in zip(words, words[1:])):
        return True
    return bool(_TOKEN & set(words)) and not _TOKENS_OF_TEXT & set(words)


def looks_secret(text: str) -> bool:
    """Whether a text has the form of a key, a token or a private key."""
    return any(pattern.search(text) for pattern in _LOOKS)


def hidden_at(values: Any, path: str = "") -> list[str]:
    """The paths at which a masked secret stands in plain data."""
    if isinstance(values, str):
        return [path] if HIDDEN in values else []
    if isinstance(values, Mapping):
        return [at for key, value in values.items() for at in hidden_at(value, _below(path, key))]
    if isinstance(values, (list, tuple)):
        return [at for i, value in enumerate(values) for at in hidden_at(value, f"{path}[{i}]")]
    return []


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _masked(value: Any, path: str, by_name: bool, found: list[str], within: tuple[int, ...]) -> Any:
    if isinstance(value, (str, bytes)):
        return _masked_text(value, path, by_name, found)
    if id(value) in within:
        return value
    within = (*within, id(value))
    if isinstance(value, Mapping):
        return _masked_mapping(value, value, path, by_name, found, within)
    if isinstance(value, (list, tuple, set, frozenset)):
        members = list(value)
        new = [_masked(one, f"{path}[{i}]", by_name, found, within) for i, one in enumerate(members)]
        if all(a is b for a, b in zip(new, members)):
            return value
        return tuple(new) if isinstance(value, tuple) else new if isinstance(value, list) else set(new)
    if isinstance(value, (Namespace, SimpleNamespace)):
        return _masked_mapping(vars(value), value, path, by_name, found, within)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _masked_mapping(inner, value, path, by_name, found, within)
    if type(value).__name__ in ("SecretStr", "SecretBytes"):
        found.append(path)
        return HIDDEN
    return value


def _masked_mapping(
    values: Mapping[Any, Any], original: Any, path: str, by_name: bool, found: list[str], within: tuple[int, ...]
) -> Any:
    new = {
        key: _masked(value, _below(path, key), by_name or is_secret_name(str(key)), found, within)
        for key, value in values.items()
    }
    return original if all(new[key] is value for key, value in values.items()) else new


def _masked_text(value: str | bytes, path: str, by_name: bool, found: list[str]) -> Any:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not text or text == HIDDEN:
        return value
    if (by_name and not _is_piece_of_text(text)) or looks_secret(text):
        found.append(path)
        return HIDDEN
    without = _URL_WITH_USER.sub(_without_password, text)
    if without == text:
        return value
    found.append(path)
    return without


def _is_piece_of_text(text: str) -> bool:
    """Whether it is a mark in a model's vocabulary, such as "<s>" or "[MASK]", or a single character."""
    return len(text) == 1 or (text[0], text[-1]) in (("<", ">"), ("[", "]"))


def _without_password(match: re.Match[str]) -> str:
    if not match["word"]:  # one word before the @: a name, or a token
        return f"{match['scheme']}{HIDDEN}@"
    return f"{match['scheme']}{match['user']}:{HIDDEN}@"
