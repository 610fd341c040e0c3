"""Simulated clients. They behave as Kafka's own clients do, and record their operations in a `History`.

- `workload`: the clients of a seed
- `link`: a client's connection, with retries and API versions
- `values`: unique records and their timestamps
- `batches`: batches with any codec and header
- `produce`: the Produce request
- `fetching`: the Fetch request, fetch sessions and positions
- `offsets`: ListOffsets, OffsetFetch, OffsetCommit
- `membership`: a member of a classic group
- `plain`: a producer without idempotence
- `idempotent`: an idempotent producer
- `transaction_session`: an instance of a transactional producer
- `transactional`: transactional producers, their crashes and zombies
- `hostile`: a producer of invalid batches
- `flood`: a client that pipelines many requests
- `assigned`: a consumer of chosen partitions
- `group_consumer`: a consumer in a group
- `copier`: read-process-write
- `brief_offsets`: offsets with a retention time
- `topic_admin`: requests of an administrator
- `topic_owner`: the only client of a topic, which deletes and recreates it
- `group_admin`: deletion of groups
"""
