"""The metadata store in a ZooKeeper ensemble, through kazoo. Imported only with `zookeeper.connect`.

- `store`: ZooKeeperStore: sessions, reads and writes
- `calls`: requests that wait, are in flight, and are sent again after a connection loss
- `outcomes`: outcome of a write that was interrupted by a connection loss
- `watches`: watches, which are checked and set again after a connection loss
- `requests`: kazoo's requests, results and errors, translated
- `multi_read`: the request for many nodes at once
- `client`: kazoo's client, with results, watch events and session states in the reactor thread, in their order
- `secure_connection`: TLS and SASL of a connection
- `digest_md5`: the SASL mechanism
- `acls`: access to the nodes
- `settings`: `zookeeper.connect` and the timeouts
"""
