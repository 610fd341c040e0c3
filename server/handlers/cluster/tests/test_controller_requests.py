"""Requests of brokers to the controller: handlers and error responses."""

from types import SimpleNamespace

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.protocol.messages.alter_partition import AlterPartitionRequest
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from odradek.replication.tests.support import Cluster
from odradek.server.apis import APIS, served_apis
from odradek.server.handlers.cluster import controller_requests

REQUESTS = {
    "alter_partition": AlterPartitionRequest(broker_id=1, broker_epoch=7),
    "controlled_shutdown": ControlledShutdownRequest(broker_id=1, broker_epoch=-1),
    "allocate_producer_ids": AllocateProducerIdsRequest(broker_id=1, broker_epoch=7),
}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("alter_partition", ErrorCode.STALE_BROKER_EPOCH),
        ("controlled_shutdown", ErrorCode.NONE),
        ("allocate_producer_ids", ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_only_the_controller_answers(name, error):
    first = Cluster(broker_id=1)
    second = Cluster(server=first.server, broker_id=2)
    services = SimpleNamespace(controller=first.controller)
    results = []
    handle = getattr(controller_requests, name)
    handle(services, None, REQUESTS[name]).addCallback(results.append)
    handle(SimpleNamespace(controller=second.controller), None, REQUESTS[name]).addCallback(results.append)
    assert [response.error_code for response in results] == [error, ErrorCode.NOT_CONTROLLER]


@pytest.mark.parametrize("name", list(REQUESTS))
def test_an_error_of_the_whole_request(name):
    make = getattr(controller_requests, f"{name}_error")
    response = make(REQUESTS[name], 3, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_requests_between_brokers_are_served_in_a_cluster_only():
    keys = {api.key for api in APIS.values() if api.handler.startswith("cluster.controller_requests:")}
    assert keys == {7, 56, 67}
    assert keys.isdisjoint(served_apis(in_cluster=False))
    assert keys <= served_apis(in_cluster=True).keys()
