"""ElectLeaders: validation, elections and results (KIP-183, KIP-460).

Messages are those of Apache Kafka 4.3's controller.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)
from odradek.replication.controller.context import ControllerContext, as_kafka_error
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.states.partition_states import (
    PartitionState,
    determine_state,
    elect_leader,
    elect_preferred_leader,
)
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import MetadataStoreError
from odradek.replication.pauses import in_slices

PREFERRED: Final = 0
UNCLEAN: Final = 1
"""The election types of ElectLeaders."""

_PARTITIONS_PER_PAUSE: Final = 100


class _ElectionPlan:
    """Leaders that were elected and not yet written."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._partitions: dict[str, list[PartitionMetadata]] = {}

    def elect(self, topic: str, index: int, election_type: int, why: str) -> None:
        """Elect a leader. Raises KafkaError if that is not necessary or not possible."""
        partition = self._find(topic, index)
        brokers, epoch = self._context.staying_brokers, self._context.epoch
        is_needed = partition.leader not in brokers
        if election_type == PREFERRED:
            is_needed = partition.leader != partition.replicas[0]
        if not is_needed:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        if election_type == PREFERRED:
            elected = elect_preferred_leader(partition, brokers, epoch)
            if elected is None:
                raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
        else:
            elected = partition
            # A partition that has not begun has no state, or one that cannot be decoded, which no election replaces.
            if determine_state(partition) is not PartitionState.NEW:
                elected = elect_leader(partition, brokers, epoch, allows_unclean=True)
            if elected.leader == NO_LEADER:
                text = "Eligible topic partition leaders are not available."
                raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text)
        planned = self._partitions.setdefault(topic, list(self._context.image.topics[topic].partitions))
        planned[index] = self._context.change_state(partition, elected, topic, index, why)

    def _find(self, topic: str, index: int) -> PartitionMetadata:
        partition = self._context.image.partition(topic, index)
        if partition is None:
            is_known = topic in self._context.image.topics
            what = f"partition as {topic}-{index}" if is_known else f"topic as {topic}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}")
        return partition

    def topics(self) -> list[TopicMetadata]:
        """Return the changed topics."""
        topics = self._context.image.topics
        return [topics[name]._replace(partitions=tuple(planned)) for name, planned in self._partitions.items()]


class ElectionAdmin:
    """Elections that clients request. `applied` returns when this broker's replicas have applied changes."""

    def __init__(self, controller: Controller, applied: Callable[[], Awaitable[None]]) -> None:
        self._controller = controller
        self._context = controller.context
        self._applied = applied

    async def elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders as requested, null partitions meaning all.

        Raises KafkaError NOT_CONTROLLER, INVALID_REQUEST, REQUEST_TIMED_OUT, and errors of the store.
        """
        self._controller.check_active()
        if request.timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        response = await self._controller.request("elect leaders", lambda: self._elect(request))
        await self._applied()
        return response

    async def _elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        while True:
            try:
                return await self._elect_once(request)
            except KafkaError as error:
                # Another wrote the state of a partition, which has been read again.
                if error.code != ErrorCode.INVALID_UPDATE_VERSION:
                    raise

    async def _elect_once(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        plan = _ElectionPlan(self._context)
        response = ElectLeadersResponse()
        is_for_all = request.topic_partitions is None
        async for topic, indexes in self._list_requested(request):
            result = ElectLeadersResponseReplicaElectionResult(topic=topic)
            async for index in in_slices(indexes, _PARTITIONS_PER_PAUSE, self._context.pause):
                code, text = ErrorCode.NONE, None
                try:
                    plan.elect(topic, index, request.election_type, "requested")
                except KafkaError as error:
                    code, text = error.code, error.message
                if not (is_for_all and code == ErrorCode.ELECTION_NOT_NEEDED):
                    result.partition_result.append(
                        ElectLeadersResponsePartitionResult(partition_id=index, error_code=code, error_message=text)
                    )
            response.replica_election_results.append(result)
        await self._write(plan)
        return response

    async def _list_requested(self, request: ElectLeadersRequest) -> AsyncIterator[tuple[str, Iterable[int]]]:
        if request.topic_partitions is not None:
            for requested in request.topic_partitions:
                await self._context.pause()
                yield requested.topic, requested.partitions
            return
        for topic in list(self._context.image.topics.values()):
            await self._context.pause()
            yield topic.name, range(len(topic.partitions))

    async def _write(self, plan: _ElectionPlan) -> None:
        try:
            await self._controller.changes.put_partitions(plan.topics())
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error
