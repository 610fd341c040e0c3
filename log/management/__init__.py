"""Parts of the log manager.

- `settings`: the broker's properties that the log manager uses
- `log_table`: the logs of a broker, and partitions that are found but not served
- `log_directories`: log directories that are online, and failures that take one offline
- `loading`: opening of all logs at start
- `new_log_files`: files of logs that are about to be created, made in a thread
- `creation`: creation of logs
- `retirement`: deletion of logs, and strays
- `closing`: close of all logs
- `checkpoint_task`: checkpoints of offsets
- `retention_task`: deletion of old segments
- `age_verifier`: reading of records to find a segment's age
- `removals`: removal of files in a thread
- `flush_task`: flushes
- `producer_expiry`: expiry of producers
- `producer_id_record`: the reserved producer ids, recorded in the log directories
- `producer_id_search`: search for producer ids in use
"""
