"""Signatures of webhooks: genuine requests of each provider, forged ones, and requests that make verifiers raise."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.triggers.signatures import Forged, Malformed, Provider, Received, check_secret, receive
from tests.unit.triggers.webhook_kit import NOW, SECRET, SECRETS, STANDARD, signed


def take(provider: str, headers: Mapping[str, str], body: bytes, now: float = NOW) -> Received:
    if provider == "standard":
        return receive(Provider.GITLAB, STANDARD, headers, body, now)
    return receive(Provider(provider), SECRETS[provider], headers, body, now)


GENUINE: list[tuple[str, dict[str, Any], str, str]] = [
    ("github", {"ref": "x"}, "7:d1", "push"),
    ("gitlab", {"ref": "x"}, "d1", "Push Hook"),
    ("standard", {"ref": "x"}, "m1", ""),
    ("slack", {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}, "Ev1", "app_mention"),
    ("discord", {"type": 2, "id": "99", "data": {"name": "fix"}}, "99", "fix"),
    ("generic", {"event": "go"}, "k1", "go"),
]


@pytest.mark.parametrize(("provider", "document", "delivery", "event"), GENUINE)
def test_a_genuine_request_is_read(provider: str, document: dict[str, Any], delivery: str, event: str) -> None:
    """A request as its provider sends it has the provider's id of the delivery, its event, and its document."""
    headers, body = signed(provider, document)
    assert take(provider, headers, body) == Received(delivery, event, document)


@pytest.mark.parametrize(("provider", "document", "delivery", "event"), GENUINE)
def test_a_forged_request_is_refused(provider: str, document: dict[str, Any], delivery: str, event: str) -> None:
    """A changed body, a missing header, and a signature that is empty, cut, no number or no text are all forged: no
    other error comes out."""
    headers, body = signed(provider, document)
    secret = [name for name in headers if "signature" in name or name in ("x-gitlab-token", "authorization")]
    secret += [name for name in headers if "timestamp" in name]
    for name in secret:
        for value in ("", "x", headers[name][:-1], headers[name] + "0", "v1,é", "sha256=\udcff", "9" * 400, "Bearer"):
            with pytest.raises(Forged):
                take(provider, {**headers, name: value}, body)
        with pytest.raises(Forged):
            take(provider, {one: value for one, value in headers.items() if one != name}, body)
    if provider not in ("gitlab", "generic"):  # which send a token, and sign nothing
        with pytest.raises(Forged):
            take(provider, headers, body + b" ")


@pytest.mark.parametrize("provider", ["standard", "slack", "discord"])
def test_an_old_request_is_refused(provider: str) -> None:
    """A signed time that is more than five minutes away, before or after, is refused with a right signature."""
    for away, is_taken in [(-301, False), (-300, True), (300, True), (301, False)]:
        headers, body = signed(provider, {"event_id": "e", "id": "1"}, at=NOW + away)
        if is_taken:
            assert take(provider, headers, body).delivery
        else:
            with pytest.raises(Forged):
                take(provider, headers, body)


@pytest.mark.parametrize(
    ("provider", "document", "more", "reply"),
    [
        ("slack", {"type": "url_verification", "challenge": "3eZb"}, {}, {"challenge": "3eZb"}),
        ("discord", {"type": 1, "id": "5"}, {}, {"type": 1}),
        ("github", {"zen": "ok"}, {"x_github_event": "ping"}, {"pong": True}),
    ],
)
def test_questions_of_a_provider_are_answered(
    provider: str, document: dict[str, Any], more: dict[str, str], reply: dict[str, Any]
) -> None:
    """The question with which a provider checks an address is answered in its form, and starts nothing; a forged one
    is not answered."""
    headers, body = signed(provider, document, **more)
    assert take(provider, headers, body).reply == reply
    with pytest.raises(Forged):
        take(provider, headers, body + b"\n")


@pytest.mark.parametrize(
    ("provider", "content", "gone", "message"),
    [
        ("generic", b"payload=%7B%7D", "", "is not JSON"),
        ("generic", b"[" * 100_000, "", "is not JSON"),
        ("generic", b"[1]", "", "is not a JSON object"),
        ("gitlab", b"{}", "x-gitlab-event-uuid", "id of the delivery is missing"),
    ],
)
def test_a_malformed_request_is_no_forged_one(provider: str, content: bytes, gone: str, message: str) -> None:
    """A body that is no JSON object, or a delivery without an id, is malformed, once the token was right."""
    headers, _ = signed(provider, {})
    with pytest.raises(Malformed, match=message):
        take(provider, {name: value for name, value in headers.items() if name != gone}, content)


def test_two_hooks_with_one_delivery_id_are_two_deliveries() -> None:
    """GitHub gives one delivery id to the requests of two hooks for one event: the id of the hook is part of ours."""
    found = {take("github", *signed("github", {}, x_github_hook_id=hook)).delivery for hook in ("7", "8")}
    assert found == {"7:d1", "8:d1"}
    headers, body = signed("github", {})
    del headers["x-github-hook-id"]
    with pytest.raises(Malformed):
        take("github", headers, body)


@pytest.mark.parametrize(
    ("provider", "secret", "message"),
    [
        ("github", "short", "has 5 bytes; give 16 or more"),
        ("generic", "", "has 0 bytes; give 16"),
        ("gitlab", "whsec_secret", "is no signing token; give whsec_"),
        ("gitlab", "whsec_" + base64.b64encode(b"k" * 4).decode(), "is no signing token"),
        ("discord", SECRET, "is no public key of a Discord application; give its 64"),
        ("discord", "00" * 31, "is no public key"),
    ],
)
def test_weak_secrets_are_refused(provider: str, secret: str, message: str) -> None:
    """A secret that is too short, or no key of its provider, is refused when the trigger is defined."""
    with pytest.raises(ValueError, match=message):
        check_secret(Provider(provider), secret)


def test_good_secrets() -> None:
    """Secrets of each provider, and the signing token of GitLab, are accepted."""
    for provider in Provider:
        check_secret(provider, SECRETS[provider])
    check_secret(Provider.GITLAB, STANDARD)


SIGNED = (
    *("x-hub-signature-256", "x-gitlab-token", "webhook-id", "webhook-timestamp", "webhook-signature"),
    *("x-slack-signature", "x-slack-request-timestamp", "x-signature-ed25519", "x-signature-timestamp"),
    "authorization",
)
"""Headers that the verification reads."""


@given(
    provider=st.sampled_from(list(Provider)),
    headers=st.dictionaries(st.sampled_from(SIGNED), st.text(max_size=40)),
    body=st.binary(max_size=60),
)
def test_no_request_of_a_stranger_raises_another_error(
    provider: Provider, headers: dict[str, str], body: bytes
) -> None:
    """A request of a stranger is forged, with any headers and any body."""
    with pytest.raises(Forged):
        receive(provider, SECRETS[provider], headers, body, NOW)
