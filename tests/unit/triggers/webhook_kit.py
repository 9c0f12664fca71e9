"""Requests of webhooks as their providers sign them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NOW = 1_800_000_000.0
SECRET = "0123456789abcdef-secret"
STANDARD = "whsec_" + base64.b64encode(b"k" * 32).decode()
PRIVATE = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
PUBLIC = PRIVATE.public_key().public_bytes_raw().hex()
SECRETS = {"github": SECRET, "gitlab": SECRET, "slack": SECRET, "discord": PUBLIC, "generic": SECRET}


def mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def signed(provider: str, document: object, *, at: float = NOW, **more: str) -> tuple[dict[str, str], bytes]:
    """Return headers and body as the provider sends them; *document* may be the body itself, and *more* are further
    headers, with _ for -."""
    body, time = document if isinstance(document, bytes) else json.dumps(document).encode(), str(int(at))
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    match provider:
        case "github":
            ids = {"x-github-hook-id": "7", "x-github-delivery": "d1", "x-github-event": "push"}
            signature = f"sha256={mac(SECRET.encode(), body).hex()}"
            return {**ids, "x-hub-signature-256": signature, **headers}, body
        case "gitlab":
            return {
                "x-gitlab-token": SECRET,
                "x-gitlab-event-uuid": "d1",
                "x-gitlab-event": "Push Hook",
                **headers,
            }, body
        case "standard":
            signature = base64.b64encode(mac(b"k" * 32, f"m1.{time}.".encode() + body)).decode()
            ids = {"webhook-id": "m1", "webhook-timestamp": time}
            return {**ids, "webhook-signature": f"v1,AAAA v1,{signature}", **headers}, body
        case "slack":
            signature = f"v0={mac(SECRET.encode(), f'v0:{time}:'.encode() + body).hex()}"
            return {"x-slack-request-timestamp": time, "x-slack-signature": signature, **headers}, body
        case "discord":
            signature = PRIVATE.sign(time.encode() + body).hex()
            return {"x-signature-timestamp": time, "x-signature-ed25519": signature, **headers}, body
        case _:
            return {"authorization": f"Bearer {SECRET}", "idempotency-key": "k1", **headers}, body
