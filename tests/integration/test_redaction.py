"""Redaction of secrets in the journal, the transcript and the logs, by the name of their variable and by their form."""

from __future__ import annotations

import logging
import os
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import open_supervisor
from supervisor.diagnostics.event_replay import KINDS
from supervisor.journal.transcript import RedactingTranscript
from supervisor.lifecycles.events import SessionExited, TurnRequested
from supervisor.lifecycles.types import Exit, Verdict
from supervisor.plans import AgentConfig
from supervisor.policies.redaction import (
    KEY_CHARS_MAX,
    MARK_CHARS_MAX,
    TRUSTED_FIELDS,
    KnownSecrets,
    Redactor,
    StreamRedactor,
    is_secret_name,
)
from supervisor.ports.logs import conceal, get_logger

SECRET = "hunter2-hunter2"
ENVIRONMENT = {"MY_API_KEY": SECRET, "HOME": "/home/somebody", "PIN_TOKEN": "1234"}
LOOKS = (
    "sk-ant-api03-" + "a1B2" * 8,
    *(f"gh{kind}_" + "a" * 36 for kind in "pousr"),
    "github_pat_" + "a" * 22,
    "glpat-" + "a" * 20,
    "AKIA" + "A1" * 8,
    "ASIA" + "A1" * 8,
    "xoxb-" + "1" * 12,
    "AIza" + "x" * 35,
    "npm_" + "a" * 36,
    "pypi-" + "a" * 40,
    "eyJ" + "a" * 12 + ".eyJ" + "b" * 12 + "." + "c" * 12,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
)

SPACED = ("https://joe:pw99@host", "Bearer 0123456789abcdefghij", "://", "Bearer")


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "db_passwd", "AWS_SECRET_ACCESS_KEY"),
        *("Authorization", "X-Api-Key", "Cookie"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    """The name of an environment variable, or of a header of an MCP server, with a word such as TOKEN or Api-Key marks
    its value as a secret."""
    assert is_secret_name(name)


def test_a_secret_that_utf_8_cannot_encode_is_redacted() -> None:
    """A secret that UTF-8 cannot encode is redacted raw and escaped; other text that UTF-8 cannot encode is escaped."""
    redactor = Redactor([{"API_TOKEN": os.fsdecode(b"p\xe4ssw\xf6rd-1234567")}])
    secret = "p\udce4ssw\udcf6rd-1234567"
    assert redactor.text(f"caf\udce9: {secret}, {secret!r}") == r"caf\udce9: $API_TOKEN, '$API_TOKEN'"
    stream = StreamRedactor(redactor)
    told = [stream.feed(one) for one in ("so: p\udce4ss", "w\udcf6rd-1234567 and on")]
    assert "".join([*told, stream.end()]) == "so: $API_TOKEN and on"


@pytest.mark.parametrize("name", ["HOME", "KEYBOARD", "TOKENIZERS", "AUTHOR", "PATH", "MONKEY"])
def test_names_that_only_resemble_secrets(name: str) -> None:
    """A name that only resembles that of a secret, such as TOKENIZERS, does not mark its value as a secret."""
    assert not is_secret_name(name)


def test_a_value_becomes_the_name_of_its_variable() -> None:
    """A secret is replaced by ``$`` and the name of its variable; short values, and values of variables without a
    secret's name, are not redacted."""
    redactor = Redactor([ENVIRONMENT])
    assert redactor.text(f"with {SECRET}!") == "with $MY_API_KEY!"
    assert redactor.text("/home/somebody has 1234 files") == "/home/somebody has 1234 files"


def test_of_several_values_the_first_and_the_longest_is_replaced() -> None:
    """Of secrets that begin at the same place, the longest is replaced; what follows is searched on from its end. A
    known value comes before a text that only looks like a secret."""
    redactor = Redactor([{"A_KEY": "abcdefgh"}, {"B_KEY": "abcdefgh-ijkl"}, {"C_KEY": "ijkl-mnop"}])
    assert redactor.text("abcdefgh abcdefgh-ijkl-mnop ijkl-mnop") == "$A_KEY $B_KEY-mnop $C_KEY"
    known = "sk-" + "a" * 30
    assert Redactor([{"D_KEY": known}]).text(f"{known} sk-{'b' * 30}") == "$D_KEY [redacted]"


@pytest.mark.parametrize("seed", range(20))
def test_values_are_found_as_by_a_pattern_of_all(seed: int) -> None:
    """Texts of pieces of secrets are redacted as one regular expression of all values would do it."""
    chance = random.Random(seed)
    values = {"".join(chance.choices("ab", k=chance.randint(8, 12))): f"N{one}_KEY" for one in range(12)}
    pattern = re.compile("|".join(sorted(values, key=len, reverse=True)))
    text = "".join(chance.choices([*values, "a", "b", " "], k=200))
    redactor = Redactor({name: value} for value, name in values.items())
    assert redactor.text(text) == pattern.sub(lambda found: f"${values[found[0]]}", text)


def test_secrets_that_are_used_no_more_do_not_accumulate() -> None:
    """Of the secrets that no agent has any more only the newest are kept; one in use is kept however old it is."""
    known, in_use = KnownSecrets(most=3), {"OLD_KEY": "old-secret-0"}
    assert known.add([in_use, {"HOME": "/home/somebody"}])
    for number in range(5):
        assert known.add([{"NEW_KEY": f"new-secret-{number}"}])
        assert not known.add([{"NEW_KEY": f"new-secret-{number}"}])
        known.drop_oldest([in_use])
    text = known.redactor.text("old-secret-0 new-secret-0 new-secret-1 new-secret-2 new-secret-3 new-secret-4")
    assert text == "$OLD_KEY new-secret-0 new-secret-1 $NEW_KEY $NEW_KEY $NEW_KEY"


def test_the_token_of_a_header_is_known_without_its_scheme() -> None:
    """The token of an ``Authorization: Bearer TOKEN`` header is also redacted where it stands without ``Bearer``."""
    redactor = Redactor([{"Authorization": "Bearer s3cr3t-t0ken", "X-Api-Key": "another-secret"}])
    assert redactor.text("I sent s3cr3t-t0ken and another-secret") == "I sent $Authorization and $X-Api-Key"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("psql postgres://joe:pw99@db.local/x", "psql postgres://[redacted]@db.local/x"),
        ("git clone https://x:t0k3n@host/a.git", "git clone https://[redacted]@host/a.git"),
        ("curl -H 'Authorization: Bearer 0123456789abcdefghij'", "curl -H 'Authorization: Bearer [redacted]'"),
        ("https://host:8080/a@b and ssh://git@host:22/a", "https://host:8080/a@b and ssh://git@host:22/a"),
        ("the Bearer of news", "the Bearer of news"),
    ],
)
def test_passwords_in_addresses_and_headers_are_redacted(text: str, kept: str) -> None:
    """The credentials in a URL or a header are redacted; the rest of the text stays."""
    assert Redactor().text(text) == kept


