"""Requests to other servers in threads of a broker, which do not delay its stop."""

import subprocess
import sys
import threading
from typing import Any, cast

import pytest

from odradek.server.work.clock import Reactor
from odradek.server.work.threads import run_in_daemon_thread

STOP_DURING_A_REQUEST = """
import threading
from twisted.internet import reactor
from odradek.server.environment import Environment

def hang():
    reactor.callFromThread(reactor.stop)
    threading.Event().wait()

environment = Environment(reactor)
reactor.callWhenRunning(environment.run_request, hang, lambda error: print("ended"))
reactor.run()
print("stopped")
"""


class QueueReactor:
    """Reactor whose calls are made by `run`. `calls`: those of threads."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.has_call = threading.Event()

    def callFromThread(self, *call: Any) -> None:  # noqa: N802
        self.calls.append(call)
        self.has_call.set()

    def callLater(self, delay_s: float, *call: Any) -> None:  # noqa: N802
        assert delay_s == 0
        self.callFromThread(*call)

    def run(self) -> None:
        assert self.has_call.wait(60)
        for function, *arguments in self.calls:
            function(*arguments)


def test_a_process_ends_during_a_request() -> None:
    command = [sys.executable, "-c", STOP_DURING_A_REQUEST]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped\n", "")


def run(reactor: QueueReactor, error: Exception | None) -> list[Any]:
    threads: list[Any] = []
    outcome: list[Any] = []

    def work() -> None:
        threads.append(threading.current_thread())
        if error is not None:
            raise error

    run_in_daemon_thread(cast(Reactor, reactor), work, outcome.append)
    assert outcome == []
    reactor.run()
    assert threading.current_thread() not in threads
    return outcome


@pytest.mark.parametrize("error", [None, OSError("no route")])
def test_the_end_of_a_request_is_reported_in_the_reactor_thread(error: Exception | None) -> None:
    assert run(QueueReactor(), error) == [error]


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("can't start new thread")

    def refuse(self: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run(QueueReactor(), None) == [error]
