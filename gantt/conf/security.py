# SPDX-License-Identifier: Apache-2.0
"""[security]: whose messages about hosts are taken."""

from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.conf import mutable
from gantt.core.resources.host_keys import Mode, Rules

GROUP = cfg.OptGroup('security', title='Whose messages about hosts are taken')

OPTS = [
    mutable.StrOpt(
        'signatures',
        default=Mode.KNOWN.value,
        choices=[
            (Mode.OFF.value, 'signatures are not read, and no keys are stored'),
            (
                Mode.KNOWN.value,
                'a host that has once registered with a key must sign with it; hosts '
                'without one are accepted as before',
            ),
            (Mode.REQUIRED.value, 'only messages of hosts that sign are accepted'),
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


def rules(conf: Any) -> Rules:
    """Return the modes of hosts.

    :raises Misconfigured: a pair is wrong
    """
    pairs = []
    for pair in conf.security.signatures_of_hosts:
        pattern, _, mode = pair.rpartition(':')
        if not pattern or mode not in set(Mode):
            raise exceptions.Misconfigured(
                option='[security] signatures_of_hosts',
                problem=f'{pair!r} is no pair PATTERN:MODE',
                fix=f'Give one of {", ".join(Mode)} after the colon',
            )
        pairs.append((pattern, Mode(mode)))
    return Rules(mode=Mode(conf.security.signatures), of_hosts=tuple(pairs))
