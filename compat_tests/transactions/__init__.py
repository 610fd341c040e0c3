"""Transactions: client libraries, coordinators and partitions, compared with Apache Kafka."""
