"""OAUTHBEARER: access tokens, which are signed JSON Web Tokens.

- `claims`: parsing of tokens
- `issuer_urls`: URLs of an issuer of tokens
- `issuer_context`: the certificates that are trusted at an issuer
- `response_deadline`: the deadline of a response of an issuer
- `jwks`: the keys of an issuer
- `key_refresh`: keys that are read again
- `jwt_validator`: validation of access tokens
- `exchange`: authentication of a client that presents a token
- `access_tokens`: the broker's own tokens
- `assertions`: signed assertions of the broker's identity
- `grants`: the forms of requests of tokens
- `token_endpoint`: the request of a token
- `retrievers`: the function that obtains a token, made from the configuration
- `unsecured_tokens`: unsigned tokens
- `token_login`: the current token, renewed before it expires
- `client`: authentication of this broker at others
"""
