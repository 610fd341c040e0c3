"""A million rows through Spark's sink, a stream from topic to topic, and a batch read."""

import pytest

from compat_tests import limits
from spark_it.tests.data import digest, digest_of, rows, rows_in_spark
from spark_it.tests.kafka_frames import finish

ROWS = 1_000_000


@pytest.mark.timeout(limits.LONG_TEST_S)
def test_a_million_rows_with_none_lost_or_duplicated(kafka, topics, unique):
    source, target = topics.create(unique, 4), topics.create(f"{unique}-target", 4)
    kafka.write(rows_in_spark(kafka.spark, ROWS), source)
    stream = kafka.read_stream(source, maxOffsetsPerTrigger=400_000).select("key", "value")
    progress = finish(kafka.write_stream(stream, target, "checkpoint", {"availableNow": True}))
    assert sum(batch["numInputRows"] for batch in progress) == ROWS
    assert digest(kafka.read(target)) == digest_of(rows(ROWS))
    ends = [topics.ends(topic, partition) for topic in (source, target) for partition in range(4)]
    assert sum(high - low for low, high in ends) == 2 * ROWS
