# SPDX-License-Identifier: Apache-2.0
"""[security]: which messages about hosts have to be signed."""

from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.conf import mutable
from gantt.core.resources.host_keys import SigningMode, SigningModes

GROUP = cfg.OptGroup('security', title='Whose messages about hosts are taken')

OPTS = [
    mutable.StrOpt(
        'signatures',
        default=SigningMode.KNOWN.value,
        choices=[
            (SigningMode.OFF.value, 'signatures are not read, and no keys are stored'),
            (
                SigningMode.KNOWN.value,
                'a host that has once registered with a key must sign with it; hosts '
                'without one are accepted as before',
            ),
            (SigningMode.REQUIRED.value, 'only messages of hosts that sign are accepted'),
        ],
        help='Whether registrations, reports and messages about claims of compute hosts must be '
        'signed by them. Read by gantt-scheduler.',
    ),
    mutable.ListOpt(
        'signatures_of_hosts',
        default=[],
        help='The same for some hosts: pairs PATTERN:MODE, as in '
        '"lab-*:off, cmp-*:required". The first pattern that matches the name of a '
        'host counts.',
    ),
]


def rules(conf: Any) -> SigningModes:
    """Return the signing modes: that of all hosts, and those of hosts by pattern of their name.

    :raises Misconfigured: a pair PATTERN:MODE has another form or an unknown mode
    """
    pairs = []
    for pair in conf.security.signatures_of_hosts:
        pattern, _, mode = pair.rpartition(':')
        if not pattern or mode not in set(SigningMode):
            raise exceptions.Misconfigured(
                option='[security] signatures_of_hosts',
                problem=f'{pair!r} is no pair PATTERN:MODE',
                fix=f'Give one of {", ".join(SigningMode)} after the colon',
            )
        pairs.append((pattern, SigningMode(mode)))
    return SigningModes(mode=SigningMode(conf.security.signatures), of_hosts=tuple(pairs))
