"""Records for pages: read in bounded steps, and decoded for people.

- `schemas`: contents with a schema in a schema registry
- `decoding`: texts of keys, values and headers
- `fetching`: record batches from leaders
- `scanning`: records around positions in several partitions
"""
