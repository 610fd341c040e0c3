"""The simulated machines of brokers, and the network between brokers and clients.

- `clock`: simulated time
- `wall_clock`: the wall clock of a machine
- `threads`: threads of a simulated process
- `disk`: the disk and its failures
- `pipes`: connections, and the client's end
- `broker_sockets`: the broker's end of a connection
- `network`: all ports and connections, with delays and failures
- `client_connection`: the client's end of a connection
- `metadata`: the metadata stores of a single broker
- `zookeeper`: the ensemble that the brokers of a cluster share
- `zookeeper_session`: the session of a broker with the ensemble
- `directories`: an operator's changes of the log directories
- `broker_process`: start, stop, kill and pause of a broker
"""
