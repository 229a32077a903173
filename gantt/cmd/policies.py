# SPDX-License-Identifier: Apache-2.0
"""The default policy of all capabilities, and the rules in force.

A site changes a rule in its policy file; ``policy.yaml.sample`` is generated from these rules, in
this order.
"""

import functools
import os
from typing import Any

from oslo_config import cfg
from oslo_policy import policy

from gantt import policies
from gantt.groups import policies as groups
from gantt.http.policy import PolicyEnforcer
from gantt.placement_api import policies as placement
from gantt.policies import CALLERS
from gantt.zones import policies as zones


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules; also for oslo.policy's generators."""
    return [
        *CALLERS,
        *policies.RULES,
        *groups.RULES,
        *zones.RULES,
        *placement.BASE_RULES,
        *placement.RULES,
    ]


def enforcer(conf: Any, policy_file: str | None = None) -> PolicyEnforcer:
    """Return the rules in force.

    :param policy_file: instead of the one that the configuration names
    :raises Misconfigured: the policy file is missing, or wrong; names the rule
    """
    return PolicyEnforcer(conf, list_rules(), policy_file)


@functools.cache
def defaults() -> PolicyEnforcer:
    """Return the rules as written in the code; read once, as nothing changes them."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    policy.Enforcer(conf)  # registers its options
    conf.set_override('policy_dirs', [], 'oslo_policy')
    return enforcer(conf, os.devnull)
