# SPDX-License-Identifier: Apache-2.0
"""The processes of the site."""

import msgspec

from gantt.http.world import Caller, World
from gantt.insights.views import ServiceView


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """All processes that are remembered.

    :ivar site: what operators call this site, empty where they have not named it
    """

    site: str
    services: list[ServiceView]


def list_services(world: World, caller: Caller) -> Services:
    """List the processes of the site: schedulers, APIs, and what reports for hosts of others.

    Each notes itself in the database about twice a minute, and is remembered for a day after
    the last time.  One that was stopped in order is forgotten at once.
    """
    return Services(site=world.settings.site_name, services=world.insights.services())
