"""Rows of refused resources, of which a request may have 100,000."""

from importlib import import_module

import pytest
from twisted.internet.defer import succeed

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestAlterReplicaLogDir,
    AlterReplicaLogDirsRequestAlterReplicaLogDirTopic,
)
from odradek.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
)
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from odradek.protocol.messages.describe_transactions import DescribeTransactionsRequest
from odradek.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
)
from odradek.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.server.apis import APIS
from odradek.server.authorization.tests.support import Guarded, group
from odradek.server.dispatch import BoundApi
from odradek.server.security.authorization.rights import DECISIONS_PER_STEP
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS

NAMES = [f"hidden-{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("api", "version", "request_", "maker", "response"),
    [
        (
            "OffsetFetch",
            8,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name) for name in NAMES]),
            "odradek.coordinator.groups.responses.offset_fetch_error",
            None,
        ),
        (
            "FindCoordinator",
            4,
            FindCoordinatorRequest(coordinator_keys=NAMES),
            "odradek.server.authorization.coordinators.make_error_row",
            None,
        ),
        (
            "CreateTopics",
            7,
            CreateTopicsRequest(topics=[CreateTopicsRequestCreatableTopic(name=name) for name in NAMES]),
            "odradek.server.authorization.topics.CreateTopicsResponseCreatableTopicResult",
            CreateTopicsResponse(),
        ),
        (
            "CreatePartitions",
            3,
            CreatePartitionsRequest(topics=[CreatePartitionsRequestCreatePartitionsTopic(name=name) for name in NAMES]),
            "odradek.server.authorization.topics.CreatePartitionsResponseCreatePartitionsTopicResult",
            CreatePartitionsResponse(),
        ),
        (
            "DescribeGroups",
            5,
            DescribeGroupsRequest(groups=NAMES),
            "odradek.coordinator.groups.responses.describe_groups_error",
            None,
        ),
        (
            "DescribeTransactions",
            0,
            DescribeTransactionsRequest(transactional_ids=NAMES),
            "odradek.server.authorization.transactions.describe_error",
            None,
        ),
        (
            "DescribeProducers",
            0,
            DescribeProducersRequest(topics=[DescribeProducersRequestTopicRequest(name=name) for name in NAMES]),
            "odradek.server.authorization.producers.describe_producers_error",
            None,
        ),
        (
            "Produce",
            9,
            ProduceRequest(
                acks=1,
                topic_data=[
                    ProduceRequestTopicProduceData(
                        name=name, partition_data=[ProduceRequestPartitionProduceData(index=0, records=None)]
                    )
                    for name in NAMES
                ]
            ),
            "odradek.server.authorization.produce.make_error_row",
            None,
        ),
    ],
)
def test_the_rows_of_refused_resources_are_made_while_they_are_encoded(
    monkeypatch, api, version, request_, maker, response
):
    """To make all rows in one step would take 70 ms."""
    module, _, name = maker.rpartition(".")
    original, made = getattr(import_module(module), name), []

    def make(*arguments, **named):
        made.append(arguments)
        return original(*arguments, **named)

    monkeypatch.setattr(maker, make)
    answer = Guarded(api, version, respond=lambda request: succeed(response)).ask(request_)
    assert made == []
    BoundApi(next(row for row in APIS.values() if row.name == api), version, ()).encode(answer, bytearray(), [])
    assert len(made) == len(NAMES)


AT_ONCE = 2 * (SMALL_REQUEST_STEPS + 1)
"""Steps at the begin of each part of a request that take no iteration."""

MANY = [f"name-{number}" for number in range(3000)]
HALF = [group("DESCRIBE", name) for name in MANY[::2]]


def count_iterations(guarded, request):
    """Return the number of reactor iterations that a request takes, one for each step, and the response."""
    delays = []
    call_later = guarded.clock.callLater

    def call_later_and_count(delay_s, *call):
        delays.append(delay_s)
        return call_later(delay_s, *call)

    guarded.clock.callLater = call_later_and_count
    response = guarded.ask(request)
    return len(delays), response


