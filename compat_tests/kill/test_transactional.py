"""The transactional writers: outcomes that a client library reports wrongly."""

import pytest
from kafka.errors import InvalidProducerEpochError, KafkaConnectionError

from compat_tests.kill.transactional import KafkaPythonTransactionalWriter


def test_a_commit_without_a_request_is_no_commit(broker, unique):
    """kafka-python loses the request for a new epoch, which a refused batch has caused, with the connection."""
    writer = KafkaPythonTransactionalWriter(unique, broker.bootstrap_servers, unique, 1, once=True, seed="")
    replaced = writer._create_producer()
    writer._begin(replaced)
    _, value = writer.ledger.add()
    writer._send(replaced, value, writer.ledger.entries[0])
    replaced.flush()
    replaced.config["linger_ms"] = 1000
    replaced._accumulator.config["linger_ms"] = 1000
    _, value = writer.ledger.add()
    writer._send(replaced, value, writer.ledger.entries[1])
    present = writer._create_producer()
    state, client = replaced._transaction_manager, replaced._sender._client
    await_ready = client.await_ready

    def lose_connection(*arguments, **options):
        if state.is_bumping_epoch():
            client.await_ready = await_ready
            raise KafkaConnectionError("lost")
        return await_ready(*arguments, **options)

    client.await_ready = lose_connection
    with pytest.raises(InvalidProducerEpochError):
        writer._commit(replaced)
    for producer in (replaced, present):
        writer._close(producer)
