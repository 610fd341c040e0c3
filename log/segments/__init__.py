"""Segments, their indexes, and searches in them.

- `segment_files`: names of a segment's files, and their removal
- `segment`: a .log file with its indexes
- `index`: offset index and time index
- `transaction_index`: aborted transactions of a segment
- `transaction_index_check`: comparison of a transaction index with the batches its entries point to
- `epoch_check`: comparison of leader epochs with the batches at their starts
- `segment_scan`: check of all batches of a segment, for recovery
- `timestamps`: search for records by timestamp
"""
