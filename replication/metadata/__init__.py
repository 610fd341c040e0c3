"""The metadata image, and the metadata store.

- `image`: the brokers, topics, partitions and configurations of the cluster
- `updates`: updates of the image, published by the controller
- `topic_names`: valid topic names, and internal topics
- `broker_configs`: the effective configuration of a broker and its topics
- `store`: the interface of a metadata store, with ZooKeeper's semantics
- `znode_store`: implementation of these semantics over a table of nodes
- `memory_store`: a store in memory
- `znodes`: paths and contents of nodes, as in Kafka 3.9
- `loader`: loading of the image from a store
- `reload`: update of the image after a change with an unknown outcome
- `change_notices`: notices of changes by other brokers
- `config_follower`: configurations of a cluster member
- `entity_configs`: configurations of users, client ids and IP addresses
- `entity_names`: their names in paths
- `acls`: access control lists
- `delegation_tokens`: delegation tokens
- `scram_secret`: a secret that the brokers of a cluster share
- `producer_id_blocks`: reservation of blocks of producer ids
- `kraft_metadata`: reader of Apache Kafka's metadata log
- `kraft_security`: ACLs, users, quotas and tokens in it
"""
