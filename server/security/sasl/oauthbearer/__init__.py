"""OAUTHBEARER: access tokens, which are signed JSON Web Tokens.

- `jwks`: the keys of an issuer of tokens
- `key_refresh`: keys that are read again
- `jwt_validator`: validation of access tokens
- `exchange`: authentication of a client that presents a token
"""
