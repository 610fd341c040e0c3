"""Checks of a history, one module for each kind of evidence. A check is a function from `Evidence` to violations.

- `checker`: all checks of a history
- `evidence`: the indexed history, and the kinds of violations
- `logs`: contents of partitions: lost, altered and unknown records
- `producers`: duplicates and order of idempotent producers
- `transactions`: atomicity of transactions in the final reads
- `polls`: order, completeness and isolation of fetches
- `ends`: end offsets of partitions
- `lookups`: ListOffsets by timestamp
- `offsets`: committed offsets of groups
- `brief_offsets`: committed offsets with a retention time
- `groups`: ownership of partitions within a generation
- `copies`: read-process-write
- `topics`: deleted topics and deleted records
- `unclean`: topics with unclean leader elections
"""
