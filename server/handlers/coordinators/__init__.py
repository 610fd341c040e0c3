"""Requests about groups, offsets and transactions.

- `find_coordinator`: FindCoordinator
- `groups`: the classic group protocol, and administration of groups
- `group_offsets`: committed offsets
- `producers`: InitProducerId, DescribeProducers
- `transactions`: requests of transactional producers, and administration of transactions
- `transaction_offsets`: TxnOffsetCommit
- `transaction_markers`: WriteTxnMarkers
"""
