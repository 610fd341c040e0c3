"""The metadata image, and the metadata store.

- `image`: brokers, topics and partitions as brokers serve them
- `updates`: updates of it, as the controller publishes them
- `topic_names`: valid names, and internal topics
- `broker_configs`: the configuration in force
- `store`: the interface of a metadata store, with ZooKeeper's semantics
- `znode_store`: these semantics over any table of nodes
- `memory_store`: a store in memory
- `znodes`: paths and contents of nodes, as Kafka 3.9 has them
- `loader`: the image, loaded from a store
- `reload`: the image, loaded again after a change with an unknown outcome
- `producer_id_blocks`: reservation of blocks of producer ids
- `kraft_metadata`: Apache Kafka's metadata log
"""
