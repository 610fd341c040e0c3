"""Files, log directories and checkpoints.

- `filesystem`: the file system's interface and its implementation by the operating system; no other module opens files
- `memory_filesystem`: a file system in memory that simulates crashes and I/O errors
- `page_cache`: how much of a file is in memory, cachestat(2)
- `read_only`: the operating system's files without changes, for tools beside a broker
- `file_lock`: the lock file of a log directory
- `syncfs`: sync of a whole file system, syncfs(2)
- `descriptors`: limit and number of open file descriptors
- `checkpoints`: formats of the small text files of a log directory
- `checkpoint_file`: a checkpoint file of offsets, written by any thread
- `log_directory`: one entry of log.dirs
- `found_directories`: classification of the directories found at start
- `name_sync`: group sync of the directories of new partitions
"""
