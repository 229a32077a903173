# SPDX-License-Identifier: Apache-2.0
"""What every part of ``SqlStore`` finds there."""

import abc

from gantt.db.claims import claims
from gantt.db.engine import session
from gantt.db.hosts.hosts import Hosts


class StorePart(abc.ABC):
    """Methods of the store's port that belong together."""

    database: session.Database
    reads: session.Database

    @abc.abstractmethod
    def _changes(self, tx: session.Tx) -> claims.Changes: ...

    @abc.abstractmethod
    def _hosts(self, tx: session.Tx) -> Hosts: ...
