"""Spark on Odradek: what a data pipeline needs from the broker, shown with Spark's own Kafka connector.

The folder stands apart from the broker and imports nothing of it but the test broker of `odradek.testing`; it speaks
to it over the wire. Spark uses the broker as few clients do: executors assign partitions and seek, look up the
earliest and latest offset around every poll, read one partition at several places at once, never join a group, keep
their progress in a checkpoint of their own and trust that the latest offset never falls.

The tests (`python -m pytest spark_it`) run against Odradek; those marked `side_by_side` also against Apache Kafka,
which proves the test. `ODRADEK_COMPAT_BACKEND=kafka` runs all of them against Apache Kafka alone.
They need pyspark 4.0.0 and Java 17; the connector's jars come from the cache that `compat_tests.apache_kafka.jars`
fills, so no test reaches for the network.
"""
