"""Reads of whole partitions.

- `log_reader`: reads of one partition
- `final_reads`: the reads at the end of a run
"""
