"""Formats of keys and values of records.

- `format`: the interface of a format, and the format for a name
- `raw`: strings and bytes
- `json`: JSON
- `json_patterns`: patterns that recognize JSON values by column
- `json_changes`: detection of JSON values that Spark's parser changes
- `avro`: Avro with a schema registry or a schema file
- `avro_types`: Spark types of Avro schemas
- `avro_plain`: Avro schemas without logical types, for fastavro
- `avro_codec`: encoder and decoder of Avro records
- `protobuf`: Protobuf with a schema registry or a descriptor file
- `columns`: Spark columns for formats that are implemented in Python
- `registry`: client of a schema registry, and Confluent's wire format
- `stored_responses`: registry responses that are stored for a batch
"""
