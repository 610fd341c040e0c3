"""Kafka's wire format. Pure functions: no I/O, no state.

- `types`: field types of messages
- `schema`: declarations of messages, one class for all versions
- `codec`: compiled encoders and decoders of messages
- `interpreter`: encoding and decoding by walking declarations; the oracle of the tests
- `messages`: the messages, one module for each API
- `headers`: request and response headers
- `framing`: length-prefixed frames
- `errors`: error codes and KafkaError
- `records`: the names of record batches that other packages import
- `record_batch`: batch headers
- `record_chain`: check of the record lengths in a batch
- `record_reader`: decoded records
- `batch_builder`: construction of batches
- `control_records`: control batches
- `crc`: CRC-32C
- `compression`: the four compression codecs
- `streaming`: decompression and compression in pieces
- `record_stream`: records of a large batch, in steps
- `record_shape`: the layout of a record
- `record_runs`: runs of records with the same layout
"""
