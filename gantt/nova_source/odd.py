# SPDX-License-Identifier: Apache-2.0
"""Entries of a list that are of another shape than expected, and whom they leave in doubt.

Nothing is said of those, and the rest of the cloud goes on.  Only what cannot be laid at
anybody's door ends the pass.
"""

import logging
from typing import Any

from gantt import exceptions
from gantt.nova_source.names import MANY_NODES
from gantt.nova_source.words import HOST_KEY

LOG = logging.getLogger(__name__)


class Odd:
    """The odd entries of one pass.

    :ivar about: service host, node or uuid of a node -> what is odd about it
    :ivar servers: uuid of a server -> its host
    :ivar aggregates: uuid -> what is odd; '': of one that has none
    :ivar groups: the same of server groups
    """

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.servers: dict[str, str | None] = {}
        self.aggregates: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def note(self, about: str | None, error: object) -> None:
        """Nothing is to be said of somebody."""
        if about:
            self.about.setdefault(about, str(error))
        else:
            LOG.warning('Passed over, and nobody knows whom it is about: %s', error)

    def service(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-services``."""
        self.note(_text(entry, 'host'), error)

    def hypervisor(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-hypervisors``."""
        node = _text(entry, 'hypervisor_hostname')
        if _text(entry, 'hypervisor_type') in MANY_NODES:
            self.note(node, error)
        else:
            self.note(_text(entry, 'service', 'host') or node, error)

    def server(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``servers``: one less in a list would be a guest that is gone.

        :raises InvalidMessage: nobody can say which host that would be
        """
        uuid = _text(entry, 'id')
        if uuid is None or HOST_KEY not in entry:
            raise error
        host = _text(entry, HOST_KEY)
        if host is None and entry[HOST_KEY] is not None:
            raise error
        self.servers[uuid] = host
        if host is not None:
            self.note(host, error)

    def migration(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-migrations``: at either end a guest may be that is on its way.

        :raises InvalidMessage: nobody can say where it began
        """
        source = _text(entry, 'source_compute')
        if source is None:
            raise error
        for host in (source, _text(entry, 'dest_compute')):
            self.note(host or source, error)

    def aggregate(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-aggregates``: it is no aggregate that is gone."""
        self.aggregates[(_text(entry, 'uuid') or '').lower()] = str(error)

    def group(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-server-groups``."""
        self.groups[(_text(entry, 'id') or '').lower()] = str(error)

    def provider(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``resource_providers``."""
        self.note(_text(entry, 'uuid'), error)


def _text(entry: Any, *keys: str) -> str | None:
    """What stands there, where it is text."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry if isinstance(entry, str) and entry else None
