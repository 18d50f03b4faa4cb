"""Certificates of an authority for the ranks of one launch."""

from pathlib import Path

from sketchfed.flower.certificates import write_certificates
from sketchfed.rounds.rank_sockets import Tls


def tls_files(folder: Path) -> Tls:
    """Files for mutual TLS. All ranks on the loopback share one certificate."""
    folder.mkdir()
    write_certificates(folder)
    return Tls(certificate=folder / "server.pem", key=folder / "server.key", authority=folder / "ca.pem")
