"""The state of a pipeline: files beside Spark's checkpoint.

- `files`: atomic writes of files
- `checkpoint`: Spark's checkpoint, read without Spark
- `lock`: `pipeline.lock.toml`, which records what a checkpoint was started with
- `pid_lock`: one process at a time
- `progress`: the last batch's figures
- `new_partitions`: start offsets of partitions that were added to a topic
- `lag`: lag by partition
- `status`: the `status` command
- `reset`: the `reset` command
"""
