"""Webhooks of triggers: the one route without a token of ours, for senders that sign what they send.

The admission has checked how often and how much the sender sends, before anybody looks at the signature.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from supervisor.control.http.admission import HOOKS
from supervisor.control.http.errors import ErrorReply, Problem
from supervisor.control.http.queries import ERRORS, reply, supervisor_of
from supervisor.host.api import Supervisor
from supervisor.plans.daemon_control import Hooks

router = APIRouter(tags=["webhooks"])


def hooks_of(sup: Supervisor) -> Hooks | None:
    """Return the webhooks of a supervisor; ``None`` if it has no daemon, or no triggers."""
    return sup.core.daemon.hooks if sup.core.daemon is not None else None


class HookOutcome(BaseModel):
    """Decision about a delivery. A sender that asks a question (Slack, Discord) gets the answer in its own form."""

    outcome: str = Field(description="accepted, queued or refused")
    reason: str = Field(description="the reason, or what follows")


@router.post(
    f"{HOOKS}{{name}}",
    response_model=HookOutcome,
    summary="Deliver an event to a trigger. The body is what the provider signs; no token is needed.",
    responses={
        **ERRORS,
        202: {"model": HookOutcome, "description": "A run begins, or the delivery waits for the end of one."},
        401: {"model": ErrorReply, "description": "The signature or the token of the provider is wrong, or too old."},
        404: {"model": ErrorReply, "description": "There is no webhook of that name."},
        413: {"model": ErrorReply, "description": "The body is larger than bytes_max of the trigger."},
        429: {"model": ErrorReply, "description": "The address has sent more than requests_per_minute."},
        503: {"model": ErrorReply, "description": "The daemon ends, or the disk cannot be written: deliver it again."},
    },
)
async def deliver(request: Request, name: Annotated[str, Path(description="the name of the trigger")]) -> Response:
    hooks = hooks_of(supervisor_of(request))
    assert hooks is not None, "the admission has found the webhook"
    outcome = await hooks.deliver(name, dict(request.headers), await request.body())
    if outcome.status >= 400:
        raise Problem(outcome.status, str(outcome.body["reason"]))
    return reply(outcome.body, outcome.status)
