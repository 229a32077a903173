# SPDX-License-Identifier: Apache-2.0
"""Under which key the share of a request is claimed at a place, and what it is called there."""

import uuid

from gantt.core.messages.base import derived_id


def key_of(opening: str, place: str) -> str:
    """The id of a share's request at its place: whoever takes over comes to the same one.

    :param opening: of whoever has the row of the request open
    :param place: uuid of the zone below, or of this zone for a share of the own hosts
    """
    return derived_id('allocation', opening, place)


def own_name(parent: str, name: str) -> str:
    """The uuid here of what a zone above calls so, an allocation or a server group.

    So it names nothing of this zone's own callers, and nothing of another zone above.

    :param parent: name of the zone above
    """
    return derived_id('of a zone above', parent, name)


#: What openings begin with whose requests are for hosts of their zone alone.
_STAYS = 's-'


def new_opening(stays: bool) -> str:
    """Another one each time.

    :param stays: nothing is claimed by it but on hosts of its zone, by the request itself
    """
    return (_STAYS if stays else '') + uuid.uuid4().hex


def may_be_elsewhere(opening: str) -> bool:
    """Whether anything may have been claimed under keys that follow from an opening."""
    return not opening.startswith(_STAYS)
