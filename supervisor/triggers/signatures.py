"""Signatures of webhooks: whether a request comes from whoever knows the secret, and which delivery it is. Pure.

Every provider's own verification over the raw bytes of the body, with comparisons that take the same time for every
input. Whatever is wrong with a signature, also a malformed one, is ``Forged``: no input of a sender raises another
error. Nothing of the body is read before its signature is checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

AGE_S: Final = 300.0
"""Seconds that a signed time may differ from ours."""
SECRET_BYTES_MIN: Final = 16
STANDARD_PREFIX: Final = "whsec_"
"""Prefix of a key of the Standard Webhooks scheme, which GitLab also has."""
_STANDARD_BYTES: Final = range(24, 65)
_ID_CHARS_MAX: Final = 100


class Provider(StrEnum):
    """Sender of webhooks, which decides how a request is signed, and how it is read."""

    GITHUB = "github"
    GITLAB = "gitlab"
    SLACK = "slack"
    DISCORD = "discord"
    GENERIC = "generic"


Headers = Mapping[str, str]
"""Headers of a request, with names in lower case."""


class Forged(Exception):
    """Error: the request is not from whoever knows the secret; its body must not be read."""


class Malformed(Exception):
    """Error: the signature is right, and the request is none that the provider sends."""


class Received(NamedTuple):
    """Genuine request: the id of its delivery, the name of its event, and its document. With a *reply* the request is
    a question of the provider that is answered with it, and starts nothing."""

    delivery: str
    event: str
    document: Mapping[str, Any]
    reply: Mapping[str, Any] | None = None


def check_secret(provider: Provider, secret: str) -> None:
    """Check the length and the form of a secret.

    Raises:
        ValueError: the secret is too short, or is no key of this provider.
    """
    if provider is Provider.DISCORD:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(secret))
        except ValueError:
            raise ValueError("is no public key of a Discord application; give its 64 hexadecimal digits") from None
    elif provider is Provider.GITLAB and secret.startswith(STANDARD_PREFIX):
        if len(_standard_key(secret)) not in _STANDARD_BYTES:
            raise ValueError("is no signing token; give whsec_ and the base64 of 24 to 64 bytes, as GitLab shows it")
    elif len(secret.encode()) < SECRET_BYTES_MIN:
        advice = f"give {SECRET_BYTES_MIN} or more, such as `openssl rand -hex 32`"
        raise ValueError(f"has {len(secret.encode())} bytes; {advice}")


def receive(provider: Provider, secret: str, headers: Headers, body: bytes, now: float) -> Received:
    """Verify a request, and read it. *now* is Unix time. The id of the delivery is ``""`` if the sender has given
    none, which only ``generic`` allows: then each request is another delivery.

    Raises:
        Forged: the signature or the token is missing or wrong, or its time is too far from *now*.
        Malformed: the document, or the id of the delivery, is missing or unusable.
    """
    scheme = _SCHEMES[provider]
    try:
        is_genuine = scheme.check(secret, headers, body, now)
    except (ValueError, KeyError, OverflowError) as error:  # a header that is no number, no text or not there
        raise Forged(f"the signature cannot be read: {type(error).__name__}") from None
    if not is_genuine:
        raise Forged("the signature or the token is wrong, or too old")
    try:
        document = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise Malformed("body: is not JSON; let the provider send application/json") from None
    if not isinstance(document, dict):
        raise Malformed("body: is not a JSON object; send one")
    found = scheme.read(headers, document)
    is_missing = not found.delivery and provider is not Provider.GENERIC
    if is_missing or len(found.delivery) > _ID_CHARS_MAX or not found.delivery.isprintable():
        raise Malformed(f"the id of the delivery is missing, or longer than {_ID_CHARS_MAX} characters")
    return found


# -------------------------------------------------------------------------------------------------------- signatures
def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))


def _is_recent(time: str, now: float) -> bool:
    return abs(now - int(time)) <= AGE_S


def _check_github(secret: str, headers: Headers, body: bytes, now: float) -> bool:
    return _is_same(headers["x-hub-signature-256"], f"sha256={_mac(secret.encode(), body).hex()}")


def _check_gitlab(secret: str, headers: Headers, body: bytes, now: float) -> bool:
    if not secret.startswith(STANDARD_PREFIX):
        return _is_same(headers["x-gitlab-token"], secret)
    message_id, time = headers["webhook-id"], headers["webhook-timestamp"]
    signed = _mac(_standard_key(secret), f"{message_id}.{time}.".encode() + body)
    expected = f"v1,{base64.b64encode(signed).decode()}"
    matches = [_is_same(one, expected) for one in headers["webhook-signature"].split()]
    return any(matches) and _is_recent(time, now)


def _standard_key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)
    except binascii.Error:
        return b""


def _check_slack(secret: str, headers: Headers, body: bytes, now: float) -> bool:
    time = headers["x-slack-request-timestamp"]
    signed = _mac(secret.encode(), b"v0:" + time.encode() + b":" + body)
    return _is_same(headers["x-slack-signature"], f"v0={signed.hex()}") and _is_recent(time, now)


def _check_discord(secret: str, headers: Headers, body: bytes, now: float) -> bool:
    from cryptography.exceptions import InvalidSignature

    time, signature = headers["x-signature-timestamp"], bytes.fromhex(headers["x-signature-ed25519"])
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(secret)).verify(signature, time.encode() + body)
    except InvalidSignature:
        return False
    return _is_recent(time, now)


def _check_generic(secret: str, headers: Headers, body: bytes, now: float) -> bool:
    scheme, _, token = headers["authorization"].partition(" ")
    return _is_same(token.strip(), secret) and scheme.lower() == "bearer"


# ----------------------------------------------------------------------------------------------------------- documents
def _read_github(headers: Headers, document: Mapping[str, Any]) -> Received:
    hook, delivery = headers.get("x-github-hook-id", ""), headers.get("x-github-delivery", "")
    event = headers.get("x-github-event", "")
    # Two hooks of one repository send one event with the same delivery id.
    found = f"{hook}:{delivery}" if hook and delivery else ""
    return Received(found, event, document, {"pong": True} if event == "ping" else None)


def _read_gitlab(headers: Headers, document: Mapping[str, Any]) -> Received:
    names = ("webhook-id", "idempotency-key", "x-gitlab-event-uuid")
    delivery = next((headers[name] for name in names if headers.get(name)), "")
    return Received(delivery, headers.get("x-gitlab-event", ""), document)


def _read_slack(headers: Headers, document: Mapping[str, Any]) -> Received:
    if document.get("type") == "url_verification":
        challenge = document.get("challenge")
        return Received("url_verification", "url_verification", document, {"challenge": str(challenge)[:_ID_CHARS_MAX]})
    inner = document.get("event")
    event = inner.get("type") if isinstance(inner, dict) else document.get("type")
    return Received(str(document.get("event_id") or ""), str(event or ""), document)


def _read_discord(headers: Headers, document: Mapping[str, Any]) -> Received:
    delivery = str(document.get("id") or "")
    if document.get("type") == 1:
        return Received(delivery or "ping", "ping", document, {"type": 1})
    data = document.get("data")
    return Received(delivery, str(data.get("name") or "") if isinstance(data, dict) else "", document)


def _read_generic(headers: Headers, document: Mapping[str, Any]) -> Received:
    return Received(headers.get("idempotency-key", ""), str(document.get("event") or ""), document)


# ----------------------------------------------------------------------------------------------------------- providers
class _Scheme(NamedTuple):
    check: Callable[[str, Headers, bytes, float], bool]
    read: Callable[[Headers, Mapping[str, Any]], Received]


_SCHEMES: Final = {
    Provider.GITHUB: _Scheme(_check_github, _read_github),
    Provider.GITLAB: _Scheme(_check_gitlab, _read_gitlab),
    Provider.SLACK: _Scheme(_check_slack, _read_slack),
    Provider.DISCORD: _Scheme(_check_discord, _read_discord),
    Provider.GENERIC: _Scheme(_check_generic, _read_generic),
}
