"""Classification of errors that real agents, providers, shells and this runtime report, and their signatures."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.lifecycles.types import PROVIDER_TROUBLE, AbortReason, ModelFailure, ModelProblem, TransitionReason
from supervisor.policies.error_classification import (
    DECIDED,
    PROBLEMS,
    SIGNATURE_CHARS_MAX,
    TABLE,
    Failure,
    classify,
    is_held,
    is_refused_option,
    problem_of,
    signature_of,
    wait_of,
)
from supervisor.policies.turn_outcome import decide_verdict

OWN = {ModelProblem.CONTEXT_LENGTH, ModelProblem.NOT_FOUND, ModelProblem.REFUSED}
"""Model problems that lie in the request itself: another request may succeed."""
TRANSIENT, PERMANENT, UNKNOWN = ErrorCategory.TRANSIENT, ErrorCategory.PERMANENT, ErrorCategory.UNKNOWN

SAID: list[tuple[str, ErrorCategory, bool]] = [
    # the providers, as agents print them
    ('529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', TRANSIENT, True),
    ("API Error: 529 Overloaded", TRANSIENT, True),
    ("API Error (529): no answer", TRANSIENT, True),
    ("the selected model is at capacity", TRANSIENT, True),
    ("This model is currently experiencing high demand.", TRANSIENT, True),
    ("exceeded retry limit, last status: 429 Too Many Requests", TRANSIENT, True),
    ('Error: 429 {"error": {"message": "slow down"}}', TRANSIENT, True),
    ("API Error: 429", TRANSIENT, True),
    ("Rate limit reached for gpt-5 in organization org-1 on tokens per min", TRANSIENT, True),
    ("rate_limit_error", TRANSIENT, True),
    ("RESOURCE_EXHAUSTED", TRANSIENT, True),
    ("Resource has been exhausted (e.g. check quota).", TRANSIENT, True),
    ("Quota exceeded for quota metric 'Requests'", TRANSIENT, True),
    ("Claude AI usage limit reached|1760000000", TRANSIENT, True),
    ("You've hit your limit · resets 3pm", TRANSIENT, True),
    ("You've hit your usage limit.", TRANSIENT, True),
    ("ThrottlingException: request was throttled", TRANSIENT, True),
    ("403 Forbidden: you have exceeded a secondary rate limit", TRANSIENT, True),
    ("unexpected status 500 Internal Server Error", TRANSIENT, True),
    ("status code 503", TRANSIENT, True),
    ("HTTP/1.1 502", TRANSIENT, True),
    ("http 504", TRANSIENT, True),
    ("error code: 520", TRANSIENT, True),
    ("StatusCode=408", TRANSIENT, True),
    ("status_code: 425", TRANSIENT, True),
    ('{"type":"api_error","message":"Internal"}', TRANSIENT, True),
    ("server_error: retry", TRANSIENT, True),
    ("internal_server_error", TRANSIENT, True),
    ("Bad Gateway", TRANSIENT, True),
    ("the service_unavailable", TRANSIENT, True),
    ("Gateway Timeout", TRANSIENT, True),
    ("gateway time-out", TRANSIENT, True),
    ("SyntaxError: Unexpected token '<', \"<html>\" is not valid JSON", TRANSIENT, True),
    ("Unexpected token < in JSON at position 0", TRANSIENT, True),
    ("Unexpected end of JSON input", TRANSIENT, True),
    ("429 You exceeded your current quota, please check your plan and billing details", PERMANENT, True),
    ("insufficient_quota", PERMANENT, True),
    ("Error: 400 Your credit balance is too low to access the API", PERMANENT, True),
    ("You are out of credits", PERMANENT, True),
    ("402 Payment Required", PERMANENT, True),
    ("status 402", PERMANENT, True),
    ("AxiosError: Request failed with status code 401", PERMANENT, True),
    ('API Error: 401 {"error":"x"}', PERMANENT, True),
    ("authentication_error", PERMANENT, True),
    ("Authentication failed", PERMANENT, True),
    ("the agent needs authentication: Authentication required: run `codex login`", PERMANENT, True),
    ("this agent needs authentication", PERMANENT, True),
    ("Not authenticated", PERMANENT, True),
    ("Invalid API key · Please run /login", PERMANENT, True),
    ("Please run /login", PERMANENT, True),
    ("invalid x-api-key", PERMANENT, True),
    ("Incorrect API key provided", PERMANENT, True),
    ("API key not valid. Please pass a valid API key.", PERMANENT, True),
    ("401 Unauthorized", PERMANENT, True),
    ("you are not logged in", PERMANENT, True),
    ("OAuth token has expired", PERMANENT, True),
    ("permission_error", PERMANENT, True),
    ("403 Forbidden", PERMANENT, True),
    ("http 403", PERMANENT, True),
    ("prompt is too long: 205000 tokens > 200000 maximum", PERMANENT, False),
    ("Prompt too long", PERMANENT, False),
    ("input is too long for requested model", PERMANENT, False),
    ("prompt_too_long", PERMANENT, False),
    ("This model's maximum context length is 4097 tokens", PERMANENT, False),
    ("context_length_exceeded", PERMANENT, False),
    ("the context window was exceeded", PERMANENT, False),
    ("the conversation exceeds the model's context window", PERMANENT, False),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed", PERMANENT, False),
    ("413 request_too_large: 429 was never reached", PERMANENT, False),
    ("HTTP 413", PERMANENT, False),
    ('404 {"type":"error","error":{"type":"not_found_error","message":"model: x"}}', PERMANENT, False),
    ("not_found_error", PERMANENT, False),
    ("model_not_found", PERMANENT, False),
    ("The model `gpt-9` does not exist or you do not have access to it", PERMANENT, False),
    ("status 404", PERMANENT, False),
    # the network
    ("read ECONNRESET", TRANSIENT, True),
    ("connect ECONNREFUSED 127.0.0.1:443", TRANSIENT, True),
    ("getaddrinfo ENOTFOUND api.example.com", TRANSIENT, True),
    ("getaddrinfo EAI_AGAIN api.example.com", TRANSIENT, True),
    ("Connection error.", TRANSIENT, True),
    ("APIConnectionError", TRANSIENT, True),
    ("connection was reset by peer", TRANSIENT, True),
    ("[Errno 111] Connection refused", TRANSIENT, True),
    ("socket hang up", TRANSIENT, True),
    ("Network is unreachable", TRANSIENT, True),
    ("TypeError: fetch failed", TRANSIENT, True),
    ("Temporary failure in name resolution", TRANSIENT, True),
    ("Name or service not known", TRANSIENT, True),
    ("fatal: Could not resolve host: github.com", TRANSIENT, True),
    ("stream disconnected before completion", TRANSIENT, True),
    ("Request timed out.", TRANSIENT, True),
    ("The read operation timed out", TRANSIENT, True),
    ("context deadline exceeded", TRANSIENT, True),
    ("Server disconnected without sending a response", TRANSIENT, True),
    ("Remote end closed connection without response", TRANSIENT, True),
    # the machine
    ("its process could not be made (Resource temporarily unavailable); raise the limit", TRANSIENT, False),
    ("please try again later", TRANSIENT, False),
    ("a temporary outage", TRANSIENT, False),
    ("EBUSY: resource", TRANSIENT, False),
    ("Device or resource busy", TRANSIENT, False),
    ("Text file busy", TRANSIENT, False),
    ("sqlite3.OperationalError: database is locked", TRANSIENT, False),
    ("fatal: Unable to create '/r/.git/index.lock': File exists.", TRANSIENT, False),
    ("OSError: [Errno 24] Too many open files", TRANSIENT, False),
    ("permission denied: /etc/shadow", PERMANENT, False),
    ("git@github.com: Permission denied (publickey).", PERMANENT, False),
    ("[Errno 1] Operation not permitted", PERMANENT, False),
    ("Access is denied", PERMANENT, False),
    ("EACCES: open '/x'", PERMANENT, False),
    ("Read-only file system", PERMANENT, False),
    ("cannot start 'nope': there is no such program on PATH '/bin'; install it", PERMANENT, False),
    ("cannot start './nope': there is no such file; install it, or correct argv[0]", PERMANENT, False),
    ("cannot start 'x': it is not an executable file; chmod +x it", PERMANENT, False),
    ("cannot start 'x': it is no program of this machine and has no #! line", PERMANENT, False),
    ("cannot start 'x': it exists, but the interpreter named in its #! line does not", PERMANENT, False),
    ("cannot start 'x': the working directory '/gone' does not exist; create it", PERMANENT, False),
    ("cannot start 'x': the working directory '/f' is not a directory; correct cwd", PERMANENT, False),
    ("bash: line 1: foo: command not found", PERMANENT, False),
    ("Error: spawn rg ENOENT", PERMANENT, False),
    ("python: can't open file '/x.py': [Errno 2] No such file or directory", PERMANENT, False),
    ("Exec format error", PERMANENT, False),
    ("ModuleNotFoundError: x", PERMANENT, False),
    ("No module named 'yaml'", PERMANENT, False),
    ("ImportError: cannot import name", PERMANENT, False),
    ("Cannot find module 'left-pad'", PERMANENT, False),
    ("code: 'ERR_MODULE_NOT_FOUND'", PERMANENT, False),
    ("ERROR: No matching distribution found for nope", PERMANENT, False),
    ("npm ERR! could not resolve dependency", PERMANENT, False),
    ("missing dependencies: git", PERMANENT, False),
    ("error while loading shared libraries: libz.so", PERMANENT, False),
    ("SyntaxError: oops", PERMANENT, False),
    ("bash: syntax error near unexpected end", PERMANENT, False),
    ("IndentationError: x", PERMANENT, False),
    ("invalid syntax (x.py)", PERMANENT, False),
    ("Unexpected token }", PERMANENT, False),
    ("error: unrecognized arguments: --x", PERMANENT, False),
    ("error: unknown option '--x'", PERMANENT, False),
    ("Error: No such option: --x", PERMANENT, False),
    # what nobody knows
    ("", UNKNOWN, False),
    ("Segmentation fault", UNKNOWN, False),
    ("exit status 1", UNKNOWN, False),
    ("ended by SIGSEGV", UNKNOWN, False),
    ("3 of 500 tests failed", UNKNOWN, False),
    ("expected 404 lines, got 403", UNKNOWN, False),
    ("the file notes.txt: No such file or directory", UNKNOWN, False),
    ("invalid_request_error: messages: unexpected role", UNKNOWN, False),
    ("the agent stopped for an unknown reason, 'tired'", UNKNOWN, False),
]


@pytest.mark.parametrize(("error", "category", "provider"), SAID, ids=[said[0][:40] for said in SAID])
def test_words(error: str, category: ErrorCategory, provider: bool) -> None:
    """An error text with the listed words has the category, in upper or lower case, and within a longer text."""
    for told in (error, error.upper(), f"the agent failed: {error}; bye"):
        failure = classify(told)
        assert (failure.category, failure.provider) == (category, provider), failure.why


def test_every_row_decides_something() -> None:
    """Each rule of the table decides at least one example, and each has a reason text of its own."""
    whys = [row.why for row in TABLE]
    assert {classify(error).why for error, category, _ in SAID if category is not UNKNOWN} == set(whys)
    assert len(set(whys)) == len(whys)


def test_the_words_of_a_row_stand_alone() -> None:
    """If several rules match an error text, the first rule decides."""
    assert classify("429 Too Many Requests: insufficient_quota").category is PERMANENT
    assert classify("SyntaxError: connection refused").category is TRANSIENT


@pytest.mark.parametrize(
    ("reason", "category", "provider"),
    [
        (TransitionReason.PROMPT_TOO_LONG, PERMANENT, False),
        (TransitionReason.PROVIDER_413, PERMANENT, False),
        (TransitionReason.PROVIDER_529, TRANSIENT, True),
        (TransitionReason.PERMISSION_DENIED, PERMANENT, False),
        (TransitionReason.ORPHAN_RECOVERED, TRANSIENT, False),
    ],
)
def test_a_structured_reason_goes_before_words(
    reason: TransitionReason, category: ErrorCategory, provider: bool
) -> None:
    """A transition reason with a category of its own decides, whatever the error text and the abort reason."""
    for error in ("", "connection reset", "syntax error"):
        failure = classify(error, transition_reason=reason, abort_reason=AbortReason.USER_INTERRUPT)
        assert (failure.category, failure.provider) == (category, provider)


@pytest.mark.parametrize("reason", [TransitionReason.MAX_TURNS, TransitionReason.RETRY, TransitionReason.ABORTED])
def test_other_transition_reasons_leave_it_to_the_words(reason: TransitionReason) -> None:
    """A transition reason without a category of its own leaves the decision to the error text."""
    assert classify("connection reset", transition_reason=reason).category is TRANSIENT
    assert classify("it gave up", transition_reason=reason).category is UNKNOWN


@pytest.mark.parametrize("reason", sorted(DECIDED))
def test_what_somebody_ended_is_no_error_of_the_work(reason: AbortReason) -> None:
    """An error after a deliberate end has the category UNKNOWN, whatever its text."""
    failure = classify("syntax error, said the operator", abort_reason=reason, exit_status=127)
    assert failure == Failure(UNKNOWN, "syntax error, said the operator", False, "somebody ended it on purpose")


@pytest.mark.parametrize(
    ("reason", "category", "provider"),
    [
        (AbortReason.PROVIDER_ERROR, TRANSIENT, True),
        (AbortReason.PERMISSION_DENIED, PERMANENT, False),
        (AbortReason.TIMEOUT, UNKNOWN, False),
        (AbortReason.OOM, UNKNOWN, False),
        (AbortReason.BASH_ERROR, UNKNOWN, False),
        (AbortReason.COMPACT_FAILURE, UNKNOWN, False),
        (AbortReason.UNKNOWN, UNKNOWN, False),
    ],
)
def test_an_abort_reason_counts_where_words_say_nothing(
    reason: AbortReason, category: ErrorCategory, provider: bool
) -> None:
    """An abort reason decides only if no rule matches the error text."""
    failure = classify("hm", abort_reason=reason)
    assert (failure.category, failure.provider) == (category, provider)
    assert classify("invalid api key", abort_reason=reason).category is PERMANENT
    assert classify("econnreset", abort_reason=reason).category is TRANSIENT


@pytest.mark.parametrize(
    ("status", "category"),
    [(None, UNKNOWN), (0, UNKNOWN), (1, UNKNOWN), (75, TRANSIENT), (126, PERMANENT), (127, PERMANENT), (-9, UNKNOWN)],
)
def test_an_exit_status_counts_last(status: int | None, category: ErrorCategory) -> None:
    """A well-known exit status decides only if neither the error text nor the abort reason does."""
    failure = classify("hm", exit_status=status)
    assert (failure.category, failure.provider) == (category, False)
    assert classify("econnreset", exit_status=status).category is TRANSIENT
    assert classify("hm", exit_status=status, abort_reason=AbortReason.PROVIDER_ERROR).category is TRANSIENT


@pytest.mark.parametrize(
    ("error", "signature"),
    [
        ("failed after 3 tries in 4.5 s", "failed after <n> tries in <time>"),
        ("gave up after 1h 20m 3s of it", "gave up after <time> of it"),
        ("cannot read /tmp/a/b-1.txt:12:3", "cannot read <path>:<n>:<n>"),
        ("cannot read ~/a.txt and ../b/c", "cannot read <path> and <path>"),
        (r"cannot read C:\Users\me\x.txt", "cannot read <path>"),
        ("GET https://api.example.com/v1/x?y=1 failed", "get <url> failed"),
        ("KeyError: 'abc'", "keyerror: <text>"),
        ("can't open file 'a b'", "can't open file <text>"),
        ('no "x" in `y z`', "no <text> in <text>"),
        ('529 {"type":"overloaded_error","message":"Overloaded"}', "<n> {<text>:overloaded_error,<text>:<text>}"),
        ("at 2026-11-22T01:33:19.5Z it broke", "at <time> it broke"),
        ("at 2026-11-22 01:33 it broke", "at <time> it broke"),
        ("on 2026-11-22 at 1:33 pm", "on <time> at <time>"),
        ("resets 11:59:59.123", "resets <time>"),
        ("req_011CaXci6gfTVhUMdZHgjYRU was lost", "<id> was lost"),
        ("session 3f2504e0-4f89-11d3-9a0c-0305e82c3301 is gone", "session <id> is gone"),
        ("commit 9fceb0 at 0xdeadBEEF", "commit <n>fceb<n> at <id>"),
        ("commit 9fceb02", "commit <id>"),
        ("exit status 3", "exit status 3"),
        ('{"type": "overloaded_error", "message": "Busy"}', "{<text>: overloaded_error, <text>: <text>}"),
        ("error code 42, errno 13", "error code 42, errno 13"),
        ("tmp7 of worker-12: -5 and +6,000", "tmp<n> of worker-<n>: <n> and <n>"),
        ("\x1b[31mred\x1b[0m\n\t words ", "red words"),
        ("it's what they'd do", "it's what they'd do"),
        ("  ", "no words"),
    ],
)
def test_signatures(error: str, signature: str) -> None:
    """Numbers, ids, paths, addresses, quoted values and times in an error text are replaced in its signature."""
    assert classify(error).signature == signature


@pytest.mark.parametrize(
    ("known", "signature"),
    [
        ({}, "no words"),
        ({"exit_status": 3}, "exit status 3"),
        ({"exit_status": 3, "abort_reason": AbortReason.OOM}, "oom"),
        ({"abort_reason": AbortReason.OOM, "transition_reason": TransitionReason.MAX_TURNS}, "max_turns"),
    ],
)
def test_an_error_without_words_has_a_signature(known: dict[str, object], signature: str) -> None:
    """The signature of an error without text is its transition reason, abort reason or exit status."""
    assert classify("", **known).signature == signature  # type: ignore[arg-type]


def test_long_errors_are_cut_in_the_middle() -> None:
    """Only the beginning and the end of a long error text count, for the category and for the signature."""
    words = "begins " + "and goes on " * 4000 + "connection refused"
    failure = classify(words)
    assert failure.category is TRANSIENT
    assert failure.signature.startswith("begins and")
    assert failure.signature.endswith("connection refused")
    assert classify("syntax error " + "x " * 9000).category is PERMANENT
    assert classify("x " * 2500 + "syntax error" + " y" * 2500).category is UNKNOWN
    assert classify("x " * 2100 + "syntax error" + " y" * 1700).category is PERMANENT
    exact = "ab " * 66 + "cd"
    assert len(exact) == SIGNATURE_CHARS_MAX
    assert signature_of(exact) == exact
    assert signature_of(exact + "e") == f"{exact[:99]}…{(exact + 'e')[-99:]}"


@given(st.text(), st.text())
@example("'", '"')
def test_any_text_has_a_bounded_signature(before: str, after: str) -> None:
    """Any text has a signature of bounded length, on one line."""
    signature = classify(f"{before} 7 {after}").signature
    assert 0 < len(signature) <= SIGNATURE_CHARS_MAX
    assert "\n" not in signature


WORDS = st.sampled_from(["cannot read", "worker", "refused:", "a test of", "gave up", "in module"])


@given(st.lists(st.tuples(WORDS, st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=6))
def test_the_same_error_with_other_numbers_is_the_same(parts: list[tuple[str, int, int]]) -> None:
    """Error texts that differ only in numbers, paths and quoted values have the same signature."""

    def told(which: int) -> str:
        return " ".join(f"{part[0]} {part[which]} /tmp/x{part[which]}/y 'v{part[which]}'" for part in parts)

    assert signature_of(told(1)) == signature_of(told(2))


def test_whose_trouble_it_is() -> None:
    """All model problems are the provider's, except those that lie in the request itself."""
    assert {problem for problem, (_, provider, _) in PROBLEMS.items() if not provider} == OWN


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, ModelProblem.AUTH),
        (402, ModelProblem.QUOTA),
        (403, ModelProblem.AUTH),
        (404, ModelProblem.NOT_FOUND),
        (413, ModelProblem.CONTEXT_LENGTH),
        (429, ModelProblem.RATE_LIMIT),
        (418, ModelProblem.UNKNOWN),
        (500, ModelProblem.SERVER),
        (503, ModelProblem.OVERLOADED),
        (529, ModelProblem.OVERLOADED),
    ],
)
def test_a_status_decides_if_the_words_do_not(status: int, problem: ModelProblem) -> None:
    """An error text without known words gets its model problem from the HTTP status."""
    assert problem_of("it broke", status) is problem


