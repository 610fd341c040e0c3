"""The metadata store, embedded or in ZooKeeper.

- `sqlite`: the embedded store
- `sqlite_file`: its file: opening, durability, errors
- `reserve`: disk space for changes on a full disk
- `erasure`: removed secrets are erased from the files
- `zookeeper`: the store in a ZooKeeper ensemble
"""
