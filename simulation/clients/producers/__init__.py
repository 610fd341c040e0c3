"""Simulated clients that write.

- `values`: unique records and their timestamps
- `batches`: batches with any codec and header
- `produce`: the Produce request
- `plain`: a producer without idempotence
- `idempotent`: an idempotent producer
- `transaction_session`: an instance of a transactional producer
- `transactional`: transactional producers, their crashes and zombies
- `hostile`: a producer of invalid batches
- `flood`: a client that pipelines many requests
"""
