"""Dead letters that a pipeline has written, and that come back to it."""

import json

from odradek.spark_it.cluster import Cluster
from odradek.spark_it.replay import replay
from odradek.spark_it.runner import Options, run
from spark_it.tests.records import messages
from spark_it.tests.unit.support import pipeline


def test_dead_letters_of_a_run_come_back_to_the_next(spark, broker, topics, unique, tmp_path):
    source, dead = topics.create(f"{unique}-in", 2), topics.create(f"{unique}-dlq")
    text = f"""
name = "{unique}"
bootstrap.servers = "{broker.bootstrap_servers}"
trigger = "available-now"
[source.orders]
connector = "topic"
topics = "{source}"
value.schema = "id BIGINT"
[sink]
connector = "files"
path = "out"
format = "json"
[errors]
tolerance = "all"
deadletterqueue.topic.name = "{dead}"
"""
    strict = pipeline(text, folder=tmp_path)
    cluster = Cluster(strict.settings)
    topics.produce(source, [(b"good", b'{"id": 1}')])
    topics.produce(source, [(b"bad", b'{"id": "two"}')], headers=[("trace", b"7")])
    run(strict, Options(), lambda _: None, spark=spark)
    [letter] = messages(broker.bootstrap_servers, dead)
    assert letter.value() == b'{"id": "two"}'

    assert list(replay(strict, cluster, execute=True)) == [f"1 record went back to topic {source}"]
    [back] = [one for one in messages(broker.bootstrap_servers, source) if one.key() == b"bad"][1:]
    assert back.value() == b'{"id": "two"}' and back.headers() == [("trace", b"7")]

    # What was wrong is put right; a record that has come back is read like any other.
    mended = pipeline(text.replace("id BIGINT", "id STRING"), folder=tmp_path)
    run(mended, Options(), lambda _: None, spark=spark)
    rows = [json.loads(line) for path in tmp_path.glob("out/**/*.json") for line in path.read_text().splitlines()]
    assert sorted(str(row["id"]) for row in rows) == ["1", "two"]
    assert len(messages(broker.bootstrap_servers, dead)) == 1
    assert list(replay(mended, cluster, execute=True)) == [f"there is nothing in {dead} to replay"]
