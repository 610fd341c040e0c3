"""Static analysis of Spark SQL statements, without Spark.

- `tokens`: tokenizer; tables and stateful clauses of a statement
- `deterministic`: expressions that may differ when a batch is repeated
- `repeatable`: Spark functions that are deterministic
"""
