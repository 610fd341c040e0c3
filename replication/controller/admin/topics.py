"""CreateTopics, CreatePartitions and DeleteTopics: validation of requests, in Kafka's order.

Requests and responses are Kafka's; an error of one topic is in that topic's result. Sources: KIP-4, KIP-195,
KIP-464, KIP-516, KIP-525. Behaviour as of Apache Kafka 4.3's controller.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from odradek.log.config import LogConfig
from odradek.properties import INT32_MAX, PropertyError, UnknownPropertyError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicConfigs,
    CreateTopicsResponseCreatableTopicResult,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.admin.automatic_topics import find_setting, plan_automatic_topic
from odradek.replication.controller.admin.log_capacity import Claim, LogCapacity
from odradek.replication.controller.admin.metadata_wait import MetadataWait
from odradek.replication.controller.configs.limits import check_value_sizes
from odradek.replication.controller.configs.sources import topic_config_source
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.partitions.reassignment import is_reassigning
from odradek.replication.controller.states.assignment import (
    RandomSource,
    assign_replicas,
    check_replicas,
    find_racks,
    invalid_assignment,
)
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic, split_into_batches
from odradek.replication.controller.topics.ids import random_topic_id
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.metadata.topic_names import (
    CLUSTER_METADATA_TOPIC,
    check_topic_name,
    colliding_topic,
    is_internal,
)

logger = logging.getLogger(__name__)

SpendMutations = Callable[[int], None]
"""Records partitions to create or delete. Raises KafkaError THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

MAX_PARTITIONS_PER_REQUEST = 10_000
USE_DEFAULT = -1
_TOO_LARGE = f"a request may create {MAX_PARTITIONS_PER_REQUEST} partitions at most"


def check_topic_configs(configs: Mapping[str, str], defaults: LogConfig) -> None:
    """Raise KafkaError INVALID_CONFIG for a topic configuration that is not valid."""
    check_value_sizes(configs, {})
    try:
        LogConfig(configs, base=defaults).validate()
    except UnknownPropertyError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {error.name}") from None
    except PropertyError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


