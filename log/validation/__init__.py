"""Validation of produced batches.

- `batch`: checks of a batch, in Kafka's order and with its errors
- `record`: checks of a record
- `long_batch`: checks of a batch that takes longer than one step
"""
