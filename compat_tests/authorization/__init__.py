"""ACLs: requests for `test_authorization`, and the two brokers that they are sent to.

- `brokers`: Apache Kafka and Odradek with the same ACLs, and clients with and without rights
- `case`: one request, and the resources that requests name
- `record_cases`: records, offsets in logs, and metadata
- `group_cases`: groups and committed offsets
- `transaction_cases`: transactions and producers
- `admin_cases`: topics, configurations, ACLs and the cluster
- `security_cases`: users, quotas and delegation tokens
- `acl_requests`: requests about ACLs, valid and invalid, for `test_acls`
"""
