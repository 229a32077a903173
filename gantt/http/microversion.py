# SPDX-License-Identifier: Apache-2.0
"""Microversions: ``OpenStack-API-Version: scheduler 1.N``.

A caller that names no version gets the lowest, so that what worked goes on
working.  The header may name other services as well, separated by commas.
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
HISTORY = (
    Microversion(
        1,
        0,
        'Hosts, aggregates, server groups, requests, decisions, claims, capacity, resource '
        'classes, status and health.',
    ),
    Microversion(
        1,
        1,
        'All hosts in a few numbers (host map), what happened lately (activity), and what '
        'refused (refused).',
    ),
    Microversion(
        1,
        2,
        'Decisions about one consumer, and found by a consumer or by the id that their request has '
        'elsewhere.',
    ),
    Microversion(
        1,
        3,
        'Answers that say where things are: 201 with Location for what was created, links to the '
        'next page. Requests and claims of the own project, a lease that is extended, one metric, '
        'one resource class. Which filters and weighers the schedulers decide with (status). '
        'Quotas of projects, and the limits of the own one with what is used of them.',
    ),
    Microversion(
        1,
        4,
        'Who says what a host has. Which provider gives what, where a host takes of pools that it '
        'shares. Requests that are placed on pools, without a host: who asked confirms and '
        'releases them.',
    ),
    Microversion(
        1,
        5,
        'The cloud as one pool over all resource classes (roll-up).',
    ),
    Microversion(
        1,
        6,
        'Groups of resources and devices of a request, each from one provider of a tree.',
    ),
    Microversion(
        1,
        7,
        'Zones: requests go down to zones below, whose places are named by the zone and sealed '
        '(child, place). Zones below and above are registered, places redeemed. Before it a '
        'request stays on the hosts of this zone.',
    ),
    Microversion(
        1,
        8,
        'What zones say of themselves in advance (facts, summary). Which zones a request over '
        'zones was placed through, and why not through others (zones of a decision). The zones '
        'around one as a tree, and what an audit over zones compares.',
    ),
    Microversion(
        1,
        9,
        'Zones: allocations of a zone above have an order: one that comes after a later one for a '
        'consumer is refused (allocation_outdated). Why a claim below was made, and its group.',
    ),
    Microversion(
        1,
        10,
        'Groups that are placed as a whole: planned, held until their members are created, shown, '
        'changed, healed and given back (group-plans). Server groups with a set of policies, at '
        'any level, and with subgroups of members. Claims in zones below among those of a project '
        '(child), those among them that are lost too, and how many there are (claims_below of the '
        'status). A status names hosts whose records cannot be read (unreadable).',
    ),
)

LOWEST, HIGHEST = HISTORY[0], HISTORY[-1]
_FORM = re.compile(r'(\d{1,4})\.(\d{1,4})\Z')


def parse(header: str | None) -> Microversion:
    """The version that a request asks for.

    :raises UnsupportedMicroversion: malformed, or not served
    """
    for part in (header or '').split(','):
        service, _, version_text = part.strip().partition(' ')
        if service.lower() != SERVICE:
            continue
        version_text = version_text.strip()
        if version_text == 'latest':
            return HIGHEST
        found = _FORM.match(version_text)
        numbers = tuple(map(int, found.groups())) if found else None
        for version in HISTORY:
            if numbers == (version.major, version.minor):
                return version
        raise UnsupportedMicroversion(
            method=HEADER,
            version=quoting.short(version_text),
            expected=f'{LOWEST} to {HIGHEST}, or latest',
        )
    return LOWEST
