"""Certificates, keys and secrets for a federation on the loopback, as files."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"


def write_certificates(folder: Path) -> None:
    """Write the certificate of an authority that forgets its key, and one for the loopback. Both are valid for a day."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = ("sketchfed loopback authority", "localhost")
    issuer, subject = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in names)
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(issuer_name=issuer, subject_name=name, public_key=key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    signer = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    places = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")])
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    top, leaf = x509.BasicConstraints(ca=True, path_length=0), x509.BasicConstraints(ca=False, path_length=None)
    (folder / "ca.pem").write_bytes(certificate(issuer, authority, top, signer))
    (folder / "server.pem").write_bytes(certificate(subject, server, leaf, places, by))
    write_key(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
