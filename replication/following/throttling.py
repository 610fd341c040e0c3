"""Throttling of replication on followers (KIP-73)."""

from typing import Protocol


class ThrottledPartitions(Protocol):
    """The partitions whose replication is throttled, and the rate at which they may be fetched."""

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Return whether a partition is throttled and the rate is exceeded. Partitions in sync are not throttled."""

    def record(self, topic: str, index: int, size_bytes: int) -> None:
        """Count fetched bytes, if the partition is throttled."""


class Unthrottled:
    """No throttling."""

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Return False."""
        return False

    def record(self, topic: str, index: int, size_bytes: int) -> None:
        """Count nothing."""
