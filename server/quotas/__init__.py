"""Client quotas: bandwidth, request time, changes of topics, and connection rates (KIP-13, KIP-124, KIP-219).

- `entities`: entities with quotas, and their paths in the metadata store
- `keys`: the quotas of each kind of entity
- `rates`: rates over samples, and token buckets
- `limits`: the limit that applies to a client, by Kafka's precedence
- `meters`: the use of a limit by each entity
- `client_quotas`: all quotas of users and client ids
- `charge`: the use of quotas by one request
- `client_charges`: the charges of the requests of one connection
- `switch`: loads the quotas when the first is set
- `mutations`: the quota of changes to topics (KIP-599)
- `ip_rates`: rates of new connections of IP addresses (KIP-612)
- `filters`: filters of DescribeClientQuotas
- `alterations`: changes by AlterClientQuotas
"""