EVENTS = {one for kind in KINDS.values() for one in kind.events.values()}


@pytest.mark.parametrize("kind", sorted(EVENTS, key=str))
def test_every_text_field_of_every_event_is_redacted(kind: type[msgspec.Struct]) -> None:
    """Every field of every event that can hold text is redacted, apart from ids."""
    fields = msgspec.structs.fields(kind)
    given = {one.name: "one" if one.name in TRUSTED_FIELDS else _holding(one.type) for one in fields}
    event = Redactor([ENVIRONMENT]).event(kind(**given))
    assert SECRET not in str(msgspec.to_builtins(event))


def test_an_id_is_never_redacted() -> None:
    """An id in an event is never redacted, even if an agent's secret is the same text, since events refer to each other
    by ids."""
    redactor = Redactor([ENVIRONMENT])
    for kind in EVENTS:
        fields = msgspec.structs.fields(kind)
        given = {one.name: SECRET if one.name.endswith("_id") else None for one in fields}
        event = redactor.event(kind(**given))
        assert {name for name, value in given.items() if getattr(event, name) != value} == set()


def _holding(annotation: Any) -> Any:
    """Return a value of the type *annotation* that contains the secret, or ``None`` if that type has no such value."""
    for value in (
        SECRET,
        (SECRET,),
        ({"prompt": SECRET},),
        ((SECRET, SECRET),),
        Verdict(exit=Exit.ERROR, error=SECRET),
    ):
        with suppress(msgspec.ValidationError):
            msgspec.convert(value, annotation)
            return value
    return None


@pytest.mark.parametrize("secret", LOOKS)
def test_keys_are_redacted_by_their_form(secret: str) -> None:
    """A key with a known form is redacted, although no variable has it as its value."""
    assert Redactor().text(f"it is {secret} here") == "it is [redacted] here"


def test_nested_texts_of_events_are_redacted() -> None:
    """Text inside of an event's verdict is redacted; an event without a secret is returned unchanged, as the same
    object."""
    redactor = Redactor([ENVIRONMENT])
    failed = SessionExited(incarnation=1, verdict=Verdict(exit=Exit.ERROR, error=f"bad key {SECRET}"))
    assert redactor.event(failed).verdict.error == "bad key $MY_API_KEY"
    asked = TurnRequested(request_id="r1", prompt="nothing to hide")
    assert redactor.event(asked) is asked


@given(st.lists(st.sampled_from([SECRET, *LOOKS[:6], *SPACED, "plain ", "sk-", "$", "\n", "é"]), max_size=6), st.data())
def test_text_in_pieces_is_redacted_like_the_whole(parts: list[str], data: st.DataObject) -> None:
    """For a text with secrets that is cut into pieces anywhere, the redacted pieces together equal the redacted whole
    text."""
    redactor = Redactor([ENVIRONMENT])
    text = " ".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stream = StreamRedactor(redactor)
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join([*map(stream.feed, pieces), stream.end()]) == redactor.text(text)


KEY_LINES = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7", "c2VjcmV0IGxpbmUgbnVtYmVyIHR3bw=="] * 8
KEY = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *KEY_LINES, "-----END OPENSSH PRIVATE KEY-----"])


