"""Compaction of logs with cleanup.policy=compact.

- `rules`: the records of a batch that are retained
- `offset_map`: the last offset of each key, within bounded memory
- `cleanable`: the cleanable part of a log, and the groups of segments to merge
- `run`: a worker's part of a compaction, which reads and writes files
- `process`: a worker in a child process
- `worker_pipe`: messages between the broker and that process
- `compaction`: the main thread's state of a compaction
- `cleaner`: selection of logs, and replacement of segments
"""
