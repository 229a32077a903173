# SPDX-License-Identifier: Apache-2.0
"""Rules whose defaults have become others: what a site finds closed after an upgrade.

``gantt-status upgrade check`` names those that the site's policy file says nothing of.
"""

from typing import NamedTuple

_MEMBERS = 'project members, admin and service'
_FEW = 'admin and service'


class Changed(NamedTuple):
    """A default that is another one now.

    :ivar what: the rule lets one do
    :ivar before: who might, in words; ``now``: who may
    """

    rule: str
    what: str
    before: str
    now: str


CHANGED = (
    Changed(
        'gantt:requests:create:claim',
        'claiming places over HTTP, which gantt:requests:create let one do',
        _MEMBERS,
        _FEW,
    ),
    Changed(
        'gantt:requests:create:rules',
        'choosing among hosts by what they are; traits, aggregates, extra specs, devices and '
        'other hints are of it too',
        _MEMBERS,
        _FEW,
    ),
)
