# SPDX-License-Identifier: Apache-2.0
"""Microversions of Placement: ``OpenStack-API-Version: placement 1.N``, here the number N."""

from gantt.http.placement.errors import PlacementError

SERVICE = 'placement'
HEADER = 'openstack-api-version'
LOWEST, HIGHEST = 0, 39


def shown(minor: int) -> str:
    """``1.N``."""
    return f'1.{minor}'


def parse(header: str) -> int:
    """The version that a request asks for: the lowest where it names none.

    The last word about this service counts.

    :raises PlacementError: malformed (400), or not served (406)
    """
    wanted = ''
    for part in header.split(','):
        service, _, version = part.strip().partition(' ')
        if service.lower() == SERVICE and version.strip():
            wanted = version.strip()
    if not wanted:
        return LOWEST
    if wanted == 'latest':
        return HIGHEST
    major, _, minor = wanted.partition('.')
    try:
        found = int(major), int(minor)
    except ValueError:
        raise PlacementError(
            400, f'Invalid microversion: invalid version string: {wanted}; expected 1.N'
        ) from None
    if found[0] != 1 or not LOWEST <= found[1] <= HIGHEST:
        raise PlacementError(406, f'Invalid microversion: Unacceptable version header: {wanted}')
    return found[1]
