"""Log of the requests to a model server, and the script that a test program sets. No I/O; guarded by a lock.

No secret of a request is kept: no header, and only the names in a query. The number of kept requests and the length of
texts are bounded; the oldest requests are dropped, but still counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

import msgspec

from supervisor.mock_model.answers import Answer, Fail, Spent
from supervisor.mock_model.matcher import answer_to, reply_to
from supervisor.mock_model.request import Ending, ModelAnswer, ModelRequest, Reply

KEPT_MAX: Final = 10_000
"""Number of requests that the log keeps."""
PROMPTS_MAX: Final = 20
PROMPT_CHARS_MAX: Final = 200
"""Number of prompts of a conversation that the log keeps, and number of characters of each."""
TEXT_CHARS_MAX: Final = 4_000
"""Number of characters at the end of a prompt that the log keeps."""


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Logged request to the model, with the answer that the server gave. ``number`` counts from 1."""

    number: int
    dialect: str
    path: str
    model: str = ""
    stream: bool = False
    text: str = ""
    prompts: tuple[str, ...] = ()
    """Texts of the user in the conversation that contain a script, the oldest first: a client that has forgotten its
    conversation sends the newest only. Of many texts the newest are kept, of each its beginning."""
    results: int = 0
    messages: int = 0
    tools: tuple[str, ...] = ()
    answer: str = ""
    status: int = 200
    input_tokens: int = 0
    output_tokens: int = 0
    """Usage that the server has reported in its answer; 0 for a failure and for silence."""
    error: str = ""


class RequestLog:
    """Log of the requests to a model server, in order, and the script for the next requests. The log may be read from
    another thread."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: deque[LoggedRequest] = deque(maxlen=KEPT_MAX)
        self._failed: dict[str, int] = {}
        self._script: deque[Answer] = deque()
        self._spent: Spent | None = None
        self._where: Callable[[ModelRequest], bool] = _every
        self._lock = Lock()

    @property
    def requests(self) -> list[LoggedRequest]:
        """Requests that the log has kept, the oldest first."""
        with self._lock:
            return list(self._seen)

    @property
    def unused(self) -> int:
        """Number of answers of the program's script that no request has used yet."""
        with self._lock:
            return len(self._script)

    def script(
        self,
        answers: Iterable[Answer],
        *,
        where: Callable[[ModelRequest], bool] | None = None,
        spent: Spent | None = None,
    ) -> None:
        """Set the script: the next requests for which *where* is true are answered with *answers*, one answer for each
        request, instead of by the scripts in the prompts.

        An earlier script is dropped. After the last answer, prompts decide again.

        Args:
            where: function that selects requests; by default all requests. Agents also request titles and summaries,
                and such requests come without tools: ``where=lambda request: request.tools`` leaves these requests out.
            spent: usage that all answers report from now on; by default the usage in the prompt.
        """
        with self._lock:
            self._script = deque(answers)
            self._where = where or _every
            self._spent = spent

    def reply(self, request: ModelRequest, path: str) -> Reply:
        """Decide the reply to a request, log the request, and return the reply."""
        with self._lock:
            answer = self._next(request)
            if isinstance(answer, Fail):
                self._fail(request.text)
            reply = reply_to(request, answer, self._spent)
            self._write(request, path, answer, _counted(reply))
            return reply

    def refused(self, dialect: str, path: str, status: int, error: str) -> None:
        """Log a request that could not be answered."""
        with self._lock:
            self.count += 1
            self._seen.append(
                LoggedRequest(number=self.count, dialect=dialect, path=path_of(path), status=status, error=error[:300])
            )

    def _next(self, request: ModelRequest) -> Answer:
        if self._script and self._where(request):
            return self._script.popleft()
        return answer_to(request, self._failed.get(request.text, 0))

    def _fail(self, text: str) -> None:
        """Count one more failed request with the prompt *text*; counts are kept for a bounded number of prompts."""
        self._failed[text] = self._failed.pop(text, 0) + 1
        if len(self._failed) > KEPT_MAX:
            del self._failed[next(iter(self._failed))]

    def _write(self, request: ModelRequest, path: str, answer: Answer, spent: Spent) -> None:
        self.count += 1
        self._seen.append(
            LoggedRequest(
                number=self.count,
                dialect=request.dialect,
                path=path_of(path),
                model=request.model,
                stream=request.stream,
                text=request.text[-TEXT_CHARS_MAX:],
                prompts=tuple(one[:PROMPT_CHARS_MAX] for one in request.prompts[-PROMPTS_MAX:]),
                results=request.results,
                messages=request.messages,
                tools=tuple(tool.name for tool in request.tools),
                answer=type(answer).__name__.casefold(),
                status=answer.status if isinstance(answer, Fail) else 200,
                input_tokens=spent.input_tokens,
                output_tokens=spent.output_tokens,
            )
        )


def _counted(reply: Reply) -> Spent:
    """Return the usage that *reply* tells the client: only an answer that is sent to its end has any for certain."""
    whole = isinstance(reply, ModelAnswer) and reply.ending is Ending.WHOLE
    return reply.spent if isinstance(reply, ModelAnswer) and whole else Spent(0, 0)


def path_of(target: str) -> str:
    """Return the path of a request with the names in the query, without the values, which may include a key."""
    path, _, query = target.partition("?")
    names = "&".join(part.partition("=")[0] for part in query.split("&"))
    return f"{path}?{names}"[:500] if query else path[:500]


def _every(request: ModelRequest) -> bool:
    return True
