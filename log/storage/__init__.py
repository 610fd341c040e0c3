"""Files, log directories and checkpoints.

- `filesystem`: the interface of the file system, and the operating system's; no other module opens files
- `memory_filesystem`: a file system in memory that crashes and fails on command
- `file_lock`: the lock file of a log directory
- `syncfs`: syncfs(2)
- `descriptors`: limit and number of file descriptors
- `checkpoints`: formats of the small text files of a log directory
- `checkpoint_file`: a checkpoint of offsets, written by any thread
- `log_directory`: one entry of log.dirs
- `found_directories`: directories found at start, and what each is
- `name_sync`: directories of new partitions, made durable together
"""
