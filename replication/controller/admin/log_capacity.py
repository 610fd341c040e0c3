"""File descriptors for new logs. Each segment keeps one, and a topic is acknowledged before its logs are opened."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.image import PartitionMetadata

Claim = Callable[[str, Sequence[PartitionMetadata]], None]
"""Claim descriptors for new partitions of a topic. Raises KafkaError POLICY_VIOLATION if there are not enough."""


class LogCapacity:
    """Descriptors for logs that are about to be opened. `spare` returns those that may be opened now, and kept."""

    def __init__(self, broker_id: int, spare: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._spare = spare
        self._claimed = 0

    @contextmanager
    def claims(self) -> Iterator[Claim]:
        """Reserve claimed descriptors until the context ends. By then the logs are open and counted as open files."""
        mine = 0

        def claim(topic: str, partitions: Sequence[PartitionMetadata]) -> None:
            nonlocal mine
            count = sum(self._broker_id in partition.replicas for partition in partitions)
            left = max(0, self._spare() - self._claimed)
            if count > left:
                # Clients do not retry after POLICY_VIOLATION, and show its message to their users.
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"topic {topic} needs {count} open files for its new partitions and the broker may open {left} "
                    "more: raise the limit of open files (ulimit -n) or create fewer partitions",
                )
            mine += count
            self._claimed += count

        try:
            yield claim
        finally:
            self._claimed -= mine
