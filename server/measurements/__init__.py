"""Measurements of requests. `server.metrics` exposes them; the hot path calls them only while something uses them.

- `request_times`: the times that requests spend in each stage
- `authentications`: successful and failed authentications of a listener
- `socket_counts`: connections, bytes, requests and responses of a listener
- `response_errors`: the error codes in responses
"""
