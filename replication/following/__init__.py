"""Replication from leaders: fetching, truncation and backoff of the partitions that this broker follows.

- `settings`: the configuration and the parts of a broker that fetchers use
- `drop_behind`: what is copied long after it was written does not stay in memory
- `fetched_partition`: the states of a partition that is fetched
- `fetch_session`: the fetcher's side of a fetch session (KIP-227)
- `offset_reset`: the choice of a new fetch offset after OFFSET_OUT_OF_RANGE
- `fetcher`: the loop that fetches from one leader
- `fetcher_manager`: the fetchers of a broker, and the assignment of partitions to them
"""
