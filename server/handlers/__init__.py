"""Request handlers, one module for each group of APIs.

- `api_versions`: ApiVersions
- `metadata`: Metadata, DescribeCluster
- `topic_partitions`: DescribeTopicPartitions
- `produce`: Produce
- `fetch`: Fetch
- `list_offsets`: ListOffsets, OffsetForLeaderEpoch
- `delete_records`: DeleteRecords
- `producers`: InitProducerId, DescribeProducers
- `find_coordinator`: FindCoordinator
- `groups`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and admin requests for groups
- `group_offsets`: OffsetCommit, OffsetFetch, OffsetDelete
- `transactions`: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, and admin requests for transactions
- `transaction_offsets`: TxnOffsetCommit
- `transaction_markers`: WriteTxnMarkers
- `topics`: CreateTopics, DeleteTopics, CreatePartitions
- `configs`: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources
- `features`: UpdateFeatures
- `log_dirs`: DescribeLogDirs
"""
