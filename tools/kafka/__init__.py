"""Connections of the user tools to clusters.

- `client_login`: the login of a command at a broker
- `client_security`: TLS and SASL of a client, from its properties as Kafka's tools take them
- `wire_client`: a blocking client for one broker
- `connection_errors`: the failed step of a connection, and what to try
- `profile`: the connection that options, environment and profile file select
- `confluent_settings`: client properties in the names of librdkafka
- `cluster`: requests to a broker, the controller, leaders and coordinators
- `consumer_protocol`: subscriptions and assignments of consumers
- `similar_names`: the nearest names of a misspelt one
- `broker_loggers`: loggers of a broker that have a level of their own
- `configs`: configurations of resources, read from a cluster
- `config_changes`: changes of configurations
- `topic_changes`: creation and deletion of a topic
- `record_production`: production of one record
- `offsets`: offsets of partitions
- `log_dirs`: log directories of brokers
- `group_types`: groups, their members and their lag, as values
- `share_groups`, `streams_groups`: groups of these types
- `groups`: groups with members, committed offsets and lag
- `readers`: clients that fetch, from the metrics of brokers
- `transactions`: transactions of coordinators, and in partitions
- `times`: times and durations in command lines
- `scram_users`: SCRAM users
- `acls`: ACLs
- `quotas`: quotas of clients
- `api_names`: names of APIs
- `status`: the state of a cluster as its clients see it
"""
