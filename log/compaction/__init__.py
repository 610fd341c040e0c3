"""Compaction of logs with cleanup.policy=compact.

- `rules`: what remains of each batch
- `offset_map`: the last offset of each key, within bounded memory
- `cleanable`: whether a log is due, and which of its segments are compacted together
- `run`: one compaction of one log, in a thread or a process
- `process`: compaction in a process
- `worker_pipe`: messages between the broker and that process
- `compaction`: one compaction of one log, as the main thread follows it
- `cleaner`: selection of logs, and replacement of segments
"""
