"""Requests to other brokers of the cluster: implementations of `replication.remote`.

- `request_codec`: encoding of a request and decoding of its response, large ones in slices
- `connection`: one connection: a frame out, a frame in
- `tls`: connections with TLS
- `channel`: a queue of requests to one broker, with timeouts and reconnection
- `channel_pool`: one channel to each live broker
- `batch_loop`: a loop that sends requests in batches
- `controller_client`: requests to the broker that is the controller
- `peer_watch`: idle connections, by which the end of another broker's process is detected
"""
