"""Requests to Kafka, other than fetching and producing records.

- `requests`: the interface: topics, their offsets, a group's offsets
- `cluster`: the implementation with confluent-kafka
- `record_sizes`: sizes of records, and the maximum that a topic accepts
"""
