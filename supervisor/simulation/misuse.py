"""What no host may ask for: each is refused by an error that says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from supervisor.embedding.runtime import Refused, Session, Supervisor
from supervisor.lifecycles.types import AbortScope
from supervisor.policies.abort_plan import NoSiblings, UnknownTarget
from supervisor.runtime.live_session import NoSuchEntity

__all__ = ["misuse"]

Say = Callable[[str, str, str], None]
NAME_MAX = 64
HALF_A_PAIR = "\ud800"


async def misuse(say: Say, sup: Supervisor, living: str | None) -> None:
    """Ask for everything that cannot be. *living*: a session that there is, if there is one."""
    for name in ("", "a b", "a/b", "a:b", "x" * (NAME_MAX + 1)):
        await _refused(say, f"a session named {name!r}", sup.start_session(name, agent="inprocess"), ValueError)
    wrong: tuple[dict[str, Any], ...] = ({}, {"agent": "nobody"}, {"agent": "inprocess", "cancel_mode": "try"})
    for words in wrong:
        await _refused(say, f"a session with {words}", sup.start_session("s", **words), ValueError)
    await _refused(say, "a child of nobody", sup.start_session("s", parent="nobody"), NoSuchEntity)
    await _refused(say, "a message to nobody", Session(sup, "nobody").send("x"), NoSuchEntity)
    await _refused(say, "a prompt for nobody", Session(sup, "nobody").run("x"), NoSuchEntity)
    await _refused(say, "an abort of nobody", sup.abort("nobody", AbortScope.SESSION), UnknownTarget)
    await _refused(say, "an abort of no call", sup.abort("nobody:t1:c1", AbortScope.TOOL), UnknownTarget)
    if living is not None:
        await _refuse_the_living(say, sup, living)


async def _refuse_the_living(say: Say, sup: Supervisor, living: str) -> None:
    """It may end meanwhile; then it is gone, and that is said instead."""
    session, wrong = Session(sup, living), (ValueError, NoSuchEntity)
    await _refused(say, "half a character", session.send(HALF_A_PAIR), *wrong)
    await _refused(say, "a prompt of half a character", session.run(HALF_A_PAIR), *wrong)
    await _refused(say, "a point of what is not urgent", session.send("x", at="turn_end"), *wrong)
    await _refused(say, "no point at all", session.send("x", urgent=True, at="soon"), *wrong)
    await _refused(say, "an abort of no scope", sup.abort(living, "everything"), ValueError)
    if living in sup.tree.works:
        await _refused(say, "another plan", sup.abort(living, AbortScope.SESSION, plan_id="none"), Refused)
    node = sup.tree.nodes().get(living)
    if node is not None and node.parent is None and not node.ended:
        await _refused(say, "siblings of a root", sup.abort(living, AbortScope.SIBLING), NoSiblings)


async def _refused(say: Say, what: str, wish: Awaitable[Any], *errors: type[Exception]) -> None:
    try:
        answer = await wish
    except errors:
        return
    say("legal", "run", f"{what} was granted: {answer!r}")
