"""The cost of TLS, SASL and ACLs: Odradek beside Apache Kafka with equal settings, and beside itself without them.

    python -m benchmarks.security [--quick] [--only NAME] [--rounds N]

- `rows`: the rows, their targets, and the broker beside which each is measured
- `brokers`: brokers with a listener for each security protocol, a user and ACLs
- `handshakes`: the load of new connections, in a separate process
"""
