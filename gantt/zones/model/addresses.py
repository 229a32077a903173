# SPDX-License-Identifier: Apache-2.0
"""Checks of zone addresses: loopback, or an unencrypted network connection."""

import functools
import ipaddress
from urllib.parse import urlsplit


@functools.lru_cache  # each call to a zone asks again
def is_loopback(url: str) -> bool:
    """Return whether an address is of this machine."""
    host = urlsplit(url).hostname or ''
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_in_clear(url: str) -> bool:
    """Return whether messages to an address can be read or forged on the way."""
    return urlsplit(url).scheme != 'https' and not is_loopback(url)
