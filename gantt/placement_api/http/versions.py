# SPDX-License-Identifier: Apache-2.0
"""Microversions of Placement: ``OpenStack-API-Version: placement 1.N``, here the number N."""

from gantt.placement_api.http.errors import PlacementError

SERVICE = 'placement'
HEADER = 'openstack-api-version'
LOWEST, HIGHEST = 0, 39


def shown(minor: int) -> str:
    """Return a version as ``1.N``."""
    return f'1.{minor}'


def parse(header: str) -> int:
    """Return the version that a request names: the lowest where it names none.

    The last part of the header about this service counts.

    :raises PlacementError: malformed (400), or not served (406)
    """
    requested = ''
    for part in header.split(','):
        service, _, version = part.strip().partition(' ')
        if service.lower() == SERVICE and version.strip():
            requested = version.strip()
    if not requested:
        return LOWEST
    if requested == 'latest':
        return HIGHEST
    major, _, minor = requested.partition('.')
    try:
        numbers = int(major), int(minor)
    except ValueError:
        raise PlacementError(
            400, f'Invalid microversion: invalid version string: {requested}; expected 1.N'
        ) from None
    if numbers[0] != 1 or not LOWEST <= numbers[1] <= HIGHEST:
        raise PlacementError(406, f'Invalid microversion: Unacceptable version header: {requested}')
    return numbers[1]
