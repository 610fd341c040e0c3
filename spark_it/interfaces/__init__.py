"""Interfaces and types that the other packages share.

- `kafka_types`: partitions, offsets and headers
- `marker`: markers, which record that a batch was written
- `source`: the interface of a source
- `sink`: the interface of a sink
"""
