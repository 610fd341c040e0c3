"""The `validate` command.

- `report`: validation without Spark, and the report
- `spark_analysis`: Spark's analysis of the plan on empty frames
- `spark_checks`: `validate` and `test` with a Spark session
- `connections`: `validate --connect`: topics and subjects
"""
