"""Clusters of three brokers: Odradek and Apache Kafka 4.3.0 side by side, in one run, under the same load.

    python -m benchmarks.cluster                    all rows, 5 rounds; takes about an hour
    python -m benchmarks.cluster --quick            3 rounds, short windows, 1 GB instead of 5; about 20 minutes
    python -m benchmarks.cluster --only produce     rows by name or by a prefix of it; `--list` prints the names
    python -m benchmarks.cluster --baseline DIR     beside another checkout of Odradek

docs/benchmarks.md explains the rows.

- `rows`: the rows and their targets
- `clusters`: the clusters under test
- `topics`: topics, and the state of their partitions as a broker reports it
- `contestant`: a running cluster in the measurements
- `load`: produce throughput, latency and CPU
- `failover`: the loss of a leader
- `partitions`: creation of many partitions, and the memory for them
- `catch_up`: a follower that was down
"""
