"""Requests about the logs of partitions.

- `produce`: Produce
- `fetch`: Fetch
- `list_offsets`: ListOffsets, OffsetForLeaderEpoch
- `delete_records`: DeleteRecords
- `leaders`: leaders of partitions for responses that refuse a request
"""
