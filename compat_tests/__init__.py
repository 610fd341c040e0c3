"""Third-party clients and tools, run against real broker processes.

- `apache_kafka`: Apache Kafka itself: jars, brokers, clusters and command line tools
- `backends`: the brokers that tests run against
- `processes`, `limits`, `tiers`: child processes, time limits, and the tests that `--quick` omits
- `clients`: one interface for three client libraries, and scenarios that run with each of them
- `bad_frames`, `plain_requests`, `transaction_frames`: requests on the wire, one by one
- `sasl_users`, `token_logins`, `http_server`, `metrics_samples`, `pages`: helpers of several folders
- `wire`: input, responses and connections of one broker
- `transactions`: responses of coordinators, and records of transactions
- `storage`: data directories, compaction, moves, and disks that fail
- `kill`: broker processes that are killed under load
- `administration`: Apache Kafka's tools for topics, configurations, quotas and elections
- `tools`: the command line and the console of Odradek
- `security`: TLS, SASL and delegation tokens
- `authorization`: ACLs, and the rights that requests need
- `cluster`: several brokers with ZooKeeper
- `metrics`: metrics, dashboards, alerts and client metrics
- `operation`: the commands of documentation pages, and the files that are installed
"""
