"""Pipelines on Spark: a source, SQL and a sink declared in one file, run by Spark's own Kafka connector.

It is `odradek.spark_it` and `odradek pipeline`, a program of its own: it imports nothing of the broker and speaks to
it, or to Apache Kafka, over the wire. Until something runs, nothing here needs Spark.

`settings`, `source_settings`, `sink_settings` declare every key of the file; `spec_reader` reads it to what `spec`
has, `checks` holds the parts against one another, `guarantees` says what comes of it. `checkpoint` reads Spark's own
state, `lock` says what it was begun with, `reset` begins it anew.

`tests/connector` shows with Spark's connector alone what a pipeline needs from the broker: executors assign
partitions and seek, look up the earliest and latest offset around every poll, read one partition at several places at
once, never join a group, keep their progress in a checkpoint of their own and trust that the latest offset never
falls. Tests (`python -m pytest spark_it`) run against Odradek; those marked `side_by_side` have to
hold for Apache Kafka too, which proves the test. `--backend kafka` runs tests against Apache Kafka. They
need pyspark 4.0.0 and Java 17; jars come from the cache that `compat_tests.apache_kafka.jars` fills, so no test reaches
for the network. `tests/unit` needs neither Java nor a session.
"""
