"""Coordinators on the reactor.

- `runtime`: shards of the partitions that this broker leads
- `context`: a shard with the partition that it writes to
- `loading`: replay of a shard's partition
- `pending_writes`: writes that wait for replication
- `groups`: the runtime of group coordinators
- `transactions`: the runtime of transaction coordinators
- `interfaces`: interfaces of the next two, which may be on other brokers
- `marker_sender`: COMMIT and ABORT markers
- `transaction_verification`: verification of transactions before an append (KIP-890)
- `partition_count`: the number of partitions of an adopted topic
- `producer_id_blocks`: reserved blocks of producer ids
- `producer_id_floor`: the lowest producer id to allocate after a start
"""
