"""Clusters of Odradek's and Apache Kafka 3.9's brokers, and their common layout in ZooKeeper.

- `requests`: requests to the controller, and the metadata of all brokers
"""
