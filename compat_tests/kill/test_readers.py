"""The reader of assigned partitions: errors of librdkafka and repeated offsets."""

import pytest
from confluent_kafka import KafkaError

from compat_tests.kill.history import Sightings
from compat_tests.kill.readers import AssignedReader

TRUNCATION = "Partition log truncation detected at offset 9 (leader epoch 4): broker end offset is 5"


class Message:
    def __init__(self, offset=None, error=None):
        self._offset, self._error = offset, error

    def error(self):
        return self._error

    def partition(self):
        return 2

    def offset(self):
        return self._offset

    def value(self):
        return b"value"


class Consumer:
    def __init__(self):
        self.sought = []

    def seek(self, position):
        self.sought.append((position.topic, position.partition, position.offset))


@pytest.fixture
def reader():
    return AssignedReader("reader", "127.0.0.1:1", "t", 3, Sightings())


def test_a_reported_truncation_continues_at_the_position_of_the_reader(reader):
    consumer = Consumer()
    reader._take(consumer, Message(8))
    reader._take(consumer, Message(error=KafkaError(KafkaError._AUTO_OFFSET_RESET, TRUNCATION)))
    assert (consumer.sought, reader.troubles) == ([("t", 2, 9)], [])


@pytest.mark.parametrize("reason", ["Broker: Offset out of range", ""])
def test_another_reset_is_a_trouble(reader, reason):
    consumer = Consumer()
    reader._take(consumer, Message(error=KafkaError(KafkaError._AUTO_OFFSET_RESET, reason)))
    assert consumer.sought == []
    assert len(reader.troubles) == 1


def test_an_offset_that_comes_again_is_a_trouble(reader):
    for offset in (8, 8):
        reader._take(Consumer(), Message(offset))
    assert reader.troubles == ["reader: offset 8 of 2 came after 8"]
