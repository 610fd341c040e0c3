"""OffsetCommit, OffsetFetch and OffsetDelete of every version, between the wire and a shard."""

from typing import Any

import pytest

from odradek.coordinator.groups import offset_wire as requests
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.protocol.types import ZERO_UUID

IDS = {"open": b"o" * 16, "secret": b"s" * 16}


class Topics:
    """Two topics of two partitions each."""

    def topic_id(self, name: str) -> bytes:
        return IDS.get(name, ZERO_UUID)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, known in IDS.items() if known == topic_id), None)

    def partition_count(self, name: str) -> int:
        return 2 if name in IDS else 0


TOPICS = Topics()


def is_authorized(name: str) -> bool:
    return name != "secret"


def commit_request(*topics: tuple[dict[str, Any], list[int]]) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        member_id="m",
        topics=[
            OffsetCommitRequestTopic(
                **name, partitions=[OffsetCommitRequestPartition(partition_index=index) for index in partitions]
            )
            for name, partitions in topics
        ],
    )


def errors(response: OffsetCommitResponse) -> list[tuple[str, bytes, list[tuple[int, int]]]]:
    return [
        (topic.name, topic.topic_id, [(item.partition_index, item.error_code) for item in topic.partitions])
        for topic in response.topics
    ]


def test_commit_by_name():
    request = commit_request(
        ({"name": "open"}, [0, 5]), ({"name": "secret"}, [0]), ({"name": "missing"}, [0]), ({"name": ""}, [1])
    )
    remaining, refused = requests.split_commit(request, 9, TOPICS, is_authorized)
    assert remaining is not None
    assert remaining.member_id == "m"
    assert [(topic.name, topic.topic_id, len(topic.partitions)) for topic in remaining.topics] == [
        ("open", IDS["open"], 1)
    ]
    answered = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="open", topic_id=IDS["open"], partitions=[OffsetCommitResponsePartition(partition_index=0)]
            )
        ]
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(requests.merge_commit(refused, answered)) == [
        ("open", IDS["open"], [(5, unknown), (0, ErrorCode.NONE)]),
        ("secret", ZERO_UUID, [(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]),
        ("missing", ZERO_UUID, [(0, unknown)]),
        ("", ZERO_UUID, [(1, unknown)]),
    ]


def test_commit_by_id():
    request = commit_request(
        ({"topic_id": IDS["open"]}, [0]), ({"topic_id": IDS["secret"]}, [0]), ({"topic_id": b"?" * 16}, [0])
    )
    remaining, refused = requests.split_commit(request, 10, TOPICS, is_authorized)
    assert [topic.name for topic in remaining.topics] == ["open"]
    assert errors(refused) == [
        ("secret", IDS["secret"], [(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]),
        ("", b"?" * 16, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]


def test_a_commit_of_unknown_topics_only_does_not_reach_the_group():
    remaining, refused = requests.split_commit(commit_request(({"name": "missing"}, [0])), 9, TOPICS, is_authorized)
    assert remaining is None
    assert len(refused.topics) == 1
    assert requests.split_commit(commit_request(), 9, TOPICS, is_authorized)[0] is None


@pytest.mark.parametrize("version", range(1, 8))
def test_fetch_of_one_group(version):
    asked = OffsetFetchRequest(
        group_id="g",
        topics=[
            OffsetFetchRequestTopic(name="open", partition_indexes=[0, 7]),
            OffsetFetchRequestTopic(name="secret", partition_indexes=[1]),
        ],
    )
    (group,) = requests.fetch_groups(asked, version)
    remaining, refused = requests.split_fetch(group, version, TOPICS, is_authorized)
    assert [(topic.name, topic.partition_indexes) for topic in remaining.topics] == [("open", [0, 7])]
    found = OffsetFetchResponseGroup(
        group_id="g",
        topics=[
            OffsetFetchResponseTopics(
                name="open", partitions=[OffsetFetchResponsePartitions(partition_index=0, committed_offset=5)]
            )
        ],
    )
    merged = requests.merge_fetch(group, refused, found, version, TOPICS, is_authorized)
    response = requests.fetch_response([merged], version)
    assert response.groups == []
    assert [
        (topic.name, item.partition_index, item.committed_offset, item.error_code)
        for topic in response.topics
        for item in topic.partitions
    ] == [("open", 0, 5, 0), ("secret", 1, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
def test_fetch_of_all_topics_omits_unauthorized_topics(version):
    request = OffsetFetchRequest(group_id="g", topics=None, groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (group,) = requests.fetch_groups(request, version)
    assert group.topics is None
    remaining, refused = requests.split_fetch(group, version, TOPICS, is_authorized)
    assert remaining.topics is None
    found = OffsetFetchResponseGroup(
        group_id="g", topics=[OffsetFetchResponseTopics(name=name) for name in ("open", "secret", "gone")]
    )
    merged = requests.merge_fetch(group, refused, found, version, TOPICS, is_authorized)
    expected = [("open", IDS["open"])] if version >= 10 else [("open", ZERO_UUID), ("gone", ZERO_UUID)]
    assert [(topic.name, topic.topic_id) for topic in merged.topics] == expected


def test_fetch_by_id():
    group = OffsetFetchRequestGroup(
        group_id="g",
        topics=[
            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
            for topic_id in (IDS["open"], IDS["secret"], b"?" * 16)
        ],
    )
    remaining, refused = requests.split_fetch(group, 10, TOPICS, is_authorized)
    assert [(topic.name, topic.topic_id) for topic in remaining.topics] == [("open", IDS["open"])]
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in refused] == [
        (IDS["secret"], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_fetch_error_of_a_group_replaces_its_topics():
    group = OffsetFetchRequestGroup(group_id="g", topics=[])
    failed = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.NOT_COORDINATOR)
    merged = requests.merge_fetch(group, [OffsetFetchResponseTopics(name="x")], failed, 7, TOPICS, is_authorized)
    assert merged.topics == []
    assert requests.fetch_response([merged], 7).error_code == ErrorCode.NOT_COORDINATOR


def test_delete():
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in (0, 4)]
            )
            for name in ("open", "secret", "missing")
        ],
    )
    remaining, refused = requests.split_delete(request, TOPICS, is_authorized)
    assert [(topic.name, len(topic.partitions)) for topic in remaining.topics] == [("open", 1)]
    answered = OffsetDeleteResponse(
        topics=[OffsetDeleteResponseTopic(name="open", partitions=[OffsetDeleteResponsePartition(partition_index=0)])]
    )
    merged = requests.merge_delete(refused, answered)
    denied, unknown = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answers = {
        topic.name: [(item.partition_index, item.error_code) for item in topic.partitions] for topic in merged.topics
    }
    assert answers == {
        "open": [(4, unknown), (0, ErrorCode.NONE)],
        "secret": [(0, denied), (4, denied)],
        "missing": [(0, unknown), (4, unknown)],
    }
    failed = OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
    assert requests.merge_delete(refused, failed) is failed