@given(st.data())
def test_a_private_key_in_pieces_is_redacted(data: st.DataObject) -> None:
    """A private key is redacted wherever the text is cut into pieces, even within the key's first or last line; the
    text around the key stays."""
    text = f"here it is:\n{KEY}\nand -----BEGIN CERTIFICATE----- is none"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    stream = StreamRedactor(Redactor())
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    given_on = "".join([*map(stream.feed, pieces), stream.end()])
    assert given_on == "here it is:\n[redacted]\nand -----BEGIN CERTIFICATE----- is none"


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
def test_a_key_without_an_end_has_a_limit(size: int) -> None:
    """A private key without an end line hides a limited number of characters, and the stream holds back no more than a
    line."""
    text = "-----BEGIN PRIVATE KEY-----" + "k" * KEY_CHARS_MAX + " plain words " * 100
    stream = StreamRedactor(Redactor())
    given_on = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size))
    held_back = stream.end()
    assert given_on + held_back == "[redacted]" + " plain words " * 100
    assert len(held_back) <= MARK_CHARS_MAX


def test_a_key_continues_after_output_of_another_source() -> None:
    """The lines of a private key are redacted although lines of another source (stderr) come between them."""
    kept: list[str] = []

    class Sink:
        def write(self, source: str, text: str, *, at: float) -> None:
            kept.append(text)

        def close(self) -> None:
            return None

    transcript = RedactingTranscript(Sink(), Redactor)
    for line in KEY.splitlines(keepends=True):
        transcript.write("message", line, at=0.0)
        transcript.write("stderr", "warning\n", at=0.0)
    transcript.write("message", "\nafter it", at=0.0)
    transcript.close()
    assert not any(line in "".join(kept) for line in KEY_LINES)
    assert "".join(kept).endswith("after it")


@pytest.mark.anyio
async def test_no_file_of_the_state_directory_has_the_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A secret in a prompt, a message, an agent's output or an error is in no file of the state directory, and not in
    the logs."""
    code = f"import sys; print('key', sys.stdin.read()); sys.exit('no: {SECRET}')"
    agent = AgentConfig(adapter="command", command=("python3", "-c", code), env={"MY_API_KEY": SECRET})
    with caplog.at_level(logging.DEBUG, "supervisor"):
        async with open_supervisor(tmp_path / "sd", agents={"a": agent}) as sup:
            session = await sup.start_session("one", agent="a")
            await session.send(f"and {SECRET}")
            result = await session.run(f"say {SECRET} and {LOOKS[1]}")
    assert result.outcome == "failed"
    kept = {path: path.read_bytes() for path in (tmp_path / "sd").rglob("*") if path.is_file()}
    assert any(b"$MY_API_KEY" in data for data in kept.values())
    assert not [path for path, data in kept.items() if SECRET.encode() in data or LOOKS[1].encode() in data]
    assert SECRET not in caplog.text


@pytest.mark.anyio
async def test_the_secrets_of_mcp_servers_are_redacted(tmp_path: Path) -> None:
    """A key in the environment or in the headers of an MCP server of an agent is redacted."""
    servers = {
        "here": {"command": ["serve"], "env": {"MY_API_KEY": SECRET}},
        "there": {"url": "https://there", "headers": {"X-Api-Key": "another-secret"}},
    }
    agent = AgentConfig.model_validate({"adapter": "acp", "command": ["my-agent"], "mcp_servers": servers})
    async with open_supervisor(tmp_path / "sd", agents={"a": agent}) as sup:
        assert sup.core.journal_writer.redactor.text(f"{SECRET}, another-secret") == "$MY_API_KEY, $X-Api-Key"


def test_logs_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    """Message, fields and traceback of a log line are redacted."""
    conceal([ENVIRONMENT])
    log = get_logger()
    with caplog.at_level(logging.INFO, "supervisor"):
        try:
            raise ValueError(f"bad {SECRET}")
        except ValueError as error:
            log.error(f"no {SECRET}", field=LOOKS[0], exc_info=error)
    assert "$MY_API_KEY" in caplog.text
    assert SECRET not in caplog.messages[-1]
    assert LOOKS[0] not in caplog.messages[-1]


def test_a_value_with_spaces_in_pieces_is_redacted() -> None:
    """A secret with spaces is redacted wherever its text is cut into two pieces."""
    value = "correct horse battery staple"
    for at in range(1, len(value)):
        stream = StreamRedactor(Redactor([{"DB_PASSPHRASE": value}]))
        said = stream.feed(f"it is {value[:at]}") + stream.feed(f"{value[at:]}, you know") + stream.end()
        assert said == "it is $DB_PASSPHRASE, you know"


def test_a_key_cut_at_the_end_of_a_long_piece_is_redacted() -> None:
    """A key that is cut at the end of a long piece of text is redacted, since the stream holds back the possible
    beginning of a key."""
    stream = StreamRedactor(Redactor())
    said = stream.feed("x " * 5000 + "sk-abcdefghijkl") + stream.feed("mnopqrstuvwxyz0123456789 end") + stream.end()
    assert said.endswith("x [redacted] end")
