"""Formats of keys and values of records.

- `format`: the interface of a format, and the format for a name
- `raw`: strings and bytes
- `json`: JSON
- `json_patterns`: patterns that recognize JSON values by column
- `json_changes`: JSON values that Spark would change when it reads them
- `avro`: Avro with a schema registry or a schema file
- `avro_types`: Spark types of Avro schemas
- `avro_plain`: Avro schemas that fastavro reads and writes without conversion
- `avro_codec`: encodes and decodes Avro
- `protobuf`: Protobuf with a schema registry or a descriptor file
- `columns`: formats written in Python, as columns of Spark
- `registry`: client of a schema registry
- `decisions`: answers of a registry that hold for a whole batch
"""
