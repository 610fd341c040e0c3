"""Requests that another broker must serve, or the same one later."""

from collections import deque

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
)
from odradek.protocol.messages.delete_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
)
from odradek.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
)
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)
from odradek.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from odradek.tools.kafka.cluster import RETRY_S, Cluster, RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import Address
from odradek.tools.kafka.topics.offsets import LATEST, fetch_log_ranges, fetch_offsets
from odradek.tools.kafka.transactions import describe_transactions

BROKERS = {1: Address("one", 1), 2: Address("two", 2)}


class Network:
    """Brokers 1 and 2, with scripted responses to all requests but those for metadata and coordinators."""

    def __init__(self):
        self.now_s = 0.0
        self.controllers = deque([1])
        self.coordinators = deque([1])
        self.responses = deque()
        self.sent = []
        self.unreachable = set()
        self.coordinator_error = ErrorCode.NONE

    def connect(self, address, security):
        if address in self.unreachable:
            raise NoResponseError(f"{address} does not answer")
        return Client(self, address)

    def sleep(self, seconds):
        self.now_s += seconds

    def make_cluster(self):
        return Cluster(Connection(list(BROKERS.values()), {}), self.sleep, lambda: self.now_s, self.connect)


class Client:
    def __init__(self, network, address):
        self._network = network
        self._address = address

    def send(self, request, response_type, last_version=None):
        network = self._network
        if isinstance(request, MetadataRequest):
            nodes = [MetadataResponseBroker(node_id=i, host=one.host, port=one.port) for i, one in BROKERS.items()]
            return MetadataResponse(brokers=nodes, controller_id=take(network.controllers), topics=[])
        if isinstance(request, FindCoordinatorRequest):
            broker = take(network.coordinators)
            address = BROKERS[broker]
            found = [
                FindCoordinatorResponseCoordinator(
                    key=key, node_id=broker, host=address.host, port=address.port, error_code=network.coordinator_error
                )
                for key in request.coordinator_keys
            ]
            return FindCoordinatorResponse(coordinators=found)
        network.sent.append(self._address.host)
        response = take(network.responses)
        if isinstance(response, NoResponseError):
            raise response
        return response

    def close(self):
        pass


def take(items):
    """Return the next item; the last one again and again."""
    return items.popleft() if len(items) > 1 else items[0]


@pytest.fixture
def network():
    return Network()


def created(*codes):
    topics = [CreateTopicsResponseCreatableTopicResult(name=f"t{n}", error_code=code) for n, code in enumerate(codes)]
    return CreateTopicsResponse(topics=topics)


def ask_controller(network):
    response = network.make_cluster().ask_controller(CreateTopicsRequest(topics=[]), CreateTopicsResponse)
    return [topic.error_code for topic in response.topics]


def test_the_controller_has_moved(network):
    network.controllers.append(2)
    network.responses.extend([created(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), created(0, 0)])
    assert ask_controller(network) == [0, 0]
    assert network.sent == ["one", "two"]


def test_a_change_that_was_made_in_part_is_not_repeated(network):
    network.responses.append(created(0, ErrorCode.NOT_CONTROLLER))
    assert ask_controller(network) == [0, ErrorCode.NOT_CONTROLLER]
    assert network.sent == ["one"]


def test_a_controller_that_does_not_return(network):
    network.responses.append(created(ErrorCode.NOT_CONTROLLER))
    assert ask_controller(network) == [ErrorCode.NOT_CONTROLLER]
    assert RETRY_S <= network.now_s < RETRY_S + 1


def test_a_coordinator_has_moved(network):
    def deleted(code):
        return DeleteGroupsResponse(results=[DeleteGroupsResponseDeletableGroupResult(group_id="g", error_code=code)])

    network.coordinators.append(2)
    network.responses.extend([deleted(ErrorCode.NOT_COORDINATOR), deleted(0)])
    request = DeleteGroupsRequest(groups_names=["g"])
    network.make_cluster().ask_coordinator("g", 0, request, DeleteGroupsResponse)
    assert network.sent == ["one", "two"]


def test_coordinators_that_load_are_asked_again(network):
    def described(*codes):
        groups = [
            DescribeGroupsResponseDescribedGroup(
                group_id=f"g{n}", group_state="", protocol_type="", protocol_data="", error_code=code
            )
            for n, code in enumerate(codes)
        ]
        return DescribeGroupsResponse(groups=groups)

    network.responses.extend([described(0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), described(0, 0)])
    asked = []

    def make_request(names):
        asked.append(names)
        return DescribeGroupsRequest(groups=names)

    [(broker, response)] = network.make_cluster().ask_coordinators(
        ["g0", "g1"], 0, make_request, DescribeGroupsResponse
    )
    assert (broker, [group.error_code for group in response.groups]) == (1, [0, 0])
    assert asked == [["g0", "g1"]] * 2 and network.now_s > 0


