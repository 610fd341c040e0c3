"""Test cases of a pipeline file (`[[test]]`): given input rows and expected output rows.

- `runner`: execution of cases as streaming queries with the pipeline's plan
- `inputs`: given rows, written as files and read as the frames of sources
- `rows`: rows as JSON, and the comparison of expected and actual rows
"""
