"""The broker process: network, request handlers, configuration and wiring.

- `cli`: the command line
- `broker`: start and stop
- `membership`: a broker alone, or in a cluster
- `environment`: clock, randomness, files, threads and metadata store of a broker
- `services`: the parts that handlers use
- `apis`: the table of APIs
- `dispatch`: the API, version and handler of a request
- `stages`: optional stages between decode and handler
- `config`: broker properties
- `request`: the context of a request, and the replies of a handler
- `produce_request`: functions on Produce requests for several modules
- `refused_batches`: the order of the batches of an idempotent producer after one was refused
- `network`: connections and requests
- `handlers`: one module for each group of APIs
- `fetching`: fetch sessions, delayed fetches, and the read of a fetch
- `coordinators`: coordinators on the reactor
- `brokers`: requests to other brokers
- `work`: long work in slices, and on threads
- `stores`: the metadata store, embedded or in ZooKeeper
- `store_location`: the directory of the metadata store, or the connection to ZooKeeper
- `broker_ids`: broker ids that are generated in ZooKeeper
- `image_cache`: values derived from the metadata image
- `authorized_operations`: operations that a client may perform
- `preloading`: early imports of modules that the first requests need
- `log_format`: the format of log lines
- `cluster_tools`: servers of a cluster on one machine
- `compatibility`: docs/compatibility.md
"""
