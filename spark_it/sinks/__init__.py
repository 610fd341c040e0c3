"""Sinks. Each connector has a module, which is imported when a pipeline uses it.

`SinkError` is public: a Python sink raises it (docs/pipelines.md).

- `connectors`: creation of the sink for a connector
- `marker_checks`: checks of markers and owners, shared by several sinks
- `console`: rows as text on standard output
- `python_sink`: calls of a Python function
- `files`: folders of files, one per batch
- `lakehouse`: Delta Lake and Iceberg tables
- `iceberg_files`: commits of data files to an Iceberg table
- `jdbc`: database tables
- `jdbc_target`: the table's columns, and its creation
- `jdbc_staging`: staging tables
- `jdbc_marker`: the table of markers
- `topic`: topics, exactly once
- `topic_records`: encoding of rows as records
- `topic_tasks`: transactions in Spark's tasks
- `topic_origin`: search for the source record of a record that is too large
"""

from odradek.spark_it.interfaces.sink import SinkError

__all__ = ["SinkError"]
