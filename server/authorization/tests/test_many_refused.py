"""Rows of refused resources, of which a request may have 100,000."""

from importlib import import_module

import pytest
from twisted.internet.defer import succeed

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
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from odradek.protocol.messages.describe_transactions import DescribeTransactionsRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.server.apis import APIS
from odradek.server.authorization.tests.support import Guarded
from odradek.server.dispatch import BoundApi

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
