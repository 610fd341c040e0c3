"""Exactly-once writes to topics: one transaction has records and the marker that they are written.

- `slots`: transactional slots, and the transactions that follow one another in a slot
- `transactions`: writes one transaction
- `markers`: slots and transactions of a batch; markers are claimed, renewed and checked
- `fencing`: ends open transactions of all slots, for a reset
"""
