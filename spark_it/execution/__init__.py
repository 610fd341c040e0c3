"""Execution of a pipeline.

- `runner`: the `run` command: session, query, retries, stop
- `preflight`: decides where a run starts, or refuses it
- `shared_folders`: checks that a cluster's workers see the driver's folders
- `batch`: one batch: decode, write dead letters, write rows
- `reporter`: progress, group offsets and metrics after each batch
- `metrics`: metrics for Prometheus
- `backoff`: pauses between restarts of a query
"""
