"""Long work on the reactor thread, and blocking work on threads.

- `clock`: types of the reactor
- `listening_port`: types of its ports
- `next_iteration`: calls in the next iteration of the reactor
- `slices`: generators that run for 2 ms per reactor iteration in total
- `waits`: Deferreds with a description of the wait
- `metadata_pacing`: long changes of the metadata
- `record_work`: long work on records
- `first_metadata`: the wait for the first metadata of a member that has just started
- `delayed_tasks`: coroutines that run after a delay
- `reused_timer`: a timer for waits that follow each other
- `threads`: threads for a bounded amount of work
- `flusher`: acknowledgements that wait for a sync
"""
