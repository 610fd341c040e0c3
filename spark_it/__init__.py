"""Pipelines on Spark: a source, SQL and a sink declared in one file, run with Spark's own Kafka connector.

`odradek pipeline` and `python -m odradek.spark_it` are the same program. It imports nothing of the broker and uses it,
or Apache Kafka, over the wire. Until a command runs a pipeline, no module here needs Spark.

- `sql`: static analysis of Spark SQL statements, without Spark
- `definition`: the file, its keys, and the guarantees of a pipeline
- `interfaces`: interfaces of sources and sinks, and shared types
- `kafka`: topics, offsets and groups of a cluster
- `state`: checkpoint, lock, progress; the `status` and `reset` commands
- `spark`: sessions, errors, and calls of Spark's internal classes
- `databases`: JDBC
- `formats`: JSON, Avro and Protobuf, with schema registries
- `exactly_once`: Kafka transactions that contain rows and their marker
- `dead_letters`: the dead-letter topic and dead-letter replay
- `sources`: topics, files, database tables, generators, Python
- `sinks`: topics, files, Delta Lake and Iceberg tables, database tables, the console, Python
- `transforms`: the plan from decoded records to sink rows
- `cases`: the `test` command
- `validation`: the `validate` command
- `execution`: the `run` command
- `cli`: the command line
- `examples`: pipelines to copy, and their data

Each package imports only packages above it in this list; Import Linter enforces this.

`tests/connector` uses only Spark's connector and shows what it requires of the broker: executors assign partitions and
seek, look up the earliest and latest offset around every poll, read one partition at several offsets concurrently,
never join a group, store their progress in Spark's checkpoint, and depend on a latest offset that never decreases.
Tests (`python -m pytest spark_it`) run against Odradek; those marked `side_by_side` also run against Apache Kafka,
which verifies the test itself. `--backend kafka` runs tests against Apache Kafka. Tests need pyspark 4.0.0 and Java 17;
jars come from the cache that `compat_tests.apache_kafka.jars` fills, so no test uses the network. `tests/unit` needs
neither Java nor a session.
"""
