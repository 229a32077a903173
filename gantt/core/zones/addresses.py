# SPDX-License-Identifier: Apache-2.0
"""Where a zone is called: on this machine, or over a network that others may listen in to."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine."""
    host = urlsplit(url).hostname or ''
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_in_clear(url: str) -> bool:
    """Whether what is sent there can be read, and answered, by others on the way."""
    return urlsplit(url).scheme != 'https' and not is_loopback(url)
