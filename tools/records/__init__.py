"""Records of `odradek record consume` and `odradek record produce`.

- `errors`: errors of options and of single records
- `record`: a record, and its decoded parts
- `integers`: integers and floats of Kafka's serializers
- `json_values`: JSON of keys and values
- `avro`: Avro values as JSON, with a schema
- `protobuf`: Protobuf messages as JSON, with a descriptor set
- `registry`: client of a schema registry, and the header of its records
- `registered`: records whose schema is in a registry
- `decoding`: keys and values as JSON, by format
- `encoding`: the opposite
- `expressions`: conditions on records, such as `value.amount > 10`
- `positions`: beginning, end, offset, last records or time as offsets
- `formats`: records as lines, JSON or by a template
- `batches`: garbage collection while batches are processed
- `writing`: batches of records to a stream
- `reading`: batches of records from partitions or as a member of a group
- `input`: records from lines, JSON or files
- `producing`: records to a topic, with the errors of single ones
- `checking`: records that are checked and counted instead
"""
