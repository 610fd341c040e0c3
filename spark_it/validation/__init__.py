"""The `validate` command.

- `report`: validation without Spark, and the report
- `spark_analysis`: the whole plan on empty frames, by Spark
- `spark_checks`: `validate` and `test` with a session
- `connections`: `validate --connect`: topics, subjects and tables exist
"""
