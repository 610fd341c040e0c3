"""Requests about security.

- `sasl`: SaslHandshake, SaslAuthenticate after the authentication
- `acls`: DescribeAcls, CreateAcls, DeleteAcls
- `scram_users`: DescribeUserScramCredentials, AlterUserScramCredentials
- `delegation_tokens`: requests about delegation tokens
"""