@pytest.mark.parametrize("status", [None, 0, 200, 399])
def test_a_status_that_is_no_error_says_nothing(status: int | None) -> None:
    """An HTTP status below 400 leaves the decision to the error text."""
    assert problem_of("it broke", status) is None
    assert problem_of("overloaded_error", status) is ModelProblem.OVERLOADED
    assert problem_of("it broke", 529) is ModelProblem.OVERLOADED


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ("429 rate limit exceeded (retry-after: 15)", 15.0),
        ("Retry-After: 1.5", 1.5),
        ("overloaded, try again in 20 min", 1200.0),
        ("rate limited; retry in 250ms", 0.25),
        ("rate limit exceeded", 0.0),
        ("exit status 3: try again in vain", 0.0),
        ("retry after 500 milliseconds", 0.5),
        ("retry after 30 seconds, please", 30.0),
        ("try again in 2 Hours.", 7200.0),
        ("Please retry in 6m0s", 360.0),
        ("wait 5 more requests", 0.0),
        ("wait 10:30 UTC", 0.0),
        ("retry-after: 1795790634", 0.0),
    ],
)
def test_an_error_says_how_long_to_wait(error: str, seconds: float) -> None:
    """The wait that an error's text asks for is read in its unit; other texts ask for none."""
    assert wait_of(error) == seconds


