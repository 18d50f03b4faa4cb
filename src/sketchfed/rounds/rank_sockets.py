"""Sockets between ranks: addresses, settings of TCP, and mutual TLS."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from sketchfed.errors import InputError, RankError
from sketchfed.rounds.launch import Launch


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files in PEM format with which ranks prove to each other who they are (mutual TLS).

    Any certificate that `authority` signed is accepted, so use an authority that signs for the ranks of one federation only.
    """

    certificate: Path
    key: Path
    authority: Path

    def context(self, *, server: bool) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False  # ranks are found by address, and the authority signs for nobody else
        made.verify_mode = ssl.CERT_REQUIRED
        if server:
            made.num_tickets = 0  # nobody reads them, and a connection that closes unread loses what it sent
        try:
            made.load_verify_locations(self.authority)
            made.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # also of files that hold no certificate
            raise InputError(
                f"the files for TLS cannot be used: {error}. Give a certificate, its key, and the certificate of the authority "
                "that signed it, in PEM format."
            ) from error
        return made


def towards(launch: Launch) -> str:
    """The address of this machine in the network that leads to rank 0."""
    family, kind, protocol, _, address = _resolved(launch.address, launch.port, socket.SOCK_DGRAM)
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.connect(address)  # sends nothing
        except OSError as error:
            raise RankError(
                f"there is no way to MASTER_ADDR {launch.address}: {error.strerror}. Name rank 0's machine."
            ) from error
        return str(probe.getsockname()[0])


def listening(address: str) -> socket.socket:
    """A socket that accepts connections at this address."""
    host, port = parsed_address(address)
    family, kind, protocol, _, place = _resolved(host, port, socket.SOCK_STREAM)
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(128)
    except OSError as error:
        made.close()
        raise RankError(
            f"cannot listen on {address}: {error.strerror}. Name an address of this machine and a free port."
        ) from error
    return made


def _resolved(host: str, port: int, kind: socket.SocketKind) -> tuple[int, int, int, str, tuple[object, ...]]:
    try:
        return socket.getaddrinfo(host, port, type=kind)[0]
    except OSError as error:
        raise RankError(f"there is no address for the host '{host}': {error.strerror}. Correct its name.") from error


def parsed_address(address: str) -> tuple[str, int]:
    """The host and the port in an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise InputError(f"an address is written as host:port, got {address!r}.")
    return host.strip("[]"), int(port)


def tuned(connection: socket.socket, deadline: float) -> None:
    """Send at once, and notice a machine that vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", max(1, int(deadline / 3))),
        ("TCP_KEEPINTVL", max(1, int(deadline / 6))),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", max(1_000, int(1_000 * deadline))),
    ):
        if hasattr(socket, option):  # they are Linux's
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
