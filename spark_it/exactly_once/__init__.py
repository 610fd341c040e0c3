"""Exactly-once writes to topics: each Kafka transaction contains records and the marker that records them as written.

- `slots`: transactional slots, their sink transactions, and the check whether a transaction is already written
- `transactions`: clients, and the steps of one transaction
- `markers`: slots and transactions of a batch; claim and renewal of markers
- `fencing`: abort of the open transactions of all slots, for a reset
"""
