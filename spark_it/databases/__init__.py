"""Databases over JDBC, for sources and sinks.

- `jdbc`: connections and statements through JDBC drivers in the JVM
- `dialects`: SQL dialects: upserts, types, and the meaning of errors
- `lossy_types`: column types that change values of a Spark type
"""