def test_the_first_broker_that_answers_is_used(network):
    network.unreachable.add(BROKERS[1])
    network.controllers = deque([2])
    network.responses.append(created(0))
    assert ask_controller(network) == [0]
    network.unreachable.add(BROKERS[2])
    with pytest.raises(NoResponseError, match="one:1 does not answer; two:2 does not answer"):
        network.make_cluster().any_broker()


def test_a_broker_that_does_not_exist(network):
    with pytest.raises(RequestError, match="there is no live broker 7; live brokers are 1, 2"):
        network.make_cluster().broker(7)


def test_a_coordinator_that_cannot_be_created_is_explained(network):
    network.coordinator_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestError, match=r"coordinator of g is not available: .*offsets\.topic\.replication\.factor"):
        network.make_cluster().find_coordinators(["g"], 0)
    with pytest.raises(RequestError, match=r"__transaction_state has no leader, or cannot be created"):
        network.make_cluster().find_coordinators(["t"], 1)
    assert network.now_s >= RETRY_S


def test_a_coordinator_is_not_the_only_broker(network):
    cluster = network.make_cluster()
    cluster.find_coordinators(["g"], 0)
    assert cluster.node_ids() == [1, 2]


def test_a_coordinator_that_moves_leaves_no_hanging_transaction(network):
    state = DescribeTransactionsResponseTransactionState(
        error_code=ErrorCode.NOT_COORDINATOR, transactional_id="t", transaction_state="", topics=[]
    )
    network.responses.append(DescribeTransactionsResponse(transaction_states=[state]))
    with pytest.raises(RequestError, match="transactional id t: NOT_COORDINATOR"):
        describe_transactions(network.make_cluster(), ["t"])


def ask_broker(cluster):
    return cluster.ask_broker(1, CreateTopicsRequest(topics=[]), CreateTopicsResponse)


def test_a_closed_connection_is_made_anew(network):
    cluster = network.make_cluster()
    network.responses.extend([created(0), NoResponseError("closed"), created(1)])
    first = cluster.broker(1)
    assert cluster.any_broker() is first
    assert ask_broker(cluster).topics[0].error_code == 0 and cluster.broker(1) is first
    assert ask_broker(cluster).topics[0].error_code == 1
    assert cluster.broker(1) is not first and cluster.any_broker() is cluster.broker(1)


def test_a_new_connection_that_fails_is_not_used_again(network):
    cluster = network.make_cluster()
    cluster.fetch_metadata([])
    cluster.any_broker()
    network.responses.extend([NoResponseError("timed out"), NoResponseError("timed out"), created(0)])
    before = cluster.broker(1)
    with pytest.raises(NoResponseError):
        ask_broker(cluster)
    assert cluster.broker(1) is not before
    assert ask_broker(cluster).topics[0].error_code == 0


def make_offsets(*partitions):
    rows = [
        ListOffsetsResponseListOffsetsPartitionResponse(partition_index=index, error_code=code, offset=5, timestamp=-1)
        for index, code in partitions
    ]
    return ListOffsetsResponse(topics=[ListOffsetsResponseListOffsetsTopicResponse(name="t", partitions=rows)])


def test_offsets_of_partitions_that_can_be_read(network):
    network.responses.extend(
        [make_offsets((0, 0), (2, 56), (4, 3)), NoResponseError("refused"), NoResponseError("refused")]
    )
    leaders = {("t", 0): 1, ("t", 1): 2, ("t", 2): 1, ("t", 3): -1, ("t", 4): 1}
    problems = []
    found = fetch_offsets(network.make_cluster(), dict.fromkeys(leaders, LATEST), leaders, problems=problems)
    assert found == {("t", 0): (5, -1)}
    assert problems == ["t-2: KAFKA_STORAGE_ERROR", "offsets of the partitions that broker 2 leads: refused"]


def test_a_leader_that_does_not_answer_is_not_waited_for_twice(network):
    network.responses.extend([NoResponseError("refused"), NoResponseError("refused")])
    problems = []
    assert fetch_log_ranges(network.make_cluster(), {("t", 0): 2}, problems) == ({}, {})
    assert len(problems) == 1
    with pytest.raises(NoResponseError):
        fetch_log_ranges(network.make_cluster(), {("t", 0): 2})
