"""Databases over JDBC, for sources and sinks.

- `jdbc`: connections and statements through the JVM's drivers
- `dialects`: SQL dialects: quoting, types, upserts
- `lossy_types`: column types that cannot store every value of a Spark type
"""
