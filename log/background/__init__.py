"""Background work.

- `tasks`: scheduled work in short steps, with blocking calls on threads
- `shared_write`: group commit: one blocking write at a time, shared by all callers that wait for it
- `parallel`: concurrent blocking calls, for start and stop
- `histogram`: durations, for metrics
- `pacing`: limits on the I/O rate and the processor use of background work
"""
