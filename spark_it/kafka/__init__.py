"""Requests to Kafka other than reading and writing records.

- `group`: the interface: topics, their offsets, a group's offsets
- `cluster`: its implementation with confluent-kafka
- `record_sizes`: the size of records, and the largest that a topic accepts
"""
