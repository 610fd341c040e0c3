"""Interfaces to transaction coordinators and to the partitions that get transaction markers.

Both may be on other brokers. `transaction_verification.TransactionVerifier` verifies transactions with coordinators
anywhere. `marker_sender.MarkerSender` writes to the partitions of this broker, `remote_markers.ClusterMarkerSender` to
those of all brokers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odradek.coordinator.result import TransactionOutcome
    from odradek.coordinator.steps import Steps
    from odradek.protocol.errors import ErrorCode
    from odradek.protocol.messages.produce import ProduceRequest
    from odradek.replication.replicas.partition import Partition
    from odradek.server.coordinators.marker_sender import RequestedMarkers, TopicPartition, TransactionMarker
    from odradek.server.coordinators.transaction_verification import TransactionWriter, VerificationResult
    from odradek.server.request import Reply


class TransactionVerification(Protocol):
    """Verifies with a transaction's coordinator that a partition belongs to the transaction (KIP-890)."""

    def verify_produce(self, request: "ProduceRequest", version: int) -> "Reply[VerificationResult | None]":
        """Verify the partitions of a transactional Produce request; None if nothing in it is transactional.

        Raises KafkaError INVALID_PRODUCER_ID_MAPPING for several producers.
        """

    def verify(self, writer: "TransactionWriter", sequences: "dict[Partition, int]") -> "Reply[VerificationResult]":
        """Verify that partitions may be written. `sequences` has the first sequence number of each write."""


class MarkerWriter(Protocol):
    """Writes COMMIT and ABORT markers to partitions (KIP-98).

    requested: the WriteTxnMarkers requests in progress
    """

    @property
    def requested(self) -> "RequestedMarkers": ...

    def send(
        self, outcome: "TransactionOutcome", done: "Callable[[TopicPartition, ErrorCode], None]"
    ) -> "Steps[None]":
        """Write a marker of the outcome to one partition per step; call `done` for each, immediately or later."""

    def write(self, name: "TopicPartition", marker: "TransactionMarker", done: "Callable[[ErrorCode], None]") -> None:
        """Write a marker to one partition; call `done` with NONE when it is replicated, or with the error."""
