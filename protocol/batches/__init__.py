"""Record batches (magic 2).

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
