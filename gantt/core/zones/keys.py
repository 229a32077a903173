# SPDX-License-Identifier: Apache-2.0
"""Keys of a request's shares at places, and names for objects of parent zones."""

import uuid

from gantt.core.messages.base import derived_id


def key_of(opening: str, place: str) -> str:
    """Return the id of a share's request at its place; a worker that takes over derives the same.

    :param opening: of the worker that has the row of the request open
    :param place: uuid of the child zone, or of this zone for a share on own hosts
    """
    return derived_id('allocation', opening, place)


def own_name(parent: str, name: str) -> str:
    """Return the local uuid of an allocation or server group of a parent zone.

    So it cannot collide with names of this zone's own callers, or of another parent zone.

    :param parent: name of the parent zone
    """
    return derived_id('of a zone above', parent, name)


#: Prefix of openings whose requests are only for hosts of their zone.
_STAYS = 's-'


def new_opening(stays: bool) -> str:
    """Return a new unique opening.

    :param stays: the request claims only on hosts of its zone, under its own id
    """
    return (_STAYS if stays else '') + uuid.uuid4().hex


def may_be_elsewhere(opening: str) -> bool:
    """Return whether claims may exist under keys derived from an opening."""
    return not opening.startswith(_STAYS)
