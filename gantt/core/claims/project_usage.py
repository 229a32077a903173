# SPDX-License-Identifier: Apache-2.0
"""What the live claims of a project take together."""

import msgspec


class ProjectUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One project.

    A guest that is being moved or resized has two claims meanwhile, and both are counted: that
    much is taken from the hosts.

    :ivar project_id: empty: of consumers whose project nobody has said
    :ivar claims: live ones, reserved or confirmed
    :ivar claims_in_flight: the part of them that is reserved: no host has confirmed them yet
    :ivar consumers: that have live claims
    :ivar amounts: resource class -> amount, in the unit of the class; no class of which it is 0
    """

    project_id: str
    claims: int = 0
    claims_in_flight: int = 0
    consumers: int = 0
    amounts: dict[str, int] = {}
