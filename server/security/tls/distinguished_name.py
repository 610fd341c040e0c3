"""The distinguished name of a certificate's subject, as Java's `X500Principal.getName()` prints it.

That is the form of RFC 2253: the last attribute first; the attributes that the RFC names by a keyword, all others by
their object identifier with the value as hexadecimal DER. ACLs and mapping rules of Kafka have names in this form, so
the details are those of Java: also `=` and `#` are escaped, text is decoded as UTF-8 whatever its type, and the order
within a multi-valued attribute is that of the certificate.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_OBJECT_IDENTIFIER: Final = 0x06

_TEXT_TAGS: Final = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString. Other values are printed as DER."""

_KEYWORDS: Final = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}
"""Keywords by the DER of their object identifiers."""

_ESCAPED: Final = str.maketrans({**{character: f"\\{character}" for character in ',=+<>#;"\\'}, "\0": "\\00"})
_BLANKS: Final = " \r"


class MalformedCertificateError(ValueError):
    """The bytes are not a certificate."""


class _Value(NamedTuple):
    """A value of DER: its tag, its content, and the whole encoding."""

    tag: int
    content: bytes
    encoding: bytes


def format_subject(certificate: bytes) -> str:
    """Return the name of the subject of a certificate in DER; empty if it has none. Raises MalformedCertificateError.

    OpenSSL has verified the certificate, so its encoding is checked only as far as it is read.
    """
    try:
        [signed, *_] = _read_all(next(_read_all(certificate)).content)
        fields = list(_read_all(signed.content))
        # The version is optional; serial number, algorithm, issuer and validity precede the subject.
        subject = fields[5 if fields[0].tag == _VERSION else 4]
        if subject.tag != _SEQUENCE:
            raise ValueError("the subject is not a sequence")
        return ",".join(map(_format_attributes, reversed(list(_read_all(subject.content)))))
    except (ValueError, IndexError, StopIteration) as error:
        raise MalformedCertificateError(f"the certificate is malformed: {error}") from error


def _format_attributes(attributes: _Value) -> str:
    """Return a relative distinguished name: one attribute, or several with a plus sign between them."""
    return "+".join(map(_format_attribute, _read_all(attributes.content)))


def _format_attribute(attribute: _Value) -> str:
    kind, value = _read_all(attribute.content)
    if kind.tag != _OBJECT_IDENTIFIER:
        raise ValueError("an attribute has no type")
    keyword = _KEYWORDS.get(kind.content)
    if keyword is None:
        return f"{_format_identifier(kind.content)}=#{value.encoding.hex()}"
    if value.tag not in _TEXT_TAGS:
        return f"{keyword}=#{value.encoding.hex()}"
    return f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    escaped = text.translate(_ESCAPED)
    core = escaped.strip(_BLANKS)
    if len(core) == len(escaped):
        return escaped
    if not core:
        return "".join(f"\\{blank}" for blank in escaped)
    before, _, after = escaped.partition(core)
    return "".join(f"\\{blank}" for blank in before) + core + "".join(f"\\{blank}" for blank in after)


def _format_identifier(content: bytes) -> str:
    """Return the dotted form of an object identifier."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _read_all(data: bytes) -> Iterator[_Value]:
    """Iterate over the values of DER that follow each other in `data`. Raises ValueError, IndexError."""
    position = 0
    while position < len(data):
        start = position
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size])
            position += size
        end = position + length
        if end > len(data):
            raise ValueError("a value is longer than its container")
        yield _Value(tag, data[position:end], data[start:end])
        position = end
