"""TLS of listeners and of connections between brokers.

- `settings`: the properties `ssl.*` of one listener
- `key_stores`: keys and certificates in PEM, PKCS12 and JKS files
- `jks`: the format of Java's own key stores
- `contexts`: TLS contexts made from the settings
- `reloaded_context`: a context whose files may be replaced
- `store_changes`: checks of a dynamic change of a key store or trust store
- `cipher_names`: Java's names of cipher suites
- `distinguished_name`: the name of a certificate's subject in Java's form
- `principal_mapping`: principals of clients with certificates
- `certificates`: an authority and certificates for tests
- `layer`: encryption and decryption of one connection, without I/O
"""
