"""Records for pages: read in bounded steps, and decoded for people.

- `schemas`: contents with a schema in a schema registry or a file
- `decoding`: texts of keys, values and headers
- `fetching`: record batches from leaders
- `timestamps`: bounds of the timestamps of partitions
- `scanning`: records around positions in several partitions
"""
