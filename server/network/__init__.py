"""Connections and requests.

- `reactor`: Twisted's epoll reactor, with a monotonic clock
- `scheduler`: the order of waiting requests
- `transport`: Twisted's protocol: bytes in, pieces out
- `connection`: requests and responses of a connection, in order
- `produce_fast_path`: repeated produce requests without decoding
- `large_messages`: large requests and responses, in steps
- `write_coalescer`: small responses, sent at the end of a reactor iteration
- `connections`: all open connections
- `connection_quotas`: limits on connections
- `stalls`: connections without progress
- `watchdog`: long reactor iterations
"""
