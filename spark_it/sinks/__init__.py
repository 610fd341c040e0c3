"""Sinks. Each connector has a module, imported when a pipeline uses it.

`SinkError` is public: a Python sink raises it (docs/pipelines.md).

- `connectors`: the sink for a connector's name
- `recorded`: checks of markers and owners, shared by several sinks
- `console`: prints rows
- `python_sink`: calls a Python function
- `files`: folders of files, one per batch
- `lakehouse`: Delta Lake and Iceberg tables
- `iceberg_files`: commits of data files to an Iceberg table
- `jdbc`: database tables
- `jdbc_target`: the table's columns, and its creation
- `jdbc_staging`: staging tables
- `jdbc_marker`: the table of markers
- `topic`: topics, exactly once
- `topic_records`: encodes rows as records
- `topic_tasks`: writes transactions in Spark's tasks
- `topic_origin`: finds the source record of a record that is too large
"""

from odradek.spark_it.interfaces.sink import SinkError

__all__ = ["SinkError"]
