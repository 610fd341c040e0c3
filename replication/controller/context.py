"""The controller's context: its role, its epoch and its own image, and writes that only the controller can make."""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata, MetadataDelta
from odradek.replication.metadata.store import (
    Check,
    MetadataStore,
    MetadataStoreError,
    Operation,
    OperationResult,
    TransactionError,
)
from odradek.replication.metadata.updates import MetadataPublisher, update_from

logger = logging.getLogger(__name__)

MAX_OPERATIONS: Final = 2000
"""Most operations in one transaction, for a change that can be split."""

Pause = Callable[[], Coroutine[Any, Any, None]]


class ControllerRole(Enum):
    """A broker's role in the control of its cluster."""

    STANDBY = "standby"
    ACTIVE = "active"
    STOPPED = "stopped"


_ROLE_CHANGES: Final[Mapping[ControllerRole, frozenset[ControllerRole]]] = {
    ControllerRole.STANDBY: frozenset({ControllerRole.ACTIVE, ControllerRole.STOPPED}),
    ControllerRole.ACTIVE: frozenset({ControllerRole.STANDBY, ControllerRole.STOPPED}),
    ControllerRole.STOPPED: frozenset(),
}


class ControllerContext:
    """State that the controller's parts share.

    image: the controller's own image; each publication of it goes to `publisher` as an update
    role, epoch: this broker's role, and the last epoch in which it was the controller
    pause: awaited repeatedly in changes of many topics or partitions, to let other work run
    """

    def __init__(
        self,
        store: MetadataStore,
        publisher: MetadataPublisher,
        broker_id: int,
        now_ms: Callable[[], int],
        pause: Pause,
    ) -> None:
        self.store = store
        self.image = ClusterMetadata()
        self.broker_id = broker_id
        self.now_ms = now_ms
        self.pause = pause
        self.role = ControllerRole.STANDBY
        self.epoch = 0
        self._epoch_version = 0
        self._publisher = publisher
        self.image.listeners.append(self._publish)

    def _publish(self, delta: MetadataDelta) -> None:
        self._publisher.publish(update_from(self.image, delta))

    @property
    def is_active(self) -> bool:
        """True while this broker is the controller."""
        return self.role is ControllerRole.ACTIVE

    def begin_epoch(self, epoch: int, epoch_version: int) -> None:
        """Become the controller in `epoch`; `epoch_version` is the version of its node."""
        self.epoch = epoch
        self._epoch_version = epoch_version
        self._change_role(ControllerRole.ACTIVE, "elected")

    def resign(self, why: str) -> None:
        """Stop acting as the controller."""
        if self.is_active:
            self._change_role(ControllerRole.STANDBY, why)

    def stop(self) -> None:
        """Stop acting as the controller permanently."""
        if self.role is not ControllerRole.STOPPED:
            self._change_role(ControllerRole.STOPPED, "the broker stops")

    def _change_role(self, role: ControllerRole, why: str) -> None:
        if role not in _ROLE_CHANGES[self.role]:
            raise AssertionError(f"a controller cannot change from {self.role.value} to {role.value}: {why}")
        logger.log(
            logging.WARNING if role is ControllerRole.STANDBY else logging.INFO,
            "controller role old=%s new=%s broker=%d epoch=%d reason=%s",
            self.role.value,
            role.value,
            self.broker_id,
            self.epoch,
            why,
        )
        self.role = role

    def check_active(self) -> None:
        """Raise KafkaError NOT_CONTROLLER unless this broker is the controller."""
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Write a change as the controller, all of it or nothing.

        Raises KafkaError NOT_CONTROLLER if this broker is not the controller (any more), TransactionError as the
        store does; its index counts the given operations.
        """
        self.check_active()
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        try:
            results = await self.store.transaction([fence, *operations])
        except TransactionError as error:
            if error.index == 0:
                self.resign("another broker became the controller")
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker became the controller") from error
            raise TransactionError(error.index - 1, error.cause) from error
        return results[1:]

    async def change(self, operations: Sequence[Operation]) -> None:
        """Write a client's change, all of it or nothing. Raises KafkaError for each error of the store."""
        try:
            await self.write(operations)
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error


def as_kafka_error(error: KafkaError | MetadataStoreError) -> KafkaError:
    """Return the error for a client whose change the store refused."""
    return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
