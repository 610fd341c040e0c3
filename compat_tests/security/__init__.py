"""TLS, SASL, delegation tokens and access to ZooKeeper, with the clients and tools that users have."""
