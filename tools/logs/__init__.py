"""`odradek log`: log directories of Odradek and Apache Kafka, read offline or while a broker uses them, never changed.

- `findings`: what a verification reports
- `directories`: log directories, their partitions, checkpoints and state
- `batches`: batches in a .log file, also behind damage
- `index_files`: entries of index files
- `record_checks`: a batch's header and its records
- `index_checks`: offset index and time index against the batches
- `epoch_checks`: leader-epoch-checkpoint against the batches
- `producer_checks`: producer snapshots and transaction indexes against a replay of the batches
- `partition_state`: what the checks of a partition's segments share
- `segment_check`: all checks of a segment
- `partition_check`: all checks of a partition
- `verify_partition`: repeats the checks if a broker replaces segments meanwhile
- `verify`: all checks of log directories
- `decoding`: control records and the records of internal topics
- `verify_text`: findings as lines
- `dump_batches`: rows of batches and records
- `dump`: rows of all kinds of files
- `text`: rows as lines
"""
