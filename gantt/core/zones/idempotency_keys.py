# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys of a request's shares in zones, and names for objects of parent zones."""

import uuid

from gantt.core.messages.base import derived_id


def key_of(lock_token: str, zone: str) -> str:
    """Return the id of a share's request in its zone; a worker that takes over derives the same.

    :param lock_token: of the lock on the request
    :param zone: uuid of the child zone, or of this zone for a share on local hosts
    """
    return derived_id('allocation', lock_token, zone)


def own_name(parent: str, name: str) -> str:
    """Return the local uuid of an allocation or server group of a parent zone.

    So it cannot collide with names of this zone's own callers, or of another parent zone.

    :param parent: name of the parent zone
    """
    return derived_id('of a zone above', parent, name)


#: Prefix of tokens whose requests are only for hosts of their zone.
_STAYS = 's-'


def new_lock_token(stays: bool) -> str:
    """Return a new unique token.

    :param stays: the request claims only on hosts of its zone, under its own id
    """
    return (_STAYS if stays else '') + uuid.uuid4().hex


def may_be_elsewhere(lock_token: str) -> bool:
    """Return whether claims may exist under keys derived from a token."""
    return not lock_token.startswith(_STAYS)
