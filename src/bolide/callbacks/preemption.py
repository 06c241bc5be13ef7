"""PreemptionWatch: a machine that is about to be taken away is noticed, and the run is saved in time.

Owns the address that is asked, how its answer is read, and the thread that asks. What follows a notice is the same as
for SIGTERM: engine/signals. Without this callback nothing is ever asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bolide.callbacks.callback import Callback
from bolide.core.errors import ConfigError
from bolide.core.messages import info, warn

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer

ADDRESSES = {"aws": "http://169.254.169.254", "gcp": "http://metadata.google.internal"}
TOKEN_PATH = "/latest/api/token"
TOKEN_LIFE_S = 21600
AWS_PATH = "/latest/meta-data/spot/instance-action"
GCP_PATH = "/computeMetadata/v1/instance/preempted"
ANSWER_TIMEOUT_S = 2.0
LARGEST_ANSWER_BYTES = 4096
REASON = "preempted"

Ask = Callable[[], "str | None"]


class PreemptionWatch(Callback):
    """Asks every few seconds whether this machine is about to be taken away, in a thread of its own.

    When it is, the run is saved at its next step boundary by the checkpoint callback, `trainer.stop_reason` is
    "preempted", and the fit ends by SIGTERMException: the process ends with exit code 143, as after SIGTERM.

    Args:
        provider: "aws" (the notice of a spot instance, two minutes ahead), "gcp" (of a spot or preemptible VM, 30
            seconds ahead), or a function without arguments that returns a text, or True, when there is a notice. It
            runs in the thread; where it raises, a warning says so once, and it is asked again.
        interval_s: how many seconds lie between two questions.
        url: where the provider answers, such as "http://localhost:8000"; default: the provider's documented address.

    Raises:
        ConfigError: an unknown provider, or an address that is none.

    Example::

        Trainer(callbacks=[PreemptionWatch("aws"), ModelCheckpoint(save_last=True)])
    """

    def __init__(
        self, provider: str | Callable[[], Any] = "aws", interval_s: float = 5.0, url: str | None = None
    ) -> None:
        super().__init__()
        if not callable(provider) and provider not in ADDRESSES:
            raise ConfigError(f"PreemptionWatch(provider={provider!r}) must be 'aws', 'gcp' or a function")
        if not interval_s > 0:
            raise ConfigError(f"PreemptionWatch(interval_s={interval_s!r}) must be more than 0 seconds")
        if url is not None and (callable(provider) or urlsplit(url).scheme not in ("http", "https")):
            raise ConfigError(
                f"PreemptionWatch(url={url!r}) must be an http address, such as 'http://localhost:8000', for the "
                "provider 'aws' or 'gcp'"
            )
        self.provider = provider
        self.interval_s = float(interval_s)
        self.url = None if callable(provider) else (url or ADDRESSES[provider]).rstrip("/")
        self.notice: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ moments

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to ask."""
        self._end()
        self.notice, self._ended = None, threading.Event()
        ask = self.provider if callable(self.provider) else self.question()
        self._thread = threading.Thread(
            target=self._watch, args=(trainer, ask, self._ended), name="bolide-preemption", daemon=True
        )
        self._thread.start()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Asks no more."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Asks no more."""
        self._end()

    def _end(self) -> None:
        # not joined: the thread may be waiting for an answer, and has nothing left to do with it
        self._ended.set()
        self._thread = None

    def _watch(self, trainer: Trainer, ask: Callable[[], Any], ended: threading.Event) -> None:
        silent = False
        while not ended.is_set():
            asked_s = time.monotonic()
            try:
                notice = ask()
            except Exception as error:  # noqa: BLE001  # of a function, or of its library: asked again in any case
                notice = None
                if not silent and not ended.is_set():
                    silent = True
                    warn(
                        f"PreemptionWatch gets no answer from {self.url or 'its function'} ({type(error).__name__}: "
                        f"{error}), and goes on asking. On a machine of another provider, leave it out."
                    )
            if notice and not ended.is_set():
                self.notice = notice if isinstance(notice, str) else REASON
                info(f"This machine is about to be taken away ({self.notice}).")
                trainer.save_and_stop(REASON)
                return
            ended.wait(max(0.0, self.interval_s - (time.monotonic() - asked_s)))

    # ------------------------------------------------------------------ the providers

    def question(self) -> Ask:
        """A function that asks the provider once: the notice's text, or None where there is none.

        Raises (the function): OSError: there was no answer, or one that says that something is wrong.
        """
        assert self.url is not None
        opener = _opener()
        if self.provider == "gcp":
            return lambda: _ask_gcp(opener, str(self.url), self.interval_s)
        token = _Token(opener, self.url)
        return lambda: _ask_aws(opener, str(self.url), token)


def _opener() -> OpenerDirector:
    """Opens http addresses: past any proxy, as the address is this machine's own, and following nobody elsewhere."""
    from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, UnknownHandler

    opener = OpenerDirector()
    for handler in (ProxyHandler({}), HTTPHandler(), HTTPSHandler(), UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _answer(
    opener: OpenerDirector, url: str, headers: dict[str, str], method: str = "GET", wait_s: float = 0.0
) -> tuple[int, str]:
    from http.client import HTTPException
    from urllib.request import Request

    request = Request(url, headers=headers, method=method)
    try:
        with opener.open(request, timeout=ANSWER_TIMEOUT_S + wait_s) as response:
            return int(response.status), response.read(LARGEST_ANSWER_BYTES).decode("utf-8", "replace").strip()
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class _Token:
    """The token of AWS's second metadata service, asked for when it is needed."""

    def __init__(self, opener: OpenerDirector, url: str) -> None:
        self._opener, self._url = opener, url
        self._value: str | None = None

    def value(self) -> str:
        if self._value is None:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)}
            status, text = _answer(self._opener, self._url + TOKEN_PATH, headers, "PUT")
            if status != 200:
                raise OSError(f"status {status} for {TOKEN_PATH}")
            self._value = text
        return self._value

    def forget(self) -> None:
        self._value = None


def _ask_aws(opener: OpenerDirector, url: str, token: _Token) -> str | None:
    """What AWS says: 404 as long as there is no notice, then {"action": "terminate", "time": ...}."""
    for _ in range(2):
        status, text = _answer(opener, url + AWS_PATH, {"X-aws-ec2-metadata-token": token.value()})
        if status != 401:
            break
        token.forget()  # it has expired
    if status == 404:
        return None
    if status != 200:
        raise OSError(f"status {status} for {AWS_PATH}")
    return text or None


def _ask_gcp(opener: OpenerDirector, url: str, wait_s: float) -> str | None:
    """What Google says: FALSE or TRUE; the answer is held back until it changes, or `wait_s` seconds are over."""
    query = f"?wait_for_change=true&timeout_sec={max(1, round(wait_s))}"
    status, text = _answer(opener, url + GCP_PATH + query, {"Metadata-Flavor": "Google"}, wait_s=wait_s)
    if status != 200:
        raise OSError(f"status {status} for {GCP_PATH}")
    return "TRUE" if text.upper() == "TRUE" else None
