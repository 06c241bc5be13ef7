"""The notices of two providers, told by a server on this machine; nothing outside it is asked."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bolide.callbacks import ModelCheckpoint, PreemptionWatch
from bolide.core.errors import ConfigError, SIGTERMException
from tests.callbacks.support import Scored, fit, rows, saved, trainer

WAIT_S = 60.0


class Metadata(BaseHTTPRequestHandler):
    """Both providers' formats; the server holds what is so."""

    def answer(self, status, text=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self):
        self.server.asked.append(("PUT", self.path))
        life_s = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        if self.path != "/latest/api/token" or not life_s:
            return self.answer(400)
        self.server.tokens += 1
        return self.answer(200, f"token-{self.server.tokens}")

    def do_GET(self):
        path, _, query = self.path.partition("?")
        self.server.asked.append(("GET", self.path))
        notice = self.server.notice.is_set()
        if path == "/latest/meta-data/spot/instance-action":
            if self.headers.get("X-aws-ec2-metadata-token") != f"token-{self.server.valid_token or self.server.tokens}":
                return self.answer(401)
            return self.answer(200, json.dumps({"action": "terminate", "time": "soon"})) if notice else self.answer(404)
        if path == "/computeMetadata/v1/instance/preempted":
            if self.headers.get("Metadata-Flavor") != "Google" or "wait_for_change=true" not in query:
                return self.answer(403)
            return self.answer(200, "TRUE" if notice else "FALSE")
        return self.answer(302) if path == "/moved" else self.answer(500)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    made.asked, made.tokens, made.valid_token, made.notice = [], 0, None, threading.Event()
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


class Endless(Scored):
    """Batches until the trainer is stopped; tells the server at the third that the machine goes."""

    def __init__(self, at_third):
        super().__init__()
        self.at_third, self.begun_s = at_third, time.monotonic()

    def training_step(self, batch, batch_idx):
        if batch_idx == 3:
            self.at_third()
        time.sleep(0.002)
        assert time.monotonic() - self.begun_s < WAIT_S, "no notice came"
        return super().training_step(batch, batch_idx)


def stopped(watch, at_third, folder):
    made = trainer(watch, ModelCheckpoint(folder, every_n_epochs=0), max_epochs=-1)
    with pytest.raises(SIGTERMException) as caught:
        made.fit(Endless(at_third), rows(10_000))
    assert caught.value.code == 143
    return made


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_notice_saves_and_stops(server, tmp_path, provider):
    watch = PreemptionWatch(provider, interval_s=0.01, url=server.url + "/")
    made = stopped(watch, server.notice.set, tmp_path)
    assert made.stop_reason == "preempted" and not made.received_sigterm
    assert saved(tmp_path) == {"last.ckpt": made.global_step} and made.global_step >= 4
    assert watch.notice in ('{"action": "terminate", "time": "soon"}', "TRUE")
    if provider == "aws":
        assert server.asked[0] == ("PUT", "/latest/api/token") and server.tokens == 1


def test_a_function_may_tell(tmp_path):
    told = threading.Event()
    made = stopped(PreemptionWatch(lambda: "in 30 s" if told.is_set() else None, 0.01), told.set, tmp_path)
    assert made.callbacks[0].notice == "in 30 s"


def test_a_function_that_raises_is_asked_again(tmp_path):
    told, calls = threading.Event(), []

    def ask():
        calls.append(None)
        if not told.is_set():
            raise RuntimeError("busy")
        return True

    with pytest.warns(UserWarning, match="no answer from its function .RuntimeError: busy.") as said:
        stopped(PreemptionWatch(ask, 0.01), told.set, tmp_path)
    assert len(calls) > 1 and sum("no answer" in str(one.message) for one in said) == 1


def test_a_token_that_has_expired_is_asked_for_again(server):
    ask = PreemptionWatch("aws", url=server.url).question()
    assert ask() is None
    server.valid_token = 2
    server.notice.set()
    assert json.loads(ask())["action"] == "terminate"
    assert server.tokens == 2


def test_without_a_notice_the_fit_ends_as_ever(server):
    watch = PreemptionWatch("gcp", interval_s=0.01, url=server.url)
    made = fit(watch, train=3, max_epochs=1)
    assert made.global_step == 3 and watch.notice is None
    assert made.stop_reason is None


def test_where_nobody_answers_it_says_so_once():
    with pytest.warns(UserWarning, match="gets no answer from http://127.0.0.1:9") as said:
        asked = threading.Event()

        class Waits(Scored):
            def training_step(self, batch, batch_idx):
                asked.wait(0.2)
                return super().training_step(batch, batch_idx)

        fit(PreemptionWatch("aws", interval_s=0.01, url="http://127.0.0.1:9"), module=Waits(), train=3, max_epochs=1)
    assert len([w for w in said if "gets no answer" in str(w.message)]) == 1


@pytest.mark.parametrize(("provider", "path"), [("aws", "/nowhere"), ("gcp", "/moved")])
def test_another_answer_is_no_notice(server, provider, path):
    server.notice.set()
    with pytest.raises(OSError, match="status"):
        PreemptionWatch(provider, url=server.url + path).question()()


def test_nothing_is_asked_without_it(server):
    fit(train=2, max_epochs=1)
    assert server.asked == []
    assert not [t for t in threading.enumerate() if t.name == "bolide-preemption"]


@pytest.mark.parametrize(
    "arguments",
    [("azure",), ("aws", 0), ("aws", -1.0), ("aws", 5, "file:///etc/passwd"), (print, 5, "http://localhost")],
)
def test_settings_that_are_refused(arguments):
    with pytest.raises(ConfigError, match="PreemptionWatch"):
        PreemptionWatch(*arguments)


def test_the_thread_ends_with_the_fit():
    fit(PreemptionWatch(lambda: None, interval_s=0.01), train=2, max_epochs=1)
    deadline_s = time.monotonic() + WAIT_S
    while [t for t in threading.enumerate() if t.name == "bolide-preemption"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
