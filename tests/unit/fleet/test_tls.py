"""Connections to servers with TLS: the authority's certificate decides, and its absence is said with the fix."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest

from supervisor.fleet.options import BadFleetOptions, FleetOptions
from tests.fleet_kit import nats_servers

pytestmark = pytest.mark.anyio


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fleet")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = folder / "certificate.pem", folder / "key.pem"
    written[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    written[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return written


async def test_a_server_is_checked_against_its_authority(tmp_path: Path) -> None:
    """With the authority's file a host connects, by either scheme; without it, the message names the option."""
    certificate, key = make_certificate(tmp_path)
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    with nats_servers(tmp_path / "nats", extra=tls) as servers:
        from supervisor.fleet.nats_engine import EngineRefused, NatsEngine

        port = servers.ports[0]
        for scheme in ("tls", "nats"):
            address = f"{scheme}://127.0.0.1:{port}"
            engine = NatsEngine(FleetOptions(servers=(address,), name="f", ca=str(certificate)))
            try:
                assert await engine.directory.keys() == []
            finally:
                await engine.close()
            engine = NatsEngine(FleetOptions(servers=(address,), name="f"))
            try:
                with pytest.raises(EngineRefused, match=r"TLS failed: .*certificate.*; name the file of its authority"):
                    await engine.directory.keys()
            finally:
                await engine.close()


async def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    """A file of authorities that cannot be read is refused before anything is connected."""
    pytest.importorskip("nats")
    from supervisor.fleet.nats_engine import NatsEngine

    with pytest.raises(BadFleetOptions, match="ca: the file cannot be used"):
        NatsEngine(FleetOptions(servers=("tls://a",), ca=str(tmp_path / "none")))
