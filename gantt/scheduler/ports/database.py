# SPDX-License-Identifier: Apache-2.0
"""The database that all stores of a process share."""

from typing import Protocol


class DatabaseStatus(Protocol):
    """The state of the database itself."""

    def ping(self) -> float:
        """Return the database's clock.  :raises DatabaseUnavailable:"""

    def silent_for(self) -> float:
        """Return seconds that the longest wait for the database, under way now, has lasted.

        Reads that are known to be long do not count.  Cheap: it sends the database nothing,
        and any thread may call it while others wait.
        """

    def check_rights(self) -> None:
        """Check that the user may write every table; nothing is written, no row is locked.

        :raises DatabaseUnavailable: it may not; names a table
        """

    def close(self) -> None:
        """Close its connections."""
