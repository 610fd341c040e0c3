"""Background work.

- `tasks`: work that is due at a time, in short steps, with blocking calls on threads
- `shared_write`: one blocking write at a time, shared by all callers that wait for it
- `parallel`: many blocking calls at once, for start and stop
- `pacing`: limits on the rate and the run time of background work
"""
