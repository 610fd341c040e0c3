"""Partition logs on disk.

- `config`: topic properties
- `partition_log`: the log of a partition
- `state`: state that the parts of a partition's log share, and its failures
- `append`: appends by clients, coordinators and replication
- `validation`: validation of batches before an append
- `segments`: segments and their indexes, and searches in them
- `flush`: one flush of a log, which syncs outside the log's thread
- `leader_epochs`: start offsets of leader epochs
- `producers`: state of idempotent and transactional producers
- `recovery`: opening a partition's directory
- `retention`: selection of segments to delete
- `log_manager`: all logs of a broker
- `maintenance`: the log manager's background tasks
- `removals`: removal of files in a thread
- `closing`: closing of all logs
- `producer_expiry`: expiry of producers
- `producer_id_search`: search for producer ids in use
- `segment_age`: the age of segments, for retention
- `compaction`: compaction of logs with cleanup.policy=compact
- `storage`: files, directories and checkpoints
- `background`: scheduled work, threads, and pacing
"""
