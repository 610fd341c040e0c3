"""Execution of pipelines.

- `runner`: the `run` command: session, query, restarts, stop
- `preflight`: start offsets of a run, and reasons to refuse it
- `shared_folders`: check that a cluster's workers share the driver's folders
- `batch`: one batch: decode, write dead letters, write rows
- `reporter`: progress, group offsets and metrics after each batch
- `metrics`: metrics for Prometheus
- `backoff`: delays between restarts of a query
"""
