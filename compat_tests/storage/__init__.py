"""Data directories: adoption, compaction, moves between log directories, and disks that fail.

- `disks`: disks for a single test that can be full, read-only, or fail at any moment
- `damage`: damage to the files of a data directory, and the records that may be read afterwards
"""
