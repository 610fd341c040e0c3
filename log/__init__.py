"""Partition logs on disk.

- `config`: topic properties
- `partition_log`: the log of a partition
- `state`: state that the parts of a partition's log share, and its failures
- `append`: appends by clients, coordinators and replication
- `roll`: decision to begin a new segment
- `read`: reads and lookups
- `flush`: flushes and the close of a log, which sync outside the log's thread
- `truncation`: changes of a log's start and end
- `deletion`: deletion of segments
- `replacement`: replacement of segments by compacted ones
- `leader_epochs`: start offsets of leader epochs
- `validation`: validation of produced batches
- `segments`: segments and their indexes, and searches in them
- `producers`: state of idempotent and transactional producers
- `empty_log`: creation of a new partition's log
- `recovery`: opening a partition's directory
- `retention`: selection of segments to delete
- `segment_age`: the age of segments, for retention
- `log_manager`: all logs of a broker
- `management`: the parts of the log manager, and its background tasks
- `moves`: moves of replicas between log directories
- `compaction`: compaction of logs with cleanup.policy=compact
- `storage`: files, directories and checkpoints
- `background`: scheduled work, threads, and pacing
"""
