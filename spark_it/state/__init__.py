"""The state of a pipeline: Spark's checkpoint and the files next to it.

- `files`: atomic writes of files
- `checkpoint`: reader of Spark's checkpoint, without Spark
- `lock`: `pipeline.lock.toml`, which records the definition with which a checkpoint was started
- `pid_lock`: the lock that permits one process at a time
- `progress`: counts of the current or last run
- `new_partitions`: start offsets of partitions that were added to a topic
- `lag`: lag by partition
- `status`: the `status` command
- `reset`: the `reset` command
"""
