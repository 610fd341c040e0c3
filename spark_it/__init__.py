"""Pipelines on Spark: a source, SQL and a sink declared in one file, run with Spark's own Kafka connector.

`odradek pipeline` and `python -m odradek.spark_it` are the same program. It imports nothing of the broker and uses it,
or Apache Kafka, over the wire. Until a command runs a pipeline, no module here needs Spark.

- `sql`: Spark SQL statements, read without Spark
- `definition`: the file, its keys, and the guarantees of a pipeline
- `interfaces`: interfaces of sources and sinks, and shared types
- `kafka`: topics, offsets and groups of a cluster
- `state`: checkpoint, lock, progress; the `status` and `reset` commands
- `spark`: sessions, errors, and calls of Spark's internal classes
- `databases`: JDBC
- `formats`: JSON, Avro and Protobuf, with schema registries
- `exactly_once`: transactions with rows and their marker
- `dead_letters`: records that failed, and their replay
- `sources`: topics, files, database tables, generators, Python
- `sinks`: topics, files, Delta Lake and Iceberg tables, database tables, the console, Python
- `transforms`: from decoded records to the rows of a sink
- `cases`: the `test` command
- `validation`: the `validate` command
- `execution`: the `run` command
- `cli`: the command line
- `examples`: pipelines to copy, and their data

Each package imports only packages above it in this list; Import Linter holds that.

`tests/connector` shows with Spark's connector alone what a pipeline needs from the broker: executors assign partitions
and seek, look up the earliest and latest offset around every poll, read one partition at several places at once, never
join a group, keep their progress in a checkpoint of their own and rely on a latest offset that never decreases. Tests
(`python -m pytest spark_it`) run against Odradek; those marked `side_by_side` must hold for Apache Kafka too, which
proves the test. `--backend kafka` runs tests against Apache Kafka. Tests need pyspark 4.0.0 and Java 17; jars come from
the cache that `compat_tests.apache_kafka.jars` fills, so no test uses the network. `tests/unit` needs neither Java nor
a session.
"""
