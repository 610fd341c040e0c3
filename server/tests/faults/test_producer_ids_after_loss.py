"""Producer ids after the metadata store was lost or restored, or a directory was offline: no id is assigned twice.

With an id that is in the logs, a new producer's first batch is taken for a repetition: it is acknowledged and not
written. Each test has the id in one place only: producer state, `__transaction_state`, batches, an offline directory.
"""

import shutil
import time

import pytest

from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.records import build_batch
from odradek.server.stores.sqlite import FILE_NAME
from odradek.server.tests.test_transactions import Producer
from odradek.server.tests.wire import LATEST, Wire
from odradek.testing import BrokerFailedError, OdradekBroker

TOPIC = "ledger"
TWO_DAYS_MS = 2 * 86_400_000
PROPERTIES = {"transaction.state.log.num.partitions": "2", "log.dirs.adopt": "true", "log.retention.ms": "-1"}


@pytest.fixture
def broker():
    with OdradekBroker(PROPERTIES) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic(TOPIC, partitions=2)
        yield broker


def lose_store(broker):
    for path in broker.data_dir.glob(f"{FILE_NAME}*"):
        path.unlink()


class IdempotentProducer:
    """A producer id and the sequence numbers of each partition; it outlives the broker, as a client does."""

    def __init__(self, port):
        with Wire(port) as wire:
            answer = wire.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 5)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        self.id = answer.producer_id
        self.port = port
        self.sequences = {}

    def send(self, value, partition=0, age_ms=0):
        """Produce one record, and assert that it is acknowledged and in the log. Return its offset."""
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + 1
        batch = build_batch(
            [(int(time.time() * 1000) - age_ms, b"k", value, ())],
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        with Wire(self.port) as wire:
            end = wire.offset(TOPIC, LATEST, partition)
            answer = wire.produce(TOPIC, partition=partition, batch=batch)
            assert (answer.error_code, answer.base_offset) == (0, end), "acknowledged, and not written"
            assert wire.offset(TOPIC, LATEST, partition) == end + 1
        return end


def test_a_new_store_does_not_assign_ids_in_producer_state(broker):
    before = IdempotentProducer(broker.port)
    before.send(b"before")
    broker.stop()
    lose_store(broker)
    broker.start()
    after = IdempotentProducer(broker.port)
    after.send(b"after")
    before.send(b"still there")
    assert after.id > before.id


def test_a_restored_store_does_not_assign_ids_in_producer_state(broker, tmp_path):
    IdempotentProducer(broker.port).send(b"first block")
    broker.stop()
    shutil.copy(broker.data_dir / FILE_NAME, tmp_path)
    broker.start()
    before = IdempotentProducer(broker.port)
    before.send(b"second block")
    broker.kill()
    lose_store(broker)
    shutil.copy(tmp_path / FILE_NAME, broker.data_dir)
    broker.start()
    IdempotentProducer(broker.port).send(b"after")
    before.send(b"still there")


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_new_store_does_not_assign_ids_of_transactional_producers(broker, is_clean):
    transactional = Producer(broker.port, TOPIC, version=1)
    broker.stop() if is_clean else broker.kill()
    lose_store(broker)
    broker.start()
    idempotent = IdempotentProducer(broker.port)
    transactional.wire = Wire(broker.port)
    transactional.add(0)
    assert transactional.produce(b"in a transaction").error_code == 0
    assert transactional.end() == 0
    idempotent.send(b"after")


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_restored_store_does_not_assign_ids_of_transactional_producers(broker, tmp_path, is_clean):
    IdempotentProducer(broker.port).send(b"first block")
    broker.stop()
    shutil.copy(broker.data_dir / FILE_NAME, tmp_path)
    broker.start()
    transactional = Producer(broker.port, TOPIC, version=1)
    broker.stop() if is_clean else broker.kill()
    lose_store(broker)
    shutil.copy(tmp_path / FILE_NAME, broker.data_dir)
    broker.start()
    idempotent = IdempotentProducer(broker.port)
    assert idempotent.id > transactional.id


def test_a_new_store_does_not_assign_ids_in_batches(broker):
    """The producers wrote so long ago that no producer state contains them; they may still be active."""
    before = IdempotentProducer(broker.port)
    before.send(b"long ago", partition=1, age_ms=TWO_DAYS_MS)
    broker.stop()
    lose_store(broker)
    broker.start()
    after = IdempotentProducer(broker.port)
    before.send(b"again", partition=0)
    after.send(b"after", partition=0)
    assert "searched batches for producer ids" in broker.log_text()
    broker.restart()
    assert broker.log_text().count("searched batches for producer ids") == 1


def test_a_new_store_needs_all_log_directories_to_be_readable(tmp_path):
    directories = [tmp_path / "a", tmp_path / "b"]
    properties = {**PROPERTIES, "log.dirs": ",".join(map(str, directories))}
    with OdradekBroker(properties, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("in-the-first-directory")
            wire.create_topic(TOPIC)
        assert (directories[1] / f"{TOPIC}-0").exists()
        IdempotentProducer(broker.port).send(b"before")
        broker.stop()
        for path in directories[0].glob(f"{FILE_NAME}*"):
            path.unlink()
        checkpoint = directories[1] / "recovery-point-offset-checkpoint"
        content = checkpoint.read_bytes()
        checkpoint.write_bytes(b"unreadable")
        with pytest.raises(BrokerFailedError, match="only if every log directory can be read"):
            broker.start()
        checkpoint.write_bytes(content)
        broker.start()
        IdempotentProducer(broker.port).send(b"after")


def test_the_ids_of_a_new_broker_begin_at_zero(broker):
    assert IdempotentProducer(broker.port).id == 0
    broker.restart()
    assert IdempotentProducer(broker.port).id == 1000
    assert "producer ids" not in broker.log_text()
