"""Transforms: from decoded records to the rows of a sink.

- `plan`: expectations and transforms, and the dead letters that they make
- `bypass`: paths from a source to the sink around a table
- `output_mode`: the output mode of a streaming frame
"""
