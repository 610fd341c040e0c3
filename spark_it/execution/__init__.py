"""Execution of a pipeline.

- `runner`: the `run` command: session, query, restarts, stop
- `preflight`: determines the start offsets of a run, or refuses it
- `shared_folders`: checks that a cluster's workers share the driver's folders
- `batch`: one batch: decode, write dead letters, write rows
- `reporter`: progress, group offsets and metrics after each batch
- `metrics`: metrics for Prometheus
- `backoff`: delays between restarts of a query
"""
