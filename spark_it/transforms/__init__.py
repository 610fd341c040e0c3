"""Transforms: the plan from decoded records to the rows of a sink.

- `plan`: expectations and transforms, and the resulting dead letters
- `bypass`: paths from a source to the sink that do not include a table
- `output_mode`: the output mode of a streaming frame
"""
