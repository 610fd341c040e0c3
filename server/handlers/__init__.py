"""Request handlers, one module for each group of APIs. Each declares the parts of the broker that it needs.

- `records`: Produce, Fetch and other requests about the logs of partitions
- `coordinators`: groups, offsets and transactions, and where they are coordinated
- `topics`: metadata, topics, their configurations and log directories
- `security`: SASL, ACLs, SCRAM users and delegation tokens
- `cluster`: requests between brokers and controller, elections, reassignments
- `api_versions`: ApiVersions
- `client_quotas`: DescribeClientQuotas, AlterClientQuotas
- `telemetry`: GetTelemetrySubscriptions, PushTelemetry
"""
