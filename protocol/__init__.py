"""Kafka's wire format. Pure functions: no I/O, no state.

- `types`: field types of messages
- `schema`: declarations of messages, one class for all versions
- `codec_source`: source text of encoders and decoders, and the functions that it calls
- `decoder_source`: source text of decoders
- `encoder_source`: source text of encoders
- `codec`: compiled encoders and decoders of messages
- `interpreter`: encoding and decoding by walking declarations; the oracle of the tests
- `messages`: the messages, one module for each API
- `headers`: request and response headers
- `framing`: length-prefixed frames
- `errors`: error codes and KafkaError
- `access_control`: codes of access control lists
- `records`: the names of record batches that other packages import
- `batches`: record batches
"""
