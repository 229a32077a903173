# SPDX-License-Identifier: Apache-2.0
"""Tokens of locks on requests, and the idempotency keys of their shares in zones."""

import uuid

from gantt.core.messages.base import derived_id


def request_id_in_zone(lock_token: str, zone: str) -> str:
    """Return the id of a share's request in its zone; a worker that takes over derives the same.

    :param lock_token: of the lock on the request
    :param zone: uuid of the child zone, or of this zone for a share on local hosts
    """
    return derived_id('allocation', lock_token, zone)


#: Prefix of tokens whose requests are only for hosts of their zone.
_LOCAL_TOKEN_PREFIX = 's-'  # nosec B105 # no password


def new_lock_token(stays: bool) -> str:
    """Return a new unique token.

    :param stays: the request claims only on hosts of its zone, under its own id
    """
    return (_LOCAL_TOKEN_PREFIX if stays else '') + uuid.uuid4().hex


def may_be_elsewhere(lock_token: str) -> bool:
    """Return whether claims may exist under keys derived from a token."""
    return not lock_token.startswith(_LOCAL_TOKEN_PREFIX)
