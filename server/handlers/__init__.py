"""Request handlers, one module for each group of APIs. Each declares the parts of the broker that it needs.

- `api_versions`: ApiVersions
- `sasl`: SaslHandshake, SaslAuthenticate after the authentication
- `metadata`: Metadata, DescribeCluster
- `topic_partitions`: DescribeTopicPartitions
- `produce`: Produce
- `fetch`: Fetch
- `list_offsets`: ListOffsets, OffsetForLeaderEpoch
- `delete_records`: DeleteRecords
- `topics`: CreateTopics, DeleteTopics, CreatePartitions
- `configs`: requests about configurations
- `acls`: DescribeAcls, CreateAcls, DeleteAcls
- `scram_users`: DescribeUserScramCredentials, AlterUserScramCredentials
- `elections`: ElectLeaders
- `reassignments`: AlterPartitionReassignments, ListPartitionReassignments
- `quorum`: DescribeQuorum
- `features`: UpdateFeatures
- `log_dirs`: DescribeLogDirs
- `find_coordinator`: FindCoordinator
- `groups`: the classic group protocol, and administration of groups
- `group_offsets`: committed offsets
- `producers`: InitProducerId, DescribeProducers
- `transactions`: requests of transactional producers, and administration of transactions
- `transaction_offsets`: TxnOffsetCommit
- `transaction_markers`: WriteTxnMarkers
- `leaders`: leaders of partitions for responses that refuse a request
- `controller_requests`: requests of brokers to the controller
- `broker_control`: requests of the controller to the brokers of a cluster
"""
