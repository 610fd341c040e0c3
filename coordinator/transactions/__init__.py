"""The transaction coordinator: one shard for each partition of `__transaction_state`.

- `shard`: the public class, which dispatches requests, replays records and runs timers
- `shard_state`: state that the modules of a shard share
- `settings`: the coordinator's numeric settings
- `records`: keys and values of `__transaction_state`
- `responses`: responses, by error and API version
- `transaction`: a transactional id and its state machine
- `init`: InitProducerId
- `partitions`: AddPartitionsToTxn, AddOffsetsToTxn
- `ending`: EndTxn, and aborts by the coordinator
- `markers`: transaction markers, and the record that completes a transaction
- `expiry`: transaction timeouts, and expiry of unused transactional ids
- `admin`: DescribeTransactions, ListTransactions
- `producer_ids`: allocation of producer ids from reserved blocks
"""
