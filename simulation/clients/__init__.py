"""Simulated clients. They behave as Kafka's own clients do, and record their operations in a `History`.

- `workload`: the clients of a seed
- `link`: a client's connection, with retries and API versions
- `cluster_connection`: a client's connection to a cluster, which follows leaders and coordinators
- `lasting_connection`: a connection for setup and final reads
- `producers`: clients that write
- `consumers`: clients that read, and members of groups
- `topic_admin`: requests of an administrator
- `topic_owner`: the only client of a topic, which deletes and recreates it
- `group_admin`: deletion of groups
- `cluster_operator`: reassignments, elections, changed properties, and topics that come and go
- `config_changer`: changed properties of topics and brokers, and throttles of replication
- `unclean_elector`: elections of replicas outside the ISR
- `replica_mover`: moves of replicas between the log directories of their brokers
"""
