"""Authorization of requests: each API needs the operations that the table of APIs declares for it (`server.apis`).

- `stage`: the stage of the request pipeline, and the guard of each API
- `guarding`: the interface of a guard, and the division of a request into allowed and refused rows
- `cluster`: APIs that need operations on the cluster, and WriteTxnMarkers
- `groups`: groups and their members
- `offsets`: committed offsets
- `coordinators`: FindCoordinator
- `produce`: Produce
- `producers`: InitProducerId and DescribeProducers
- `records`: ListOffsets, OffsetForLeaderEpoch and DeleteRecords
- `topics`: CreateTopics, DeleteTopics and CreatePartitions
- `configs`: DescribeConfigs
- `transactions`: transactions
- `transaction_offsets`: TxnOffsetCommit

A guard calls the handler with the part of a request that the client is authorized to, and adds errors for the rest to
the response. Handlers of Fetch, Metadata, DescribeCluster, DescribeTopicPartitions, AlterConfigs and
IncrementalAlterConfigs check rights themselves, by `RequestContext.rights`, because a request cannot be divided before
they process it. Source: Kafka's KafkaApis and ControllerApis.
"""
