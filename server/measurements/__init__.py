"""Measurements of requests. `server.metrics` exposes them; the hot path calls them only while something uses them.

- `request_times`: the times that requests spend in each stage
- `response_errors`: the error codes in responses
"""
