"""A member of a consumer group that runs during faults."""

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException

from compat_tests.clients.common import wait_until

JOIN_S = 60


class GroupReader:
    """A thread that reads a topic as the only member of a group, and commits.

    commits: number of commits that the coordinator confirmed
    """

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 500,
                "error_cb": lambda error: None,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.commits = 0
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-reader", daemon=True)

    def wait_for_more(self, commits: int = 3, timeout_s: float = 60) -> None:
        """Wait until that many more commits of further records are confirmed."""
        target = self.commits + commits
        wait_until(
            lambda: self.commits >= target,
            timeout_s=timeout_s,
            what=lambda: f"{self.commits} of {target} commits; {self.errors[-5:]}",
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe([self._topic])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(JOIN_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            read = [message for message in self._consumer.consume(500, timeout=0.2) if message.error() is None]
            if read:
                try:
                    self._consumer.commit(asynchronous=False)
                    self.commits += 1
                except KafkaException as error:
                    self.errors.append(str(error))
