"""Spark: its session, and helpers that several packages share.

- `packages`: Maven coordinates of connectors
- `session`: the session of a pipeline
- `daemon`: the parent process of Python workers
- `java`: Java exceptions in Python errors
- `errors`: Spark's errors as one line
- `events`: progress events of a query
- `columns`: columns of decoded frames
- `counting`: the count of a frame's rows while it is written
- `internals`: calls of Spark's internals: plans, partitions and observations of frames
"""
