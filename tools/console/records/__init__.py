"""Records for pages: read in bounded steps, and decoded for people.

- `decoding`: texts of keys, values and headers
- `fetching`: record batches from leaders
- `scanning`: records around positions in several partitions
"""
