"""Fetch sessions, reads, and delayed requests.

- `readers`: the last positions of clients, for metrics
- `session_cache`: fetch sessions (KIP-227)
- `requested_partitions`: the partitions in a request
- `reader`: the client that fetches
- `limited_read`: one read of the partitions of a fetch
- `cold_reads`: records that have to be found on the disk
- `response_rows`: errors, topics and leaders in a response
- `read_rights`: the topics that a consumer may read
- `session_watch`: the partitions that a follower's fetch reads
- `purgatory`: delayed fetch and produce requests
"""
