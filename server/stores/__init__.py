"""The embedded metadata store.

- `sqlite`: the store
- `sqlite_file`: its file: opening, durability, errors
- `reserve`: disk space for changes on a full disk
"""