class TopicAdmin:
    """Creation, growth and deletion of topics on the controller.

    `random` chooses topic ids, the first broker of each assignment, and the order of deletion results.

    `applied` returns when this broker's replicas have applied the published changes. The response is sent then, so that
    a client can use a new topic immediately, on this broker at least.

    `spare_descriptors` returns the number of files that this broker may still open; a new partition keeps one open.

    `metadata_wait`, in a cluster: the response is sent when the metadata cache shows the change, or after the request's
    timeout.
    """

    def __init__(
        self,
        controller: Controller,
        configs: BrokerConfigs,
        random: RandomSource,
        applied: Callable[[], Awaitable[None]],
        spare_descriptors: Callable[[], int] = lambda: INT32_MAX,
        metadata_wait: MetadataWait | None = None,
    ) -> None:
        self._controller = controller
        self._applied = applied
        self._capacity = LogCapacity(controller.broker_id, spare_descriptors)
        self._image = controller.image
        self._metadata_wait = metadata_wait
        self._configs = configs
        self._random = random

    # Create

    async def create_topics(
        self, request: CreateTopicsRequest, spend: SpendMutations | None = None
    ) -> CreateTopicsResponse:
        """Create topics; with `validate_only` return only the results that the creation would have.

        As in Kafka a validation counts for the quota of mutations too. Raises KafkaError NOT_CONTROLLER.
        """
        self._controller.check_active()
        counts = Counter(topic.name for topic in request.topics)
        single = [
            topic for topic in request.topics if counts[topic.name] == 1 and topic.name != CLUSTER_METADATA_TOPIC
        ]
        outcomes: Mapping[str, NewTopic | KafkaError]
        if await self._is_too_large(single):
            error = KafkaError(ErrorCode.POLICY_VIOLATION, _TOO_LARGE)
            outcomes = dict.fromkeys([topic.name for topic in single], error)
        else:
            outcomes = await self._create(single, request.validate_only, spend)
            if not request.validate_only:
                outcomes = await self._wait_for_leaders(outcomes, request.timeout_ms)
        results = []
        for topic in single:
            await self._controller.pause()
            results.append(self._creation_result(topic, outcomes[topic.name]))
        for name, count in counts.items():
            if count > 1:
                results.append(_creation_error(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            elif name == CLUSTER_METADATA_TOPIC:
                text = f"{CLUSTER_METADATA_TOPIC} is not a topic that can be created"
                results.append(_creation_error(name, ErrorCode.INVALID_REQUEST, text))
        return CreateTopicsResponse(topics=results)

    async def _wait_for_leaders(
        self, outcomes: Mapping[str, NewTopic | KafkaError], timeout_ms: int
    ) -> Mapping[str, NewTopic | KafkaError]:
        """Wait until the metadata cache has the new topics; return errors for those that it does not have in time."""
        wait = self._metadata_wait
        if wait is None:
            return outcomes
        created = [outcome.topic for outcome in outcomes.values() if isinstance(outcome, NewTopic)]
        if await wait.until_all(wait.has_leaders, created, timeout_ms):
            return outcomes
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the topic was created, but has no leaders yet")
        return {**outcomes, **{topic.name: error for topic in created if not wait.has_leaders(topic)}}

    async def auto_create(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Create topics that a client uses without having created them, or internal topics; return errors by name.

        `names` are distinct. If there are more topics or partitions than a request may create, none is created and the
        result is empty.
        """
        topics: list[CreateTopicsRequestCreatableTopic] = []
        if len(names) <= MAX_PARTITIONS_PER_REQUEST:
            for name in names:
                await self._controller.pause()
                topics.append(self._auto_topic(name))
        if len(topics) < len(names) or await self._is_too_large(topics):
            logger.warning("automatic creation of topics refused count=%d: %s", len(names), _TOO_LARGE)
            return {}
        outcomes = await self._create(topics, validate_only=False)
        errors = {name: outcome if isinstance(outcome, KafkaError) else None for name, outcome in outcomes.items()}
        refused = [error for error in errors.values() if error is not None and error.code == ErrorCode.POLICY_VIOLATION]
        if refused:
            logger.warning(
                "automatic creation of topics failed count=%d; first error: %s", len(refused), refused[0].message
            )
        return errors

    def default_configs(self, name: str) -> dict[str, str]:
        """Return the explicit configuration with which a topic of that name is created automatically."""
        return {entry.name: entry.value or "" for entry in self._auto_topic(name).configs}

    def _auto_topic(self, name: str) -> CreateTopicsRequestCreatableTopic:
        return plan_automatic_topic(name, self._configs, len(self._image.brokers))

    def _setting(self, name: str, fallback: int) -> int:
        return find_setting(self._configs, name, fallback)

    async def _create(
        self,
        topics: Sequence[CreateTopicsRequestCreatableTopic],
        validate_only: bool,
        spend: SpendMutations | None = None,
    ) -> dict[str, NewTopic | KafkaError]:
        """Create topics; return for each its new state, or the error because of which it was not created."""
        outcomes: dict[str, NewTopic | KafkaError] = {}
        with self._capacity.claims() as claim:
            # Each batch is an event, so that other changes can be made in between.
            for batch in split_into_batches(topics, self._count_partitions):
                outcomes |= await self._controller.request(
                    "create topics", partial(self._create_batch, batch, validate_only, claim, spend)
                )
            if not validate_only and any(isinstance(outcome, NewTopic) for outcome in outcomes.values()):
                await self._applied()
        return outcomes

    async def _create_batch(
        self,
        topics: Sequence[CreateTopicsRequestCreatableTopic],
        validate_only: bool,
        claim: Claim,
        spend: SpendMutations | None,
    ) -> dict[str, NewTopic | KafkaError]:
        outcomes: dict[str, NewTopic | KafkaError] = {}
        for topic in topics:
            await self._controller.pause()
            try:
                planned_topic = outcomes[topic.name] = self._plan(topic)
                if spend is not None:
                    spend(len(planned_topic.topic.partitions))
                claim(topic.name, planned_topic.topic.partitions)
            except KafkaError as error:
                outcomes[topic.name] = error
        planned = [outcome for outcome in outcomes.values() if isinstance(outcome, NewTopic)]
        if planned and not validate_only:
            outcomes.update(await self._controller.changes.create(planned))
            for name, outcome in outcomes.items():
                if isinstance(outcome, NewTopic):
                    logger.info("created topic=%s partitions=%d", name, len(outcome.topic.partitions))
        return outcomes

    async def _is_too_large(self, topics: Iterable[CreateTopicsRequestCreatableTopic]) -> bool:
        """Return whether topics have more partitions than a request may create."""
        count = 0
        for topic in topics:
            await self._controller.pause()
            count += self._count_partitions(topic)
            if count > MAX_PARTITIONS_PER_REQUEST:
                return True
        return False

    def _count_partitions(self, topic: CreateTopicsRequestCreatableTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        if topic.num_partitions == USE_DEFAULT:
            return self._setting("num.partitions", 1)
        return max(0, topic.num_partitions)

    def _plan(self, topic: CreateTopicsRequestCreatableTopic) -> NewTopic:
        """Return the topic to create. Raises KafkaError: of several errors, the one that Kafka reports."""
        name = topic.name
        if name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_topic_name(name)
        other = colliding_topic(name, self._image.topics)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )
        configs = _explicit_configs(topic.configs)
        check_topic_configs(configs, self._configs.topic_defaults)
        replicas = self._manual_replicas(topic) if topic.assignments else self._assigned_replicas(topic)
        partitions = self._new_partitions(replicas)
        return NewTopic(TopicMetadata(name, self._new_topic_id(), partitions), configs)

    def _new_partitions(
        self, replicas: Sequence[tuple[int, ...]], leader_epoch: int = 0
    ) -> tuple[PartitionMetadata, ...]:
        """Return the initial states of partitions; those with the same replicas share one object."""
        live, epoch = self._controller.context.staying_brokers, self._controller.epoch
        states = {brokers: new_partition(brokers, live, epoch, leader_epoch) for brokers in set(replicas)}
        return tuple([states[brokers] for brokers in replicas])

    def _new_topic_id(self) -> bytes:
        while True:
            topic_id = random_topic_id(self._random)
            if topic_id not in self._image.topics_by_id:
                return topic_id

    def _manual_replicas(self, topic: CreateTopicsRequestCreatableTopic) -> list[tuple[int, ...]]:
        if topic.replication_factor != USE_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "with a manual assignment the replication factor must be given as -1"
            )
        if topic.num_partitions != USE_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "with a manual assignment the number of partitions must be given as -1"
            )
        replicas: dict[int, tuple[int, ...]] = {}
        factor: int | None = None
        for assignment in topic.assignments:
            if assignment.partition_index in replicas:
                raise invalid_assignment(f"partition {assignment.partition_index} is assigned more than once")
            check_replicas(assignment.broker_ids, self._is_registered, factor)
            factor = len(assignment.broker_ids)
            replicas[assignment.partition_index] = tuple(assignment.broker_ids)
        if sorted(replicas) != list(range(len(replicas))):
            raise invalid_assignment("partitions must be numbered from 0 without a gap")
        return [replicas[index] for index in range(len(replicas))]

    def _is_registered(self, broker_id: int) -> bool:
        return broker_id in self._image.brokers

    def _assigned_replicas(self, topic: CreateTopicsRequestCreatableTopic) -> list[tuple[int, ...]]:
        factor, count = topic.replication_factor, topic.num_partitions
        if factor < USE_DEFAULT or factor == 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be positive, or -1 for the default"
            )
        if count < USE_DEFAULT or count == 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "the number of partitions must be positive, or -1 for the default"
            )
        if factor == USE_DEFAULT:
            factor = self._setting("default.replication.factor", 1)
        if count == USE_DEFAULT:
            count = self._setting("num.partitions", 1)
        brokers = sorted(self._image.brokers)
        if not brokers:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "no broker is registered")
        start = self._random.randrange(len(brokers))
        shift = self._random.randrange(len(brokers))
        racks = find_racks(self._image.brokers.values())
        return assign_replicas(brokers, count, factor, start=start, shift=shift, racks=racks)

    def _creation_result(
        self, topic: CreateTopicsRequestCreatableTopic, outcome: NewTopic | KafkaError
    ) -> CreateTopicsResponseCreatableTopicResult:
        if isinstance(outcome, KafkaError):
            return _creation_error(topic.name, outcome.code, outcome.message)
        partitions = outcome.topic.partitions
        return CreateTopicsResponseCreatableTopicResult(
            name=topic.name,
            topic_id=outcome.topic.topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
            configs=self._configs_in_force(outcome.configs),
        )

    def _configs_in_force(self, explicit: Mapping[str, str]) -> list[CreateTopicsResponseCreatableTopicConfigs]:
        config = LogConfig(explicit, base=self._configs.topic_defaults)
        return [
            CreateTopicsResponseCreatableTopicConfigs(
                name=name,
                value=None if prop.sensitive else config.text(name),
                read_only=False,
                config_source=topic_config_source(prop, explicit, self._configs),
                is_sensitive=prop.sensitive,
            )
            for name, prop in sorted(LogConfig.declared().items())
            if not prop.internal
        ]

    # Grow

    async def create_partitions(
        self, request: CreatePartitionsRequest, spend: SpendMutations | None = None
    ) -> CreatePartitionsResponse:
        """Add partitions to topics. Raises KafkaError NOT_CONTROLLER."""
        with self._capacity.claims() as claim:
            return await self._create_partitions(request, claim, spend)

    async def _create_partitions(
        self, request: CreatePartitionsRequest, claim: Claim, spend: SpendMutations | None
    ) -> CreatePartitionsResponse:
        self._controller.check_active()
        counts = Counter(topic.name for topic in request.topics)
        results = [
            _growth_result(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            for name, count in counts.items()
            if count > 1
        ]
        errors: dict[str, KafkaError | None] = {}
        added = []
        for topic in request.topics:
            await self._controller.pause()
            if counts[topic.name] > 1:
                continue
            errors[topic.name] = None
            try:
                grown = await self._controller.request(
                    "add partitions", partial(self._grow, topic, request.validate_only, claim, spend)
                )
                added.append(grown)
            except KafkaError as raised:
                errors[topic.name] = raised
        await self._applied()
        wait = self._metadata_wait
        if wait is not None and not request.validate_only:
            await wait.until_all(wait.has_leaders, added, request.timeout_ms)
            timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "partitions were added, but have no leaders yet")
            errors |= {topic.name: timed_out for topic in added if not wait.has_leaders(topic)}
        results += [_growth_result(name, error) for name, error in errors.items()]
        return CreatePartitionsResponse(results=results)

    async def _grow(
        self,
        topic: CreatePartitionsRequestCreatePartitionsTopic,
        validate_only: bool,
        claim: Claim,
        spend: SpendMutations | None,
    ) -> TopicMetadata:
        grown, old_count = self._plan_growth(topic)
        if spend is not None:
            spend(len(grown.partitions) - old_count)
        claim(topic.name, grown.partitions[old_count:])
        if not validate_only:
            await self._controller.changes.add_partitions(grown, old_count)
            logger.info("added partitions topic=%s partitions=%d", topic.name, len(grown.partitions))
        return grown

    def _plan_growth(self, topic: CreatePartitionsRequestCreatePartitionsTopic) -> tuple[TopicMetadata, int]:
        current = self._image.topics.get(topic.name)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        old_count = len(current.partitions)
        if topic.count == old_count:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {old_count} partition(s).")
        if topic.count < old_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name} already has {old_count} partitions; the number can be increased, not set to "
                f"{topic.count}",
            )
        if is_internal(topic.name):
            # The coordinator's partition is the key's hash modulo the count: with another count the state is not found.
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{topic.name} keeps its {old_count} partitions: with another number of partitions its committed "
                "offsets or transactions would not be found",
            )
        if any(map(is_reassigning, current.partitions)):
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"A partition reassignment is in progress for the topic '{topic.name}'.",
            )
        added = topic.count - old_count
        factor = len(current.partitions[0].replicas)
        if topic.assignments is not None:
            if len(topic.assignments) != added:
                raise invalid_assignment(f"{added} partitions are to be added, {len(topic.assignments)} are assigned")
            replicas = [tuple(assignment.broker_ids) for assignment in topic.assignments]
            for brokers in replicas:
                check_replicas(brokers, self._is_registered, factor)
        else:
            if added > MAX_PARTITIONS_PER_REQUEST:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, _TOO_LARGE)
            replicas = self._further_replicas(current, added, factor)
        # The new partitions of an adopted topic or a restored store may have existed before, with leader epochs below
        # those of the current partitions.
        least_epoch = min(partition.leader_epoch for partition in current.partitions)
        partitions = self._new_partitions(replicas, least_epoch)
        return current._replace(partitions=current.partitions + partitions), old_count

    def _further_replicas(self, topic: TopicMetadata, added: int, factor: int) -> list[tuple[int, ...]]:
        brokers = sorted(self._image.brokers)
        # The first partition's leader may not be registered: Kafka continues with the broker after it.
        start = bisect_left(brokers, topic.partitions[0].replicas[0]) % max(1, len(brokers))
        return assign_replicas(
            brokers,
            added,
            factor,
            start=start,
            shift=start,
            first_partition=len(topic.partitions),
            racks=find_racks(self._image.brokers.values()),
        )

    # Delete

    async def delete_topics(
        self, request: DeleteTopicsRequest, version: int, spend: SpendMutations | None = None
    ) -> DeleteTopicsResponse:
        """Delete topics by name or id; the results are in random order, as Kafka's are.

        Raises KafkaError NOT_CONTROLLER, TOPIC_DELETION_DISABLED (INVALID_REQUEST before version 3).
        """
        self._controller.check_active()
        if not self._is_deletion_enabled():
            code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            raise KafkaError(code, "topic deletion is disabled (delete.topic.enable)")
        results: list[DeleteTopicsResponseDeletableTopicResult] = []
        found = await self._find_requested(request, results)
        if spend is not None:
            found = _spend_deletions(found, spend, results)
        errors = await self._controller.delete_topics([topic.name for topic in found])
        await self._applied()
        wait = self._metadata_wait
        if wait is not None:
            deleted = [topic for topic in found if topic.name not in errors]
            if not await wait.until_all(wait.is_deleted, deleted, request.timeout_ms):
                timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the deletion is not complete")
                errors |= {topic.name: timed_out for topic in deleted if not wait.is_deleted(topic)}
        for topic in found:
            error = errors.get(topic.name)
            if error is None:
                logger.info("deleted topic=%s", topic.name)
                results.append(_deletion_result(topic.name, topic.topic_id, ErrorCode.NONE))
            else:
                results.append(_deletion_result(topic.name, topic.topic_id, error.code, error.message))
        shuffled: list[Any] = results
        self._random.shuffle(shuffled)
        return DeleteTopicsResponse(responses=results)

    async def _find_requested(
        self, request: DeleteTopicsRequest, results: list[DeleteTopicsResponseDeletableTopicResult]
    ) -> list[TopicMetadata]:
        """Return the topics to delete; add errors for the others to `results`."""
        names, ids = self._collect_requested(request, results)
        found: dict[bytes, TopicMetadata] = {}
        for topic_id in ids:
            await self._controller.pause()
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None:
                results.append(_deletion_result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                found[topic_id] = topic
        twice: set[bytes] = set()
        for name in names:
            await self._controller.pause()
            topic = self._image.topics.get(name)
            if topic is None:
                results.append(_deletion_result(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            elif topic.topic_id in found or topic.topic_id in twice:
                twice.add(topic.topic_id)
                found.pop(topic.topic_id, None)
                text = "The request contains both the name and the id of the topic."
                results.append(_deletion_result(name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
            else:
                found[topic.topic_id] = topic
        for topic in list(found.values()):
            present = self._image.topics.get(topic.name)
            if present is None or present.topic_id != topic.topic_id:
                # Another request has deleted the topic during a pause; there may be a new topic of that name.
                del found[topic.topic_id]
                results.append(_deletion_result(topic.name, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return list(found.values())

    def _is_deletion_enabled(self) -> bool:
        try:
            return bool(self._configs.current.value("delete.topic.enable"))
        except KeyError:
            return True

    @staticmethod
    def _collect_requested(
        request: DeleteTopicsRequest, results: list[DeleteTopicsResponseDeletableTopicResult]
    ) -> tuple[list[str], list[bytes]]:
        """Return the names and the ids that occur once in the request; add errors for the others to `results`."""
        names = Counter(request.topic_names)
        ids: Counter[bytes] = Counter()
        for topic in request.topics:
            if topic.name is not None and topic.topic_id != ZERO_UUID:
                text = "A topic must be given by its name or by its id, not by both."
                results.append(_deletion_result(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
            elif topic.name is not None:
                names[topic.name] += 1
            elif topic.topic_id != ZERO_UUID:
                ids[topic.topic_id] += 1
            else:
                text = "Neither a name nor an id is given."
                results.append(_deletion_result(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, text))
        for name, count in names.items():
            if count > 1:
                text = "Duplicate topic name."
                results.append(_deletion_result(name, ZERO_UUID, ErrorCode.INVALID_REQUEST, text))
        for topic_id, count in ids.items():
            if count > 1:
                results.append(
                    _deletion_result(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
                )
        return [n for n, count in names.items() if count == 1], [i for i, count in ids.items() if count == 1]


def _spend_deletions(
    topics: Iterable[TopicMetadata],
    spend: SpendMutations,
    results: list[DeleteTopicsResponseDeletableTopicResult],
) -> list[TopicMetadata]:
    """Return the topics that the quota of mutations permits to delete; add errors for the others to `results`."""
    permitted = []
    for topic in topics:
        try:
            spend(len(topic.partitions))
        except KafkaError as error:
            results.append(_deletion_result(topic.name, topic.topic_id, error.code, error.message))
        else:
            permitted.append(topic)
    return permitted


def _explicit_configs(entries: Iterable[CreateTopicsRequestCreatableTopicConfig]) -> dict[str, str]:
    configs: dict[str, str] = {}
    nulls = []
    for entry in entries:
        if entry.value is None:
            nulls.append(entry.name)
        else:
            configs[entry.name] = entry.value
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {', '.join(nulls)}"
        )
    return configs


def _creation_error(
    name: str, code: ErrorCode, message: str | None
) -> CreateTopicsResponseCreatableTopicResult:
    return CreateTopicsResponseCreatableTopicResult(
        name=name, error_code=code, error_message=message, configs=[]
    )


def _growth_result(
    name: str, error: KafkaError | None
) -> CreatePartitionsResponseCreatePartitionsTopicResult:
    code, text = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    return CreatePartitionsResponseCreatePartitionsTopicResult(name=name, error_code=code, error_message=text)


def _deletion_result(
    name: str | None, topic_id: bytes, code: ErrorCode, text: str | None = None
) -> DeleteTopicsResponseDeletableTopicResult:
    return DeleteTopicsResponseDeletableTopicResult(
        name=name, topic_id=topic_id, error_code=code, error_message=text
    )
