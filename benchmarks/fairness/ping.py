"""The other client: one small request each millisecond over one connection, until its standard input ends.

    python -m benchmarks.fairness.ping PORT     (prints one JSON line: Delays)

Each delay counts from the time at which the request was due, and requests that became due during a delay count as
well. Otherwise one long delay would be a single sample among thousands. The time without a broker, during a restart,
does not count.
"""

from __future__ import annotations

import json
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks import wire

ROOT = Path(__file__).resolve().parent.parent.parent
INTERVAL_NS = 1_000_000
CONNECT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 300.0
PING_TIMEOUT_S = 300
_NO_TOPICS = struct.pack(">i", 0)

now_ns = time.perf_counter_ns


class Delays(NamedTuple):
    """Delays in ms. `count` includes the requests that became due during a delay."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    p50_ms: float
    p999_ms: float
    max_ms: float


def _connect(port: int) -> wire.Admin:
    """Connect to a broker that may be about to start. Raises OSError after `CONNECT_TIMEOUT_S`."""
    give_up_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            connection = wire.Admin(port, timeout_s=ANSWER_TIMEOUT_S)
            connection.call(wire.METADATA, 1, _NO_TOPICS)
            return connection
        except (OSError, wire.WireError):
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.002)


def _input_ends(timeout_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def _ping(connection: wire.Admin, delays_ns: list[int]) -> None:
    """Append delays until the standard input ends. Raises WireError and OSError if the connection ends."""
    due_ns = now_ns()
    while not _input_ends(max(0, due_ns - now_ns()) / 1e9):
        connection.call(wire.METADATA, 1, _NO_TOPICS)
        answered_ns = now_ns()
        while due_ns <= answered_ns:
            delays_ns.append(answered_ns - due_ns)
            due_ns += INTERVAL_NS


def measure(port: int) -> Delays:
    """Send requests until the standard input ends."""
    delays_ns: list[int] = []
    is_over = False
    while not is_over:
        with _connect(port) as connection, suppress(wire.WireError, ConnectionError):
            print("connected", flush=True)
            _ping(connection, delays_ns)
            is_over = True
    delays_ns.sort()
    count = len(delays_ns)
    if not count:
        return Delays(0, 0, 0, 0)
    at = [delays_ns[min(int(count * share), count - 1)] / 1e6 for share in (0.5, 0.999)]
    return Delays(count, at[0], at[1], delays_ns[-1] / 1e6)


@contextmanager
def measure_delays(port: int, results: list[Delays]) -> Iterator[None]:
    """Measure while the context lasts, and append the result."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fairness.ping", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        _require(process.stdout).readline()
        yield
        output = process.communicate(timeout=PING_TIMEOUT_S)[0].splitlines()[-1]
        if process.returncode:
            raise RuntimeError("the pings ended with an error")
        results.append(Delays(**json.loads(output)))
    finally:
        process.kill()
        process.wait()


def _require(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


if __name__ == "__main__":
    try:
        print(json.dumps(measure(int(sys.argv[1]))._asdict()))
    except (OSError, wire.WireError) as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")
