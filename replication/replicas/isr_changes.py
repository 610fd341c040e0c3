"""The queue of ISR changes, and the AlterPartition requests that send them to the controller (KIP-497).

All partitions share one queue with at most one change of each partition. One request is in flight at a time; changes
that are submitted meanwhile are in the next one. A change stays in the queue until the controller has returned a result
for its partition, however long that takes, or until it is no longer pending in its partition.

Sources: `core/src/main/scala/kafka/server/AlterPartitionManager.scala` for the behaviour of Apache Kafka.
"""

import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
)
from odradek.replication.remote import BrokerUnavailableError, ControllerRequests, Delay
from odradek.replication.replicas.isr import IsrChange
from odradek.replication.replicas.leader_state import IsrChangeOwner

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS: Final = 50
MAX_CHANGES_PER_REQUEST: Final = 200
_PARTITIONS_PER_STEP: Final = 100

Start = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine until it waits, and resumes it when its awaitable is complete."""


class Handling(Enum):
    """Handling of an error that the controller returned for a partition."""

    REVERT = "revert"
    AWAIT_METADATA = "wait for new metadata"
    RETRY = "retry"


HANDLING: Final[Mapping[int, Handling]] = {
    ErrorCode.INELIGIBLE_REPLICA: Handling.REVERT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Handling.REVERT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Handling.AWAIT_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: Handling.AWAIT_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: Handling.AWAIT_METADATA,
    ErrorCode.INVALID_UPDATE_VERSION: Handling.AWAIT_METADATA,
    ErrorCode.INVALID_REQUEST: Handling.AWAIT_METADATA,
    ErrorCode.NEW_LEADER_ELECTED: Handling.AWAIT_METADATA,
}
"""All other errors are retried.

With REVERT the controller has declared that the change was not and will not be made. With AWAIT_METADATA it is unknown
whether an earlier attempt was made, so the change stays pending until the controller sends the partition's new state.
"""

_Key = tuple[bytes, int]


class IsrChangeQueue:
    """The queue of changes, and the loop that sends them.

    broker_epoch: returns the epoch of this broker's registration
    start: starts the loop when the first change arrives; the loop ends when the queue is empty
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller: ControllerRequests,
        delay: Delay,
        start: Start,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._delay = delay
        self._start = start
        self._queued: dict[_Key, tuple[IsrChangeOwner, IsrChange]] = {}
        self._in_flight: dict[_Key, tuple[IsrChangeOwner, IsrChange]] = {}
        self._is_running = False
        self._is_stopped = False
        # The failure of the last request, which is logged once.
        self._last_failure = ""

    def __len__(self) -> int:
        return len(self._queued) + len(self._in_flight)

    def submit(self, owner: IsrChangeOwner, change: IsrChange) -> None:
        """Queue a change; it replaces an older one of the partition that is not in flight.

        While an older change is in flight, the new one is reverted: the partition proposes it again later.
        """
        key = owner.topic_id, owner.index
        if self._is_stopped or key in self._in_flight:
            owner.revert_isr_change(change)
            return
        self._queued[key] = owner, change
        if not self._is_running:
            self._is_running = True
            self._start(self._run())

    def stop(self) -> None:
        """Send no further request. Queued changes stay pending in their partitions; later ones are reverted."""
        self._is_stopped = True
        self._queued.clear()

    async def _run(self) -> None:
        try:
            while self._take():
                try:
                    is_complete = await self._send()
                finally:
                    self._queued = {**self._in_flight, **self._queued}
                    self._in_flight = {}
                if not is_complete:
                    await self._delay(RETRY_MS)
        finally:
            self._is_running = False

    def _take(self) -> bool:
        """Move changes that are still pending from the queue to the next request; return whether there is one."""
        if self._is_stopped:
            return False
        queued = self._queued
        while queued and len(self._in_flight) < MAX_CHANGES_PER_REQUEST:
            key = next(iter(queued))
            owner, change = queued.pop(key)
            if owner.is_pending(change):
                self._in_flight[key] = owner, change
        return bool(self._in_flight)

    async def _send(self) -> bool:
        """Send the changes in flight, and remove those that were answered; return whether none is to be retried."""
        request = self._make_request()
        try:
            response = await self._controller.send(request, AlterPartitionResponse)
        except BrokerUnavailableError as error:
            self._report_failure(f"the controller did not answer: {error}")
            return False
        except Exception as error:
            # The loop must not end: without changes of ISRs acknowledgements would wait for dead replicas for ever.
            logger.exception("a request to the controller failed; please report it")
            self._report_failure(f"the request failed: {error!r}")
            return False
        if response.error_code:
            self._report_failure(f"the controller returned {read_error_code(response.error_code).name}")
            return False
        for topic in response.topics:
            for answer in topic.partitions:
                self._handle(topic.topic_id, answer)
        if self._in_flight:
            self._report_failure("the controller returned no final answer for them")
            return False
        self._last_failure = ""
        return True

    def _report_failure(self, failure: str) -> None:
        level = logging.DEBUG if failure == self._last_failure else logging.WARNING
        self._last_failure = failure
        logger.log(level, "ISR changes not made, retrying count=%d reason=%s", len(self._in_flight), failure)

    def _handle(self, topic_id: bytes, answer: AlterPartitionResponsePartitionData) -> None:
        key = topic_id, answer.partition_index
        sent = self._in_flight.get(key)
        if sent is None:
            return
        owner, change = sent
        if not answer.error_code:
            del self._in_flight[key]
            try:
                owner.finish_isr_change(change, answer.leader_epoch, tuple(answer.isr), answer.partition_epoch)
            except Exception:
                logger.exception("an ISR change of %s-%d failed; please report it", owner.topic, owner.index)
            return
        handling = HANDLING.get(answer.error_code, Handling.RETRY)
        logger.log(
            logging.DEBUG if handling is Handling.RETRY else logging.INFO,
            "the controller refused an ISR change topic=%s partition=%d isr=%s error=%s: %s",
            owner.topic,
            owner.index,
            change.isr,
            read_error_code(answer.error_code).name,
            handling.value,
        )
        if handling is not Handling.RETRY:
            del self._in_flight[key]
        if handling is Handling.REVERT:
            owner.revert_isr_change(change)

    def _make_request(self) -> AlterPartitionRequest:
        """Return the request for the changes in flight.

        The broker epochs are those of the proposals: a member that has registered again since may have lost records,
        and the controller refuses it (KIP-903).
        """
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for (topic_id, index), (_, change) in self._in_flight.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = AlterPartitionRequestTopicData(topic_id=topic_id)
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=index,
                    leader_epoch=change.leader_epoch,
                    new_isr=list(change.isr),
                    new_isr_with_epochs=[
                        AlterPartitionRequestBrokerState(broker_id=broker_id, broker_epoch=epoch)
                        for broker_id, epoch in zip(change.isr, change.broker_epochs, strict=True)
                    ],
                    leader_recovery_state=0,
                    partition_epoch=change.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )


def shrink_isrs(partitions: "Iterable[Partition]") -> Generator[None, None, None]:
    """Propose to remove the followers that are out of sync from all ISRs, in steps.

    It runs every replica.lag.time.max.ms / 2.
    """
    items = iter(partitions)
    while some := list(islice(items, _PARTITIONS_PER_STEP)):
        for partition in some:
            partition.shrink_isr()
        yield
