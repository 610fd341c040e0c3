"""Kafka's TransactionalMessageCopier, which copies a partition during faults: records and offsets in transactions."""

import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compat_tests.apache_kafka import tools
from compat_tests.kill.history import Stored
from compat_tests.limits import COPIED_S

TRANSACTION_SIZE = 500
PAUSE_S = 3.0
"""Pause before each process, which ends at the end offset that the partition had when it started."""


class PartitionCopier:
    """Processes that copy partition 0 of a topic one after the other; some of their transactions are aborted.

    runs: number of processes so far
    troubles: ends of the outputs of processes that hung
    """

    def __init__(self, bootstrap_servers: str, topic: str, copy: str, directory: Path) -> None:
        self.runs = 0
        self.failures = 0
        self.troubles: list[str] = []
        self._directory = directory
        self._arguments = [
            *("--broker-list", bootstrap_servers, "--input-topic", topic, "--input-partition", "0"),
            *("--output-topic", copy, "--consumer-group", "copier", "--transactional-id", "copier"),
            *("--transaction-size", str(TRANSACTION_SIZE), "--transaction-timeout", "20000"),
            *("--enable-random-aborts", "--use-group-metadata"),
        ]
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end; `join` waits until all records of this moment are copied."""
        self._stopping.set()

    def abandon(self) -> None:
        """End the process that is running."""
        self._abandoned.set()
        self._stopping.set()
        self._thread.join()

    def join(self) -> None:
        self._thread.join(2 * COPIED_S)

    def _run(self) -> None:
        is_done = False
        while not is_done and not self._abandoned.is_set():
            is_last = self._stopping.wait(PAUSE_S)
            self.runs += 1
            output = self._directory / f"copier-{self.runs}.out"
            with tools.RunningTool(output, tools.TRANSACTIONAL_MESSAGE_COPIER, *self._arguments) as tool:
                code = self._wait(tool.process)
            self.failures += code != 0
            if code is None and not self._abandoned.is_set():
                self.troubles.append(f"the copier did not end\n{tool.output()[-2000:]}")
                return
            is_done = is_last and code == 0

    def _wait(self, process: "subprocess.Popen[bytes]") -> int | None:
        """Return the exit code of a process; None if it was abandoned, or hangs."""
        for _ in range(int(COPIED_S)):
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                if self._abandoned.is_set():
                    return None
        return None


def difference(written: Sequence[Stored], copied: Sequence[Stored]) -> str:
    """Describe how a copy differs: the numbers of records, the first that differ, and what is missing and doubled."""
    counts = Counter(record.value for record in copied)
    missing = [record for record in written if not counts[record.value]]
    doubled = [record for record in copied if counts[record.value] > 1]
    first = next((pair for pair in zip(written, copied, strict=False) if pair[0].value != pair[1].value), None)
    return (
        f"{len(written)} records were written and {len(copied)} copied; first difference {first}; "
        f"{len(missing)} are missing {missing[:2]}..{missing[-1:]}; "
        f"{len(doubled)} are doubled {doubled[:4]}..{doubled[-1:]}"
    )
