# SPDX-License-Identifier: Apache-2.0
"""[quotas]: the limits of projects in a cloud that stores no defaults."""

from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.conf import mutable
from gantt.core.claims import quota
from gantt.core.messages import resource_classes

GROUP = cfg.OptGroup('quotas', title='How much one project may have')

_SCOPE_HELP = (
    'It binds what members of the project ask for over HTTP; what services such as Nova place '
    'for the project only a limit that "gantt quota set" gave this very project binds. '
    '"gantt quota set default" stores another default, which goes before this one. -1: no limit.'
)


def _limit_option(name: str, default: int, text: str) -> cfg.IntOpt:
    return mutable.IntOpt(
        name,
        default=default,
        min=quota.UNLIMITED,
        max=quota.LIMIT_MAX,
        help=f'{text} {_SCOPE_HELP}',
    )


OPTS = [
    _limit_option(
        quota.CLAIMS_IN_FLIGHT, 100, 'Claims of a project that are reserved and not confirmed.'
    ),
    _limit_option(quota.LIVE_CLAIMS, 200, 'Consumers of a project that have a live claim.'),
    _limit_option(quota.SERVER_GROUPS, 100, 'Server groups of a project.'),
    _limit_option(
        quota.RESERVATIONS,
        1000,
        'Reservations of a project in plans of groups, until their guests run.',
    ),
    _limit_option(
        quota.REQUESTS_PER_MINUTE,
        1200,
        'Requests for places of a project in a minute, dry runs included; so many may come at '
        'once. Each process of gantt-api and of gantt-scheduler counts what reaches it.',
    ),
    mutable.DictOpt(
        'amounts',
        # Of 200 live claims with 4 vCPU, 16 GiB and 100 GB each.
        default={'VCPU': '800', 'MEMORY_MB': '3276800', 'DISK_GB': '20000'},
        help='Amounts of a project by resource class, in the unit of the class: pairs '
        'CLASS:AMOUNT, as in "VCPU:200, MEMORY_MB:512000". A class that is not named has no '
        f'limit. {_SCOPE_HELP}',
    ),
]


def limits(conf: Any) -> dict[str, int]:
    """Return the limits of the options by name.

    :raises Misconfigured: an amount is wrong
    """
    limit_of = {name: getattr(conf.quotas, name) for name in quota.COUNT_LIMITS}
    for name, text in conf.quotas.amounts.items():
        amount = int(text) if text.removeprefix('-').isdecimal() and len(text) < 20 else None
        is_class = resource_classes.is_class_name(name)
        if not is_class or amount is None or not quota.UNLIMITED <= amount <= quota.LIMIT_MAX:
            raise exceptions.Misconfigured(
                option='[quotas] amounts',
                problem=f'{name}:{text} is no pair CLASS:AMOUNT',
                fix='Give resource classes such as VCPU or CUSTOM_LICENSE, each with a whole '
                f'number from 0 to {quota.LIMIT_MAX}, or {quota.UNLIMITED} for no limit',
            )
        limit_of[f'{quota.CLASS_LIMIT_PREFIX}{name}'] = amount
    return limit_of
