# SPDX-License-Identifier: Apache-2.0
"""Dependencies of the handlers of zones."""

from gantt.http.context import HandlerContext
from gantt.zones.ports import ZoneStores
from gantt.zones.service.context import ZoneContext


class ZoneHandlerContext(HandlerContext, frozen=True):
    """The first argument of the handlers of zones.

    :ivar stores: with those of zones
    :ivar zones: neighbouring zones, and calls to them
    """

    stores: ZoneStores
    zones: ZoneContext
