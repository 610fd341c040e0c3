"""kill -9 in a loop, at times determined by a seed."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from odradek.testing import BrokerFailedError, OdradekBroker

KILLED_IN_START = 0.15
ROUNDS_BETWEEN_RESTS = 10


def kill_repeatedly(
    broker: Any, rounds: int, random: Random, rest: Callable[[], None], *, longest_run_s: float = 1.0
) -> int:
    """Kill and restart the broker `rounds` times, sometimes while it is starting; it runs at the end.

    Before every tenth kill `rest` waits until the clients have made progress: on a slow machine the runs are too short
    for it. Returns the number of kills during a start.
    """
    in_start = 0
    for number in range(1, rounds + 1):
        if number % ROUNDS_BETWEEN_RESTS == 0:
            rest()
        time.sleep(random.uniform(0.05, longest_run_s))  # kills at random times are the test; nothing is waited for
        broker.kill()
        if (
            isinstance(broker, OdradekBroker)
            and random.random() < KILLED_IN_START
            and _kill_while_starting(broker, random.uniform(0.05, 0.4))
        ):
            in_start += 1
        broker.start()
    return in_start


def _kill_while_starting(broker: Any, after_s: float) -> bool:
    failures: list[BrokerFailedError] = []
    started = threading.Event()

    def start() -> None:
        try:
            broker.start()
        except BrokerFailedError as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=start)
    thread.start()
    if not started.wait(after_s):
        with contextlib.suppress(BrokerFailedError, ProcessLookupError):
            os.kill(broker.pid, signal.SIGKILL)
    thread.join()
    broker.kill()
    if failures and f"exit code -{signal.SIGKILL:d}" not in str(failures[0]):
        raise failures[0]
    return bool(failures)
