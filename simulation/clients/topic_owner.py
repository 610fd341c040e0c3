"""The only client of a topic: creates the topic, uses it, deletes it and recreates it under the same name.

It writes, reads, deletes records, commits offsets, adds partitions and changes the configuration, one operation at a
time, so that its history determines the contents of the topic.

A broker of a cluster that is separated from the others may return an older state: it may not have a topic yet, or still
have a deleted one, and may lack records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients import topic_admin
from odradek.simulation.clients.link import GROUP, RETRIABLE, GaveUp, Link, Versions
from odradek.simulation.clients.producers.batches import batch_of, draw_packing
from odradek.simulation.clients.producers.produce import NEVER_EXPECTED, is_unwritten
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Guarantee,
    History,
    Isolation,
    Moment,
    Outcome,
    Partition,
    Poll,
)
from odradek.simulation.reads.log_reader import NotYetError, read_log
from odradek.simulation.topic_lives import TopicLife

_MOST_PARTITIONS: Final = 3
_INTERNAL_COUNT: Final = 7
_RETRY_LIMIT_S: Final = 40.0
"""Limit of retries after the end of the faults."""
_LATE_S: Final = 3.0
"""Longer than a request on a broken connection may be in transit."""
_NEWEST_OFFSET_FETCH: Final = {OffsetFetchRequest.api_key: (10, 10)}
"""The version with topic ids: a coordinator of a cluster may not have the topic, but another one of its name."""

_RETRIABLE_IN_CLUSTER: Final = {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.REASSIGNMENT_IN_PROGRESS}
"""Too few brokers run for a new partition, or the operator moves replicas."""


class _Retries:
    """Retries without limit while there are faults, then for `_RETRY_LIMIT_S`."""

    def __init__(self, world: World, link: Link, history: History) -> None:
        self.problem = "no response"
        self._world = world
        self._link = link
        self._history = history
        self._healthy_since_s: float | None = None
        self._attempts = 0

    async def wait(self) -> None:
        """Wait before the next attempt. Raises GaveUp after the limit, and records the problem in the history."""
        await self._link.back_off(self._attempts)
        self._attempts += 1
        now_s = self._world.clock.seconds()
        if self._healthy_since_s is None and self._world.is_ending:
            self._healthy_since_s = now_s
        if self._healthy_since_s is not None and now_s > self._healthy_since_s + _RETRY_LIMIT_S:
            self._history.note_odd(self._link.name, self.problem)
            raise GaveUp(self._link.name)


class TopicOwner:
    """The owner of a topic, which is always created with `configs`, and with one of the numbers of replicas."""

    def __init__(
        self,
        world: World,
        history: History,
        topic: str,
        random: Random,
        configs: dict[str, str],
        retention_ms: int,
        replication_factors: Sequence[int] = (1,),
    ) -> None:
        self.name = f"owner-{topic}"
        self._world = world
        self._history = history
        self._topics = history.topics
        self._topic = topic
        self._random = random
        self._configs = configs
        self._retention_ms = retention_ms
        self._replication_factors = replication_factors
        self._in_cluster = history.settings.is_cluster
        self._retriable = RETRIABLE | (_RETRIABLE_IN_CLUSTER if self._in_cluster else set())
        self._group = f"{self.name}-group"
        versions = topic_admin.VERSIONS | (_NEWEST_OFFSET_FETCH if self._in_cluster else {})
        self._link = Link(world, history, self.name, random, Versions(random, versions))
        self._values = Values(world, random, self.name, times="fresh")
        self._packing = draw_packing(random)
        self._creations_in_doubt = 0
        self._committed = 0
        self._readings = 0
        self._starts: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._steps: list[Callable[[TopicLife], Awaitable[None]]] = random.choices(
            (
                self._write, self._write, self._write, self._read, self._delete_records, self._commit,
                self._fetch_offset, self._grow, self._alter,
            ),
            k=24,
        )  # fmt: skip
        self._grows_internal_topics = random.random() < 0.1

    async def run(self) -> None:
        """Work until the world ends; then delete the topic and, in most runs, create and use it once more."""
        random = self._random
        try:
            while not self._world.is_ending:
                await self._live(await self._create(), random.choice((2, 6, 15)))
            for life in self._topics.living():
                if life.topic == self._topic:
                    await self._delete(life)
            if random.random() < 0.7:
                await self._live(await self._create(), 4, to_the_end=True)
        except GaveUp:
            pass
        self._link.close()

    async def _live(self, life: TopicLife, steps: int, *, to_the_end: bool = False) -> None:
        """Use a topic, and delete it unless the world ends before."""
        for _ in range(steps):
            if self._world.is_ending and not to_the_end:
                return
            await self._attempt(self._random.choice(self._steps), life)
            await self._link.nap(self._random.choice((0.0, 0.01, 0.1)))
        if self._grows_internal_topics:
            await self._attempt(self._grow_internal, life)
        if to_the_end or self._world.is_ending:
            return
        if self._random.random() < 0.6:
            await self._attempt(self._read, life)
        await self._delete(life)

    async def _attempt(self, step: Callable[[TopicLife], Awaitable[None]], life: TopicLife) -> None:
        try:
            await step(life)
        except ConnectionLost:
            await self._link.back_off(1)

    # The topic

    async def _create(self) -> TopicLife:
        """Create the topic, with retries. Raises GaveUp."""
        count, factors = self._random.randint(1, 2), self._replication_factors
        factor = self._random.choice(factors) if len(factors) > 1 else factors[0]
        retries = _Retries(self._world, self._link, self._history)
        while True:
            try:
                row = await topic_admin.create_topic(self._link, self._topic, count, self._configs, factor)
                code = ErrorCode(row.error_code)
                retries.problem = f"could not create {self._topic}: {code.name} {row.error_message}"
                if code == ErrorCode.NONE:
                    return self._begin(row.topic_id, count)
                if code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    found = await self._find()
                    if found is not None:
                        return found
                elif code in RETRIABLE:
                    self._creations_in_doubt += 1
                elif code not in self._retriable:
                    self._history.note_odd(self.name, retries.problem)
            except ConnectionLost:
                self._creations_in_doubt += 1
            await retries.wait()

    def _begin(self, topic_id: bytes, count: int) -> TopicLife:
        life = self._topics.begin(self.name, self._topic, topic_id, count)
        self._starts = {}
        self._ends = {}
        return life

    async def _find(self) -> TopicLife | None:
        """Return the existing topic, if a request without a response may have created it.

        Any other topic is reported and deleted. Raises ConnectionLost.
        """
        requested_at = self._history.moment()
        row = await topic_admin.describe_topic(self._link, self._topic)
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._topics.listed(self.name, requested_at, self._topic, None)
            return None
        if row.error_code != ErrorCode.NONE:
            return None
        is_known = any(life.topic_id == row.topic_id for life in self._topics.lives)
        if self._creations_in_doubt and not is_known:
            self._creations_in_doubt -= 1
            return self._begin(row.topic_id, len(row.partitions))
        self._topics.listed(self.name, requested_at, self._topic, row.topic_id)
        await topic_admin.delete_topic(self._link, row.topic_id)
        return None

    async def _delete(self, life: TopicLife) -> None:
        """Delete the topic, with retries. Raises GaveUp."""
        # The loss of the metadata store also loses topics that have no data on disk yet.
        is_doubtful = any(loss.order > life.created.order for loss in self._history.store_losses)
        retries = _Retries(self._world, self._link, self._history)
        while True:
            self._topics.request_deletion(self.name, life)
            try:
                code = await topic_admin.delete_topic(self._link, life.topic_id)
                retries.problem = f"could not delete {life.name}: {code.name}"
                is_unknown = code == ErrorCode.UNKNOWN_TOPIC_ID
                if code == ErrorCode.NONE or (is_unknown and is_doubtful and not self._in_cluster):
                    self._topics.end(self.name, life)
                if code == ErrorCode.NONE or (is_unknown and is_doubtful):
                    return
                if code not in RETRIABLE or (is_unknown and not self._in_cluster):
                    self._history.note_odd(self.name, retries.problem)
            except ConnectionLost:
                pass
            is_doubtful = True
            await retries.wait()

    async def _grow(self, life: TopicLife) -> None:
        if life.partitions >= _MOST_PARTITIONS:
            return
        code = await topic_admin.grow_topic(self._link, self._topic, life.partitions + 1)
        if code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS):
            # INVALID_PARTITIONS if an earlier attempt without a response has added the partition.
            life.partitions += 1
        elif code not in self._retriable:
            self._history.note_odd(self.name, f"CreatePartitions: {code.name}")

    async def _grow_internal(self, life: TopicLife) -> None:
        topic = self._random.choice((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        code = await topic_admin.grow_topic(self._link, topic, _INTERNAL_COUNT)
        if code == ErrorCode.NONE:
            self._history.note_odd(self.name, f"partitions could be added to {topic}")

    async def _alter(self, life: TopicLife) -> None:
        configs = {"retention.ms": str(self._random.choice((-1, self._retention_ms)))}
        if self._random.random() < 0.5:
            configs["segment.bytes"] = str(self._random.choice((1_048_576, 2_097_152)))
        code = await topic_admin.alter_topic(self._link, self._topic, configs)
        if code not in RETRIABLE and code != ErrorCode.NONE:
            self._history.note_odd(self.name, f"IncrementalAlterConfigs: {code.name}")

    # Its records

    def _some_partition(self, life: TopicLife) -> Partition:
        return life.partition(self._random.randrange(life.partitions))

    async def _write(self, life: TopicLife) -> None:
        """Write one batch, with up to three attempts."""
        history, partition = self._history, self._some_partition(life)
        life.readings.clear()
        records = self._values.records()
        send = history.begin_send(self.name, partition, self.name, Guarantee.PLAIN, records)
        data = ProduceRequestPartitionProduceData(index=partition[1], records=batch_of(records, self._packing))
        topic_data = ProduceRequestTopicProduceData(name=self._topic, topic_id=life.topic_id, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1500, topic_data=[topic_data])
        is_doubtful = False
        error = ""
        for attempt in range(3):
            try:
                await self._link.connection()
                history.attempt_send(send, str(self._packing))
                answer = await self._link.request(request)
            except ConnectionLost:
                is_doubtful = is_doubtful or bool(send.attempts)
                await self._link.back_off(attempt)
                continue
            row = answer.responses[0].partition_responses[0]
            code = ErrorCode(row.error_code)
            if code == ErrorCode.NONE:
                history.end_send(send, Outcome.OK, row.base_offset, row.log_append_time_ms)
                self._ends[partition] = row.base_offset + len(records)
                return
            error = code.name
            if code in NEVER_EXPECTED:
                history.note_odd(self.name, f"produce to {partition}: {error}")
            is_doubtful |= not is_unwritten(history, code)
            if code not in RETRIABLE:
                break
            await self._link.back_off(attempt)
        history.end_send(send, Outcome.UNKNOWN if is_doubtful else Outcome.FAILED, error=error)

    async def _read(self, life: TopicLife) -> None:
        """Read all partitions from start to end."""
        for index in range(life.partitions):
            for isolation in Isolation:
                connection = await self._link.connection()
                requested_at = self._history.moment()
                try:
                    log = await read_log(
                        connection, self.name, (self._topic, index), isolation, is_last_try=False
                    )
                except NotYetError:
                    return
                except ValueError as error:
                    self._history.note_odd(self.name, f"cannot read {life.name}-{index}: {error}")
                    return
                self._readings += 1
                if not self._in_cluster or log.end_offset >= self._ends.get(life.partition(index), 0):
                    life.readings[life.partition(index), isolation] = log
                self._history.record_poll(self._poll_of(requested_at, life.partition(index), isolation, log))

    def _poll_of(self, requested_at: Moment, partition: Partition, isolation: Isolation, log: Any) -> Poll:
        return Poll(
            self.name,
            requested_at,
            partition,
            isolation,
            f"{self.name}/{self._readings}",
            log.start_offset,
            log.end_offset,
            log.records,
            log.high_watermark,
            log.high_watermark,
        )

    async def _delete_records(self, life: TopicLife) -> None:
        partition = self._some_partition(life)
        start, end = self._starts.get(partition, 0), self._ends.get(partition, 0)
        if start >= end:
            return
        life.readings.clear()
        offset = self._random.choice((end, self._random.randint(start, end)))
        deletion = self._topics.begin_deletion(self.name, partition, offset)
        self._starts[partition] = offset
        try:
            row = await topic_admin.delete_records(self._link, (self._topic, partition[1]), offset)
        except ConnectionLost:
            # The request names the topic, and must not arrive so late that it affects the next topic of that name.
            await self._link.nap(_LATE_S)
            raise
        code = ErrorCode(row.error_code)
        # As in Kafka, the high watermark of a new leader may be below that of its predecessor for a while.
        is_behind = self._in_cluster and code == ErrorCode.OFFSET_OUT_OF_RANGE
        if code == ErrorCode.NONE:
            self._topics.end_deletion(deletion, row.low_watermark)
        elif code not in RETRIABLE and not is_behind:
            self._history.note_odd(self.name, f"DeleteRecords of {life.name} before {offset}: {code.name}")

    # The offsets of a group

    async def _commit(self, life: TopicLife) -> None:
        await self._link.find_coordinator(self._group, GROUP)
        partition = self._some_partition(life)
        self._committed += 1
        commit = self._history.begin_commit(self.name, self._group, partition, self._committed)
        row = OffsetCommitRequestPartition(
            partition_index=partition[1], committed_offset=self._committed, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(name=self._topic, topic_id=life.topic_id, partitions=[row])
        try:
            answer = await self._link.request(OffsetCommitRequest(group_id=self._group, topics=[topic]))
        except ConnectionLost:
            self._history.lose_commit(commit)
            self._history.end_commit(commit, Outcome.UNKNOWN)
            raise
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        outcome = Outcome.OK if code == ErrorCode.NONE else Outcome.UNKNOWN
        if code in NEVER_EXPECTED:
            self._history.note_odd(self.name, f"OffsetCommit of {life.name}: {code.name}")
        self._history.end_commit(commit, outcome, error=code.name)

    async def _fetch_offset(self, life: TopicLife) -> None:
        await self._link.find_coordinator(self._group, GROUP)
        partition = self._some_partition(life)
        topic = OffsetFetchRequestTopics(name=self._topic, topic_id=life.topic_id, partition_indexes=[partition[1]])
        group = OffsetFetchRequestGroup(group_id=self._group, topics=[topic])
        await self._link.connection()
        requested_at = self._history.moment()
        answer = (await self._link.request(OffsetFetchRequest(groups=[group], require_stable=True))).groups[0]
        row = answer.topics[0].partitions[0] if answer.topics else None
        if answer.error_code == ErrorCode.NONE and row is not None and row.error_code == ErrorCode.NONE:
            history = self._history
            history.record_fetch(self.name, requested_at, self._group, partition, row.committed_offset, stable=True)
