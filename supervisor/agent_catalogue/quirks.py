"""What an agent does that its protocol does not say: data of the catalogue, which the runtime goes by.

A quirk names a thing that was measured (`supervisor agents probe` measures it again). Who has none is believed.
"""

from __future__ import annotations

from pydantic import StrictBool

from supervisor.agent_catalogue.data import Data

__all__ = ["NO_QUIRKS", "Quirks"]


class Quirks(Data):
    """What is known of one way to have an agent.

    ``cancel_leaves_tool``: it answers a cancel, and the tool goes on: its program is ended too, and the next one goes
    on with the conversation. ``needs_kill``: while it works it does not heed SIGTERM, so it is not waited for after
    that. ``exit_status_lies``: 0 is no word on success, so it cannot be run by the adapter ``command``.
    """

    cancel_leaves_tool: StrictBool = False
    needs_kill: StrictBool = False
    exit_status_lies: StrictBool = False


NO_QUIRKS = Quirks()
