"""Dead letters that a pipeline has written, and that are replayed to it."""

import json

import pytest

from odradek.spark_it.dead_letters.headers import PART_WRITTEN
from odradek.spark_it.dead_letters.replay import ReplayError, replay
from odradek.spark_it.execution.runner import Options, run
from odradek.spark_it.kafka.cluster import KafkaCluster
from spark_it.tests.records import messages
from spark_it.tests.unit.support import pipeline


def test_dead_letters_of_a_run_are_replayed_to_the_next(spark, broker, topics, unique, tmp_path):
    source, dead = topics.create(f"{unique}-in", 2), topics.create(f"{unique}-dlq")
    text = f"""
name = "{unique}"
bootstrap.servers = "{broker.bootstrap_servers}"
trigger = "available-now"
[source.orders]
connector = "topic"
topics = "{source}"
value.schema = "id BIGINT, items ARRAY<INT>"
[[transform]]
name = "items"
sql = "SELECT id, explode(items) AS item FROM orders"
[expect.items]
positive = {{ sql = "item > 0", action = "dead-letter" }}
[sink]
connector = "files"
path = "out"
format = "json"
[errors]
tolerance = "all"
deadletterqueue.topic.name = "{dead}"
"""
    strict = pipeline(text, folder=tmp_path)
    cluster = KafkaCluster(strict.settings)
    topics.produce(source, [(b"good", b'{"id": 1, "items": [1]}')])
    topics.produce(source, [(b"bad", b'{"id": "two", "items": [2]}')], headers=[("trace", b"7")])
    topics.produce(source, [(b"partly", b'{"id": 3, "items": [3, -3]}')])
    run(strict, Options(), lambda _: None, spark=spark)
    letters = {message.key(): message for message in messages(broker.bootstrap_servers, dead)}
    assert letters.keys() == {b"bad", b"partly"} and letters[b"bad"].value() == b'{"id": "two", "items": [2]}'
    assert [key for key, letter in letters.items() if PART_WRITTEN in dict(letter.headers())] == [b"partly"]

    with pytest.raises(ReplayError, match="the sink may contain other rows of 1 record"):
        list(replay(strict, cluster, execute=True))
    said = list(replay(strict, cluster, execute=True, partly_written="leave"))
    assert said[0] == f"1 record sent back to topic {source}"
    [back] = [one for one in messages(broker.bootstrap_servers, source) if one.key() == b"bad"][1:]
    assert back.value() == b'{"id": "two", "items": [2]}' and back.headers() == [("trace", b"7")]

    # The schema is corrected; a record that was sent back is read like any other.
    mended = pipeline(text.replace("id BIGINT", "id STRING"), folder=tmp_path)
    run(mended, Options(), lambda _: None, spark=spark)
    rows = [json.loads(line) for path in tmp_path.glob("out/**/*.json") for line in path.read_text().splitlines()]
    assert sorted((str(row["id"]), row["item"]) for row in rows) == [("1", 1), ("3", 3), ("two", 2)]
    assert len(messages(broker.bootstrap_servers, dead)) == 2
    assert list(replay(mended, cluster, execute=True)) == [f"{dead} has no records to replay"]
