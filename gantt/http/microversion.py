# SPDX-License-Identifier: Apache-2.0
"""Microversions: ``OpenStack-API-Version: scheduler 1.N``.

A caller that names no version gets the lowest, so that existing clients continue to work.  The
header may name other services as well, separated by commas.
"""

import re

import msgspec

from gantt.core.messages import quoting
from gantt.http.errors import UnsupportedMicroversion

SERVICE = 'scheduler'
HEADER = 'OpenStack-API-Version'


class Microversion(msgspec.Struct, frozen=True, order=True):
    """A version that is served."""

    major: int
    minor: int
    summary: str = ''

    def __str__(self) -> str:
        return f'{self.major}.{self.minor}'


#: Every version ever served, oldest first; the documentation's history is this list.
HISTORY = (Microversion(1, 0, 'Everything that is served beside the interface of Placement.'),)

LOWEST, HIGHEST = HISTORY[0], HISTORY[-1]
_FORM = re.compile(r'(\d{1,4})\.(\d{1,4})\Z')


def parse(header: str | None) -> Microversion:
    """Return the version that a request names.

    :raises UnsupportedMicroversion: malformed, or not served
    """
    for part in (header or '').split(','):
        service, _, version_text = part.strip().partition(' ')
        if service.lower() != SERVICE:
            continue
        version_text = version_text.strip()
        if version_text == 'latest':
            return HIGHEST
        match = _FORM.match(version_text)
        numbers = tuple(map(int, match.groups())) if match else None
        for version in HISTORY:
            if numbers == (version.major, version.minor):
                return version
        raise UnsupportedMicroversion(
            method=HEADER,
            version=quoting.quoted(version_text),
            expected=f'{LOWEST}{f" to {HIGHEST}" if LOWEST != HIGHEST else ""}, or latest',
        )
    return LOWEST