@pytest.mark.parametrize(
    "output",
    [
        "expected 200 but got 503 Service Unavailable",
        "AssertionError: rate limit not enforced",
        "server overloaded() is not defined",
    ],
)
def test_the_last_output_of_a_process_blames_no_provider(output: str) -> None:
    """A test's output about statuses and limits is a failure of the task; a structured report of the provider's failure
    is not."""
    verdict = decide_verdict("error", "exit status 1", last_words=output)
    assert (verdict.model, verdict.error) == (None, f"exit status 1; its last words: {output}")
    assert decide_verdict("error", "exit status 1", problem=ModelProblem.SERVER, last_words=output).model is not None
    assert decide_verdict("error", "exit status 1", last_words="[API Error: 529 overloaded]").model is not None


def test_a_session_is_charged_for_the_same_problems_as_a_run() -> None:
    """The problems that are charged to no session are those that are charged to no run."""
    assert {one for one in ModelProblem if classify("", model=ModelFailure(problem=one)).passes} == PROVIDER_TROUBLE


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("error: unexpected argument '--x' found", True),
        ("error: unknown option '--x'", True),
        ("Error loading config: unknown variant `untrusted`, expected one of never, on-request", True),
        ("Connection error: the server answered 500", False),
    ],
)
def test_a_refused_option_is_recognized(words: str, refused: bool) -> None:
    """The last words of a program that does not accept its command line show that another launch fails too."""
    assert is_refused_option(words) is refused


@pytest.mark.parametrize(
    ("words", "held"),
    [("thread 7 already has an active writer", True), ("session is locked", True), ("no rollout found", False)],
)
def test_a_conversation_in_use_is_not_lost(words: str, held: bool) -> None:
    """A conversation that another process uses is not one that does not exist."""
    assert is_held(words) is held


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("Info: The conversation exceeded the model's context limit. Compact it", ModelProblem.CONTEXT_LENGTH),
        ("terminated: other side closed (UND_ERR_SOCKET)", ModelProblem.CONNECTION),
    ],
)
def test_words_of_agents_name_the_trouble_of_their_model(words: str, problem: ModelProblem) -> None:
    """Words that copilot and pi use for a trouble of their model are known."""
    assert problem_of(words) is problem
