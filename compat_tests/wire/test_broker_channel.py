"""Odradek's requests to other brokers, answered by Apache Kafka."""

from collections.abc import Iterator

import pytest

from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
    AddPartitionsToTxnResponse,
)
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
    WriteTxnMarkersResponse,
)
from odradek.server.brokers.tests.test_channel_process import Caller
from odradek.server.tests.wire import Wire, until


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ApacheKafkaBroker() as broker:
        yield broker.port


def test_versions_are_negotiated(port: int) -> None:
    with Caller(port) as caller:
        response = caller.ask(MetadataRequest(topics=[]), MetadataResponse)
    assert isinstance(response, MetadataResponse)
    assert [broker.port for broker in response.brokers] == [port]


def test_a_transaction_is_verified(port: int) -> None:
    topic = AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="absent", partitions=[0])
    transaction = AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
        transactional_id="x", producer_id=1, producer_epoch=0, verify_only=True, topics=[topic]
    )
    with Caller(port) as caller:
        response = caller.ask(AddPartitionsToTxnRequest(transactions=[transaction]), AddPartitionsToTxnResponse)
    (result,) = response.results_by_transaction
    assert result.transactional_id == "x"
    (row,) = result.topic_results[0].results_by_partition
    assert row.partition_error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_markers_are_written(port: int) -> None:
    with Wire(port) as wire:
        wire.create_topic("marked")
        # The broker acknowledges the creation before it has the topic.
        until(lambda: wire.produce("marked", b"v").error_code == 0)
        topics = [
            WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=[0])
            for name in ("marked", "absent")
        ]
        marker = WriteTxnMarkersRequestWritableTxnMarker(
            producer_id=7, producer_epoch=0, coordinator_epoch=1, transaction_result=True, topics=topics
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        with Caller(port) as caller:
            response = caller.ask(request, WriteTxnMarkersResponse)
            fetched = caller.ask(wire.fetch_request("marked", 0), FetchResponse, 12)
    (result,) = response.markers
    codes = {topic.name: topic.partitions[0].error_code for topic in result.topics}
    assert codes == {"marked": ErrorCode.NONE, "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    records = fetched.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
