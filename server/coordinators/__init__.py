"""Runtime of the coordinators on the reactor.

- `runtime`: the shards of the partitions that this broker leads
- `context`: a shard and the partition that it writes to
- `load_waits`: requests that wait for the load of a shard
- `proof_waits`: requests that wait until it is certain that this broker is still the coordinator
- `loading`: replay of a shard's partition
- `pending_writes`: writes that wait for replication, and their timeouts
- `groups`: the runtime of group coordinators
- `transactions`: the runtime of transaction coordinators
- `interfaces`: interfaces of the writing of markers and of verification
- `marker_sender`: writing of COMMIT and ABORT markers
- `remote_markers`: writing of markers in a cluster
- `transaction_verification`: verification of transactions before an append (KIP-890)
- `remote_verification`: verification by coordinators on other brokers
- `partition_count`: the number of partitions of an adopted topic
- `producer_id_blocks`: blocks of producer ids, from the store or from the controller
- `producer_id_floor`: the lowest producer id to allocate after a start
"""
