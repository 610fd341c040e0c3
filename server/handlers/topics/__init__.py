"""Requests about topics.

- `metadata`: Metadata, DescribeCluster
- `topic_partitions`: DescribeTopicPartitions
- `topic_changes`: CreateTopics, DeleteTopics, CreatePartitions
- `configs`: requests about configurations, also of brokers and other resources
- `log_dirs`: DescribeLogDirs, AlterReplicaLogDirs
"""
