"""Connections and requests.

- `reactor`: Twisted's epoll reactor, with a monotonic clock
- `scheduler`: the order of waiting requests
- `transport`: Twisted's protocol: received bytes, and pieces to send
- `tls`: connections with TLS
- `writers`: writers of responses
- `connection_transport`: interfaces between a connection and its transport
- `connection`: requests and responses of a connection, in order
- `connection_state`: states of a connection
- `sasl`: authentication of a client before its requests
- `sasl_state`: states of an authentication
- `request_pipeline`: the stages of a request, from frame to response
- `produce_fast_path`: produce requests like an earlier one, without decoding
- `large_messages`: large requests and responses, in steps
- `connections`: all open connections
- `connection_quotas`: limits on connections
- `throttled_connection`: connections above the rate of their address
- `stalls`: connections without progress
- `request_measurement`: measurement of requests for the request log
- `watchdog`: long reactor iterations
"""
