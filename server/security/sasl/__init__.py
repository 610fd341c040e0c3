"""SASL: proofs of a client's identity.

- `mechanism`: the interface of a mechanism
- `mechanisms`: the mechanisms of a listener
- `reloaded_mechanisms`: their replacement when properties change
- `settings`: their properties
- `jaas`: login modules in the configuration
- `jaas_file`: login modules in Java's JAAS files
- `plain`: PLAIN
- `scram`: SCRAM-SHA-256 and SCRAM-SHA-512
- `scram_credentials`: credentials in the metadata store, from which no password can be derived
- `unknown_users`: credentials for users that do not exist
- `token_credentials`: credentials of delegation tokens
- `scram_users`: description and changes of users
- `oauthbearer`: OAUTHBEARER, the package
- `kerberos`: GSSAPI, the package
- `client`: PLAIN and SCRAM on the side of a broker that connects to another
- `inter_broker`: the mechanism between brokers
- `current_login`: its replacement when properties change
"""
