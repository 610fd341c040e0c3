"""Spark SQL statements, read without Spark.

- `tokens`: tokens of a statement, and the tables and clauses that they show
- `deterministic`: expressions that may differ when a batch is repeated
- `repeatable`: functions of Spark that are deterministic
"""
