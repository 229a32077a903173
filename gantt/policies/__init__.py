# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the rules in force where no policy file says otherwise.

One module per kind of thing, each with ``list_rules()``.  A site changes a rule
in its policy file; ``policy.yaml.sample`` is made from what stands here.
"""

import importlib
import itertools
from collections.abc import Iterable

from oslo_policy import policy

#: Modules of this package, in the order of the sample file.
MODULES = (
    'base',
    'service',
    'hosts',
    'aggregates',
    'server_groups',
    'requests',
    'decisions',
    'claims',
    'usages',
    'capacity',
    'declared_metrics',
    'quotas',
)


def list_rules() -> Iterable[policy.RuleDefault]:
    """All rules; also for oslo.policy's generators."""
    return itertools.chain.from_iterable(
        importlib.import_module(f'gantt.policies.{name}').list_rules() for name in MODULES
    )
