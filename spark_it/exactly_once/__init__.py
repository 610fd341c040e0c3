"""Exactly-once writes to topics: each Kafka transaction contains records and the marker that records them as written.

- `slots`: transactional slots, their sink transactions, and the check whether a transaction is written
- `transactions`: writes one transaction
- `markers`: slots and transactions of a batch; claim and renewal of markers
- `fencing`: aborts open transactions of all slots, for a reset
"""
