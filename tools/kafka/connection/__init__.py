"""Connections of the user tools to brokers.

- `profile`: the connection that options, environment and profile file select
- `client_security`: TLS and SASL of a client, from its properties as Kafka's tools take them
- `client_login`: the login of a command at a broker
- `wire_client`: a blocking client for one broker
- `connection_errors`: the failed step of a connection, and what to try
- `confluent_settings`: client properties in the names of librdkafka
"""