def test_found_and_refused_keys_are_merged_in_steps_and_in_the_order_of_the_request():
    def respond(request):
        return FindCoordinatorResponse(
            coordinators=[FindCoordinatorResponseCoordinator(key=key) for key in request.coordinator_keys]
        )

    guarded = Guarded("FindCoordinator", 4, *HALF, respond=respond)
    count, response = count_iterations(guarded, FindCoordinatorRequest(coordinator_keys=MANY))
    assert count >= len(MANY) // DECISIONS_PER_STEP + len(MANY) // ROWS_PER_STEP - AT_ONCE
    assert [row.key for row in response.coordinators] == MANY
    codes = [ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED] * (len(MANY) // 2)
    assert [row.error_code for row in response.coordinators] == codes


def test_fetched_and_refused_groups_are_merged_in_steps_and_in_the_order_of_the_request():
    def respond(request):
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=one.group_id) for one in request.groups])

    guarded = Guarded("OffsetFetch", 8, *HALF, respond=respond)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name) for name in MANY])
    count, response = count_iterations(guarded, request)
    assert count >= len(MANY) // DECISIONS_PER_STEP + len(MANY) // ROWS_PER_STEP - AT_ONCE
    assert [row.group_id for row in response.groups] == MANY


def test_refused_deletions_are_shuffled_in_steps():
    guarded = Guarded("DeleteTopics", 5, respond=lambda request: DeleteTopicsResponse())
    count, response = count_iterations(guarded, DeleteTopicsRequest(topic_names=MANY))
    assert count >= len(MANY) // DECISIONS_PER_STEP + 2 * (len(MANY) // ROWS_PER_STEP) - AT_ONCE
    names = [row.name for row in response.responses]
    assert sorted(names) == sorted(MANY) and names != MANY
    assert guarded.requests == [DeleteTopicsRequest()]


def test_the_partitions_of_refused_topics_are_collected_in_steps():
    topic = ProduceRequestTopicProduceData(
        name="hidden",
        partition_data=[ProduceRequestPartitionProduceData(index=index, records=None) for index in range(3000)],
    )
    request = ProduceRequest(acks=1, topic_data=[topic])
    count, response = count_iterations(Guarded("Produce", 9), request)
    assert count >= 3000 // DECISIONS_PER_STEP + 3000 // ROWS_PER_STEP - AT_ONCE
    assert [row.index for row in response.responses[0].partition_responses] == list(range(3000))


@pytest.mark.parametrize(
    ("api", "version", "request_", "field"),
    [
        (
            "ElectLeaders",
            2,
            ElectLeadersRequest(
                topic_partitions=[ElectLeadersRequestTopicPartitions(topic=name, partitions=[0, 1]) for name in NAMES]
            ),
            "replica_election_results",
        ),
        (
            "AlterPartitionReassignments",
            0,
            AlterPartitionReassignmentsRequest(
                topics=[
                    AlterPartitionReassignmentsRequestReassignableTopic(
                        name=name,
                        partitions=[AlterPartitionReassignmentsRequestReassignablePartition(partition_index=0)],
                    )
                    for name in NAMES
                ]
            ),
            "responses",
        ),
        (
            "AlterReplicaLogDirs",
            2,
            AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDirsRequestAlterReplicaLogDir(
                        path="/x",
                        topics=[
                            AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=name, partitions=[0, 1, 0])
                            for name in NAMES
                        ],
                    )
                ]
            ),
            "results",
        ),
        (
            "AlterUserScramCredentials",
            0,
            AlterUserScramCredentialsRequest(
                deletions=[
                    AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=1) for name in NAMES
                ]
            ),
            "results",
        ),
    ],
)
def test_the_rows_of_a_refused_request_are_made_while_they_are_encoded(api, version, request_, field):
    row = next(row for row in APIS.values() if row.name == api)
    bound = BoundApi(row, version, ())
    error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")
    response = bound.make_error_response(request_, version, error)
    assert response is not None and not isinstance(getattr(response, field), list)
    out = bytearray()
    bound.encode(response, out, [])
    decoded = codec.decode(type(response), version, bytes(out))
    results = getattr(decoded, field)
    codes = [
        one.error_code
        for result in results
        for one in (getattr(result, "partitions", None) or getattr(result, "partition_result", None) or [result])
    ]
    assert len(results) == len(NAMES)
    assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(codes)
