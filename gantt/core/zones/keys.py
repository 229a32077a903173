# SPDX-License-Identifier: Apache-2.0
"""Under which key the share of a request is claimed at a place."""

from gantt.core.messages.base import derived_id


def key_of(opening: str, place: str) -> str:
    """The id of a share's request at its place: whoever takes over comes to the same one.

    :param opening: of whoever has the row of the request open
    :param place: uuid of the zone below, or of this zone for a share of the own hosts
    """
    return derived_id('allocation', opening, place)
