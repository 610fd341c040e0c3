"""Profile of Odradek on one row: the row's load against a broker under cProfile.

    python -m benchmarks.profile requests-8 [--sort calls|own|cumulative] [--lines 40] [--seconds 2]

The broker runs twice, under a short load and under a long one. The difference of the two profiles, divided by the
difference in requests, is the cost of one more request: start, warm-up and stop cancel out. Counts of calls are exact;
times are those under the profiler, which makes Python calls several times as expensive and C calls slightly. Only the
main thread is profiled.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import brokers, measure
from benchmarks.rows import BY_NAME, Row

START_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 60.0
RARE_CALLS = 0.01  # rarer calls belong to start or stop, whose two times differ
SORT_FIELDS = {"calls": 1, "own": 2, "cumulative": 3}

Function = tuple[str, int, str]


class Cost(NamedTuple):
    """Cost of one function per request: calls, and microseconds without and with the functions that it calls."""

    function: Function
    calls: float
    own_us: float
    cumulative_us: float


class ProfiledBroker:
    """Odradek's start command under cProfile; the profile is in `profile` once the broker has stopped."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self.profile = directory / "profile"
        self.log = directory / "broker.log"
        self.port = brokers.free_ports(1)[0]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        properties = {
            **brokers.PROPERTIES,
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self.data_dir),
        }
        overrides = [word for item in properties.items() for word in ("--override", "=".join(item))]
        self._command = [
            sys.executable,
            "-m",
            "cProfile",
            "-o",
            str(self.profile),
            "-m",
            "odradek",
            "start",
            *overrides,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ProfiledBroker:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=measure.ROOT)
        give_up = time.monotonic() + START_TIMEOUT_S
        while not brokers.answers_metadata(self.port):
            if self._process.poll() is not None or time.monotonic() > give_up:
                self._process.kill()
                raise measure.MeasurementError(f"the broker did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="odradek-profile-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def profile_once(row: Row, seconds: float) -> tuple[dict[Function, Any], int]:
    """Return the broker's profile and the number of requests that it answered."""
    pace = measure.QUICK._replace(seconds=seconds, max_bytes=2_000_000_000, log_bytes=20_000_000)
    row = row._replace(load={**row.load, "warm_s": 0.3})
    with _directory() as directory:
        broker = ProfiledBroker(directory)
        with broker:
            result = measure.LOADS[row.kind](measure.Contestant(broker), row, pace)
        if not broker.profile.exists():
            raise measure.MeasurementError(f"no profile was written:\n{broker.log.read_text()[-2000:]}")
        of_transaction = int(row.load.get("records_per_transaction", 0))
        records = of_transaction + 1 if row.kind == "transactions" else int(row.load.get("records_per_batch", 1))
        requests = result.acked_records // records
        return pstats.Stats(str(broker.profile)).stats, requests  # type: ignore[attr-defined]


def costs_per_request(row: Row, seconds: float) -> tuple[list[Cost], int]:
    """Return the cost of one more request by function, and the number of requests of the measurement."""
    short, few = profile_once(row, seconds / 5)
    long, many = profile_once(row, seconds)
    extra = many - few
    if extra <= 0:
        raise measure.MeasurementError("the longer load brought no more requests; give more --seconds")
    costs = []
    for function, (_, calls, own_s, cumulative_s, _) in long.items():
        _, calls_before, own_before, cumulative_before, _ = short.get(function, (0, 0, 0.0, 0.0, {}))
        microseconds = 1e6 / extra
        costs.append(
            Cost(
                function,
                (calls - calls_before) / extra,
                (own_s - own_before) * microseconds,
                (cumulative_s - cumulative_before) * microseconds,
            )
        )
    return costs, extra


def _name(function: Function) -> str:
    path, line, name = function
    if path == "~":
        return name
    parts = path.split(os.sep)
    return f"{'/'.join(parts[-2:])}:{line} {name}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Odradek's cost per request.")
    loads = [row.name for row in BY_NAME.values() if row.kind in measure.LOADS]
    parser.add_argument("row", choices=loads)
    parser.add_argument("--sort", choices=SORT_FIELDS, default="own")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    try:
        costs, requests = costs_per_request(BY_NAME[arguments.row], arguments.seconds)
    except measure.MeasurementError as error:
        sys.exit(str(error))
    python = sum(cost.calls for cost in costs if cost.function[0] != "~")
    builtin = sum(cost.calls for cost in costs if cost.function[0] == "~")
    print(f"{arguments.row}: per request, over {requests} requests: {python:.1f} Python calls, {builtin:.1f} C calls")
    print(f"{'calls':>9} {'own us':>9} {'cum us':>9}  function")
    costs.sort(key=lambda cost: cost[SORT_FIELDS[arguments.sort]], reverse=True)
    often = [cost for cost in costs if cost.calls >= RARE_CALLS]
    for cost in often[: arguments.lines]:
        print(f"{cost.calls:9.2f} {cost.own_us:9.2f} {cost.cumulative_us:9.2f}  {_name(cost.function)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
