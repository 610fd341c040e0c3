"""Runtime of the coordinators on the reactor.

- `runtime`: the shards of the partitions that this broker leads
- `context`: a shard and the partition that it writes to
- `loading`: replay of a shard's partition
- `pending_writes`: writes that wait for replication, and their timeouts
- `groups`: the runtime of group coordinators
- `transactions`: the runtime of transaction coordinators
- `interfaces`: interfaces of the next two, which other brokers could implement
- `marker_sender`: writing of COMMIT and ABORT markers
- `transaction_verification`: verification of transactions before an append (KIP-890)
- `partition_count`: the number of partitions of an adopted topic
- `producer_id_blocks`: reserved blocks of producer ids
- `producer_id_floor`: the lowest producer id to allocate after a start
"""
