"""Pages, commands and scrapes of metrics with few and with many topics, groups and partitions, on Odradek alone.

    python -m benchmarks.scale pages [--rounds N] [--topics N] [--groups N] [--wide N]
    python -m benchmarks.scale commands [--rounds N] [--topics N]
    python -m benchmarks.scale scrapes [--rounds N] [--partitions N]

- `filling`: topics, groups, transactional ids, ACLs, users and quotas, in few requests
- `pages`: the pages of the console, each with data that is read again, with few and with many topics
- `commands`: the commands that list and describe
- `scrapes`: /metrics, and the delays of another client meanwhile
- `timing`: medians and tables
"""
