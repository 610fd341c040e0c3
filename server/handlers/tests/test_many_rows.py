"""Requests for many topics, partitions or groups: handled in bounded steps, with the result of a single step."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.groups.settings import GroupSettings
from odradek.log.tests.managers import append
from odradek.protocol import codec, encoder_source
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import delete_records as dr
from odradek.protocol.messages import describe_configs as dc
from odradek.protocol.messages import describe_log_dirs as dld
from odradek.protocol.messages import describe_topic_partitions as dtp
from odradek.protocol.messages import find_coordinator as fc
from odradek.protocol.messages import list_offsets as lo
from odradek.protocol.messages import offset_commit as oc
from odradek.protocol.messages import offset_delete as od
from odradek.protocol.messages import offset_fetch as of
from odradek.protocol.messages import offset_for_leader_epoch as epochs
from odradek.protocol.schema import Message
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC
from odradek.replication.tests.support import Cluster
from odradek.server.coordinators.groups import GroupCoordinatorRuntime
from odradek.server.handlers.coordinators import find_coordinator, group_offsets
from odradek.server.handlers.records import delete_records, list_offsets
from odradek.server.handlers.topics import configs, log_dirs, topic_partitions
from odradek.server.request import RequestContext
from odradek.server.tests.background import background
from odradek.server.work.record_work import RecordWork
from odradek.server.work.slices import ROWS_PER_STEP

PARTITIONS = 300


class World:
    """A broker with topics t and u; each step of work takes a slice of its own."""

    def __init__(self):
        self.clock = Clock()
        shared = background(self.clock, slice_s=0)
        self.slices = shared["slices"]
        self.record_work = RecordWork(**shared)
        self.reactor = self.clock
        self.now_ms = lambda: 0
        self.first_metadata = None
        cluster = self.cluster = Cluster()
        self.metadata, self.replicas = cluster.image, cluster.replicas
        self.config_describer = cluster.describer
        self.logs = cluster.replicas._logs
        self.config = SimpleNamespace(max_request_partition_size_limit=2000)
        create(cluster, new("t", PARTITIONS), new("u", 3), new(GROUP_METADATA_TOPIC, 1))
        self.groups = GroupCoordinatorRuntime(
            GroupSettings(), reactor=self.clock, now_ms=lambda: 0, monotonic_ms=lambda: 0,
            random_uuid=lambda: "id", partition_count=lambda: 1, load_buffer_bytes=1 << 20, **shared,
        )  # fmt: skip
        self.groups.lead(self.replicas.get(GROUP_METADATA_TOPIC, 0))
        self.iterate()

    def iterate(self):
        count = 0
        while self.clock.calls and self.clock.calls[0].getTime() <= self.clock.seconds():
            call = self.clock.calls.pop(0)
            call.func(*call.args)
            count += 1
        return count

    def ask(self, handler, request, version=None):
        """Call a handler. Return the number of slices, and the response after encoding and decoding."""
        version = request.last_version if version is None else version
        context = RequestContext("host", "PLAINTEXT")
        context.api_version = version
        outcome = handler(self, context, request)
        answers: list[Any] = []
        if isinstance(outcome, Deferred):
            outcome.addBoth(answers.append)
        else:
            answers.append(outcome)
        steps = self.iterate() + 1
        response: Message = answers.pop()
        assert answers == []
        out = bytearray()
        encoding = codec.step_encoder(type(response), version)(response, out, [])
        steps += sum(1 for _ in encoding)
        return steps, codec.decode(type(response), version, bytes(out))


@pytest.fixture(scope="module")
def world():
    return World()


LEAST = PARTITIONS // ROWS_PER_STEP


def test_offset_for_leader_epoch(world):
    asked = [
        epochs.OffsetForLeaderEpochRequestOffsetForLeaderPartition(partition=n, leader_epoch=0)
        for n in range(PARTITIONS + 1)
    ]
    topics = [epochs.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic="t", partitions=asked)]
    steps, response = world.ask(
        list_offsets.offset_for_leader_epoch, epochs.OffsetForLeaderEpochRequest(topics=topics)
    )
    assert steps > LEAST
    found = response.topics[0].partitions
    assert [row.partition for row in found] == list(range(PARTITIONS + 1))
    assert [row.error_code for row in found[-2:]] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def list_latest(*topics):
    return lo.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            lo.ListOffsetsRequestListOffsetsTopic(
                name=name,
                partitions=[
                    lo.ListOffsetsRequestListOffsetsPartition(
                        partition_index=index, current_leader_epoch=-1, timestamp=-1
                    )
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ],
    )


def test_list_offsets(world):
    steps, response = world.ask(list_offsets.list_offsets, list_latest(("t", range(PARTITIONS + 1))), 7)
    assert steps > LEAST
    rows = response.topics[0].partitions
    assert [row.partition_index for row in rows] == list(range(PARTITIONS + 1))
    assert [row.error_code for row in rows[-2:]] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_list_offsets_of_one_partition_many_times(world):
    count = 50 * ROWS_PER_STEP
    # A partition is repeated within a topic, and between two entries of one topic.
    asked = list_latest(("t", [0, *[1] * count, 2]), ("u", [0]), ("t", [2]))
    steps, response = world.ask(list_offsets.list_offsets, asked, 7)
    # The first pass finds repeated partitions, the second answers.
    assert steps > 2 * count // ROWS_PER_STEP
    refused = ErrorCode.INVALID_REQUEST
    assert [
        (topic.name, [(row.partition_index, row.error_code) for row in topic.partitions]) for topic in response.topics
    ] == [("t", [(0, 0), (1, refused), (2, refused)]), ("u", [(0, 0)]), ("t", [(2, refused)])]


def test_the_counts_of_list_offsets_are_freed_in_steps():
    asked = list_latest(("t", range(20 * ROWS_PER_STEP)))
    assert sum(1 for _ in list_offsets._find_repeated(asked)) >= 39


def test_delete_records(world):
    append(world.replicas.get("u", 0).log, *[b"x"] * 10)
    asked = [
        dr.DeleteRecordsRequestDeleteRecordsPartition(partition_index=n % 4, offset=n // 400) for n in range(2000)
    ]
    topics = [dr.DeleteRecordsRequestDeleteRecordsTopic(name=name, partitions=asked) for name in ("u", "u", "none")]
    steps, response = world.ask(
        delete_records.delete_records, dr.DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    )
    assert steps > 6000 // ROWS_PER_STEP
    # The last offset of a repeated partition counts, as in Apache Kafka.
    found = {
        topic.name: [(row.partition_index, row.error_code, row.low_watermark) for row in topic.partitions]
        for topic in response.topics
    }
    out_of_range, unknown = ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {
        "u": [(0, 0, 4), (1, out_of_range, -1), (2, out_of_range, -1), (3, unknown, -1)],
        "none": [(n, unknown, -1) for n in range(4)],
    }


def test_delete_records_of_many_topics(world):
    """Topics without partitions are left out of the response, as in Apache Kafka."""
    row = dr.DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=0)
    names = [f"none-{number}" for number in range(20 * ROWS_PER_STEP)]
    topics = [
        dr.DeleteRecordsRequestDeleteRecordsTopic(name=name, partitions=[row] if number % 2 else [])
        for number, name in enumerate([*names, *names])
    ]
    steps, response = world.ask(
        delete_records.delete_records, dr.DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    )
    assert steps > len(names) // 2
    unknown = [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    found = [(one.name, [(row.partition_index, row.error_code) for row in one.partitions]) for one in response.topics]
    assert found == [(name, unknown) for name in names[1::2]]


def test_the_offsets_of_delete_records_are_freed_in_steps(world):
    released = []

    class Offset(int):
        def __del__(self):
            released.append(int(self))

    count = 4 * ROWS_PER_STEP
    asked = [dr.DeleteRecordsRequestDeleteRecordsPartition(partition_index=n, offset=Offset(n)) for n in range(count)]
    topics = [dr.DeleteRecordsRequestDeleteRecordsTopic(name="none", partitions=asked)]

    def find(topic, index):
        for row in asked:
            row.offset = 0
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    services = SimpleNamespace(replicas=SimpleNamespace(get=find), reactor=world.clock)
    request = dr.DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    counts = [len(released) for _ in delete_records._move_log_starts(services, request)]
    counts.append(len(released))
    assert counts[-1] == count
    assert max(after - before for before, after in pairwise(counts)) <= ROWS_PER_STEP


def test_find_coordinator(world):
    keys = [f"group-{n}" for n in range(1000)]
    request = fc.FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    steps, response = world.ask(find_coordinator.find_coordinator, request)
    assert steps > 1000
    assert [row.key for row in response.coordinators] == keys


def test_describe_configs():
    world = World()
    names = [f"c-{n}" for n in range(10)]
    create(world.cluster, *(new(name, 1) for name in names))
    resources = [
        dc.DescribeConfigsRequestDescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        for name in names
    ] + [
        dc.DescribeConfigsRequestDescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    ]
    request = dc.DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    steps, response = world.ask(configs.describe_configs, request)
    entries = sum(len(result.configs) for result in response.results)
    assert entries > 300
    assert steps > entries // encoder_source.STEP_ELEMENTS


def test_describe_log_dirs(world):
    steps, response = world.ask(log_dirs.describe_log_dirs, dld.DescribeLogDirsRequest(topics=None))
    assert steps > LEAST
    assert len([row for topic in response.results[0].topics for row in topic.partitions]) == PARTITIONS + 4
    asked = [dld.DescribeLogDirsRequestDescribableLogDirTopic(topic="t", partitions=list(range(5, 10_000)))]
    steps, response = world.ask(log_dirs.describe_log_dirs, dld.DescribeLogDirsRequest(topics=asked))
    assert steps > 10_000 // 250
    assert len(response.results[0].topics[0].partitions) == PARTITIONS - 5


def test_describe_topic_partitions(world):
    names = [f"none-{n:05}" for n in range(5000, 0, -1)]
    asked = [dtp.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in ["u", *names, "t"]]
    request = dtp.DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=200)
    steps, response = world.ask(topic_partitions.describe_topic_partitions, request)
    assert steps > 5000 // ROWS_PER_STEP
    assert [topic.name for topic in response.topics] == [*reversed(names), "t"]
    assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("t", 200)
    request.cursor = dtp.DescribeTopicPartitionsRequestCursor(topic_name="t", partition_index=200)
    _, response = world.ask(topic_partitions.describe_topic_partitions, request)
    assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("t", 100), ("u", 3)]
    assert response.next_cursor is None


class TestOffsetFetch:
    @pytest.fixture(autouse=True)
    def committed(self, world):
        partitions = [
            oc.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="m")
            for n in range(0, PARTITIONS, 2)
        ]
        few = [oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=7)]
        topics = [
            oc.OffsetCommitRequestTopic(name="t", partitions=partitions),
            oc.OffsetCommitRequestTopic(name="u", partitions=few),
        ]
        request = oc.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
        _, response = world.ask(group_offsets.offset_commit, request, 9)
        assert {row.error_code for topic in response.topics for row in topic.partitions} == {0}

    @pytest.mark.parametrize("version", [2, 7, 8, 9])
    def test_all(self, world, version):
        request = of.OffsetFetchRequest(group_id="g", topics=None)
        if version >= 8:
            request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id="g", topics=None)] * 2)
        steps, response = world.ask(group_offsets.offset_fetch, request, version)
        assert steps > PARTITIONS // 2 // ROWS_PER_STEP
        found = [group.topics for group in response.groups] if version >= 8 else [response.topics]
        assert len(found) == (2 if version >= 8 else 1)
        for topics in found:
            assert [
                (topic.name, [(row.partition_index, row.committed_offset) for row in topic.partitions])
                for topic in topics
            ] == [("t", [(n, n) for n in range(0, PARTITIONS, 2)]), ("u", [(1, 7)])]

    @pytest.mark.parametrize("version", [1, 5, 9])
    def test_named(self, world, version):
        wanted = {"none": [0, 1], "t": list(range(PARTITIONS)), "u": [], "v": [5]}
        if version >= 8:
            topics = [of.OffsetFetchRequestTopics(name=name, partition_indexes=n) for name, n in wanted.items()]
            request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id="g", topics=topics)])
        else:
            named = [of.OffsetFetchRequestTopic(name=name, partition_indexes=n) for name, n in wanted.items()]
            request = of.OffsetFetchRequest(group_id="g", topics=named)
        steps, response = world.ask(group_offsets.offset_fetch, request, version)
        assert steps > PARTITIONS // ROWS_PER_STEP
        topics = response.groups[0].topics if version >= 8 else response.topics
        assert {topic.name: [row.partition_index for row in topic.partitions] for topic in topics} == wanted
        assert [row.committed_offset for row in topics[1].partitions] == [
            -1 if n % 2 else n for n in range(PARTITIONS)
        ]

    def test_at_one_point_in_time(self, world, monkeypatch):
        """A transaction's offsets are visible together or not at all; a long fetch takes several steps."""
        monkeypatch.setattr(group_offsets, "SMALL_REQUEST_STEPS", 0)
        context = RequestContext("host", "PLAINTEXT")
        context.api_version = 9
        request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id="g", topics=None)])
        answers: list[Any] = []
        group_offsets.offset_fetch(world, context, request).addCallback(answers.append)
        assert not answers
        items = [oc.OffsetCommitRequestPartition(partition_index=n, committed_offset=1000) for n in range(PARTITIONS)]
        commit = oc.OffsetCommitRequest(
            group_id="g", topics=[oc.OffsetCommitRequestTopic(name="t", partitions=items)]
        )
        group_offsets.offset_commit(world, context, commit)
        world.iterate()
        [group] = answers[0].groups
        assert [row.committed_offset for row in group.topics[0].partitions] == list(range(0, PARTITIONS, 2))
        delete = [od.OffsetDeleteRequestPartition(partition_index=n) for n in range(1, PARTITIONS, 2)]
        topics = [od.OffsetDeleteRequestTopic(name="t", partitions=delete)]
        world.ask(group_offsets.offset_delete, od.OffsetDeleteRequest(group_id="g", topics=topics), 0)

    def test_none(self, world):
        groups = [of.OffsetFetchRequestGroup(group_id="other", topics=topics) for topics in (None, [])]
        _, response = world.ask(group_offsets.offset_fetch, of.OffsetFetchRequest(groups=groups), 9)
        assert [(group.group_id, group.error_code, group.topics) for group in response.groups] == [("other", 0, [])] * 2
