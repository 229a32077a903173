# SPDX-License-Identifier: Apache-2.0
"""How callers of the HTTP interface are told apart, and what they may do."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from gantt import exceptions
from gantt.cmd.doctor.finding import Finding, error, warning
from gantt.conf.clear_text import is_here
from gantt.http import auth, policy

_TOKENS = 'keystone_authtoken'
#: What a site may open to everybody: it tells numbers of the process, or nothing of a site.
_MAY_BE_OPEN = {'gantt:metrics:show'}


def callers(conf: Any) -> Iterator[Finding]:
    """The strategy with its options, and the policy file."""
    try:
        auth.strategy(conf.api.auth_strategy, conf)
        rules = policy.Policy(conf)
    except exceptions.Misconfigured as e:
        yield _unusable(e)
        return
    if conf.api.auth_strategy == 'keystone':
        yield from _keystone(conf)
    for rule in sorted(rules.open - policy.defaults().open - _MAY_BE_OPEN):
        yield warning(
            '[oslo_policy] policy_file',
            rules.enforcer.policy_path or '',
            f'the rule {rule} lets everybody who reaches the port, without a token',
            'Let it ask for a role',
        )


def _unusable(failed: exceptions.Misconfigured) -> Finding:
    said = failed.kwargs
    return error(str(said['option']), '(unusable)', str(said['problem']), str(said['fix']))


def _keystone(conf: Any) -> Iterator[Finding]:
    found = conf[_TOKENS]
    url = conf[found.auth_section or _TOKENS].auth_url
    if urlsplit(url).scheme == 'http' and not is_here(urlsplit(url).hostname):
        yield warning(
            f'[{_TOKENS}] auth_url',
            url,
            'our password and the tokens of all callers go there for everybody to read',
            'Say https, and in cafile who vouches for it',
        )
    if found.insecure:
        yield warning(
            f'[{_TOKENS}] insecure',
            True,
            'whoever stands between may vouch for any token',
            'Set cafile instead',
        )
