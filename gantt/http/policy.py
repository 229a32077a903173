# SPDX-License-Identifier: Apache-2.0
"""Who may do what: every route declares the name of a rule and asks here.

The rules are those of ``gantt.policies``, as far as the site's policy file says
nothing else.  They are read once: a change of the file needs a new start, as a
change of an option does.
"""

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import cachetools
import msgspec
from oslo_config import cfg
from oslo_policy import _checks, policy

from gantt import exceptions, policies
from gantt.core.messages.near import did_you_mean, near
from gantt.http.caller import NOBODY, Caller

_OPTION = '[oslo_policy] policy_file'
#: Answers that are remembered.
REMEMBERED = 2048
#: Checks that ask nobody, by their exact kind: others may be a plugin's.
_LOCAL_CHECKS = {
    *(_checks.TrueCheck, _checks.FalseCheck, _checks.NotCheck, _checks.AndCheck, _checks.OrCheck),
    *(_checks.RuleCheck, _checks.RoleCheck, _checks.GenericCheck),
}


class Forbidden(exceptions.Refused):
    """The caller does not meet the rule; in another project, or by another role, it might."""

    code = 'gantt.forbidden'
    http_status = 403
    template = 'rule {rule} does not let you: it asks for {needs}; you have {have}'


class PolicyEnforcer:
    """The rules in force."""

    def __init__(self, conf: Any, policy_file: str | None = None) -> None:
        """Read them.

        :param conf: a parsed configuration; [oslo_policy] is registered on it
        :param policy_file: instead of the one that the configuration names
        :raises Misconfigured: the policy file is not there, or wrong; names the rule
        """
        self.enforcer = policy.Enforcer(conf, policy_file=policy_file)
        self.enforcer.suppress_default_change_warnings = True
        self.enforcer.register_defaults(list(policies.list_rules()))
        _load(self.enforcer, conf)
        # From here on the files are not looked at again.
        self.enforcer.use_conf = False
        self._lock = threading.Lock()
        self._met: cachetools.LRUCache[tuple[Any, ...], bool] = cachetools.LRUCache(REMEMBERED)
        self._local: dict[str, bool] = {}
        #: Rules that ask for nobody's name.
        self.open = frozenset(rule for rule in self.rules if self.allows(rule, NOBODY))

    @property
    def rules(self) -> frozenset[str]:
        """Names of all rules of our own interface."""
        return frozenset(
            name for name in self.enforcer.registered_rules if name.startswith('gantt:')
        )

    def admit(self, rule: str, caller: Caller) -> Caller:
        """The caller, knowing whether the rule lets it at things of all projects.

        :raises Forbidden: neither that, nor at those of its own
        """
        caller = msgspec.structs.replace(caller, everywhere=True)
        if not self.allows(rule, caller):
            caller = msgspec.structs.replace(caller, everywhere=False)
            self.check(rule, caller)
        return caller

    def check(self, rule: str, caller: Caller, field: str = '', expected: str = '') -> None:
        """Refuse who does not meet the rule.

        :param field: of a request, that asks for the rule
        :param expected: there, of who does not meet it
        :raises Forbidden: the caller does not
        """
        if self.allows(rule, caller):
            return
        refused = Forbidden(rule=rule, needs=self._words(rule), have=caller.words())
        if field:
            message = f'{field}: expected {expected} of you: {refused.message}'
            refused = Forbidden(message, field=field, **refused.kwargs)
        raise refused

    def allows(self, rule: str, caller: Caller) -> bool:
        """Whether the caller meets the rule for all that it has been let at.

        :raises Bug: a handler names a rule that does not exist
        """
        if rule not in self.enforcer.registered_rules:
            raise exceptions.Bug(invariant=f'{rule} is a rule of the policy')
        own = not caller.everywhere and caller.project
        target = {'project_id': own} if own else {}
        return self.meets(rule, caller, target)

    def meets(self, rule: str, caller: Caller, target: Mapping[str, str | None]) -> bool:
        """Whether the caller meets the rule for a thing.

        Rules do not change, so what was found is remembered, unless a rule asks another service.

        :param target: what the thing says of itself, such as its ``project_id``
        """
        key = (rule, caller, *sorted(target.items()))
        with self._lock:
            found = self._met.get(key)
        if found is None:
            found = bool(self.enforcer.enforce(rule, target, caller.credentials()))
            if self._is_local(rule):
                with self._lock:
                    self._met[key] = found
        return found

    def _is_local(self, rule: str) -> bool:
        """Whether nothing but the caller and the target decides, the rules that it names too."""
        known = self._local.get(rule)
        if known is None:
            known = self._local[rule] = all(
                type(part) in _LOCAL_CHECKS for part in _whole(rule, self.enforcer.rules)
            )
        return known

    def _words(self, rule: str) -> str:
        """What a rule asks for, as it stands in the file or in the code."""
        enforcer = self.enforcer
        found = enforcer.file_rules.get(rule) or enforcer.registered_rules[rule]
        text = found.check_str
        for name in sorted(enforcer.rules, key=len, reverse=True):
            if f'rule:{name}' in text:
                text = text.replace(f'rule:{name}', str(enforcer.rules[name]))
        return text


@functools.cache
def defaults() -> PolicyEnforcer:
    """The rules as they stand in the code; read once, as nothing changes them."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    policy.Enforcer(conf)  # registers its options
    conf.set_override('policy_dirs', [], 'oslo_policy')
    return PolicyEnforcer(conf, os.devnull)


def _load(enforcer: policy.Enforcer, conf: Any) -> None:
    """Read the files and look at every rule in them: oslo.policy lets a wrong one refuse all."""
    try:
        enforcer.load_rules()
    except (ValueError, OSError, cfg.Error) as e:
        raise _wrong(enforcer, ' '.join(str(e).split())) from None
    except (TypeError, AttributeError):
        raise _wrong(enforcer, 'expected a mapping of names of rules to rules') from None
    if enforcer.policy_path is None and _is_configured(conf):
        raise _wrong(enforcer, 'there is no such file')
    for name, found in enforcer.file_rules.items():
        problem = _problem(enforcer, name, found)
        if problem:
            raise _wrong(enforcer, f'rule {name}: {problem}')
    if not enforcer.check_rules():
        raise _wrong(enforcer, 'rules refer to each other in a circle')


def _is_configured(conf: Any) -> bool:
    """Whether somebody set the option."""
    found = conf.get_location('policy_file', 'oslo_policy')
    default_locations = (cfg.Locations.opt_default, cfg.Locations.set_default)
    return found is not None and found.location not in default_locations


def _wrong(enforcer: policy.Enforcer, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[oslo_policy] policy_file',
        problem=f'{enforcer.policy_path or enforcer.policy_file}: {problem}',
        fix='See etc/gantt/policy.yaml.sample for every rule as it is without a file',
    )


def _problem(enforcer: policy.Enforcer, name: str, found: policy.RuleDefault) -> str:
    """What is wrong with a rule of a file, or nothing."""
    known = enforcer.registered_rules
    if name.startswith(('gantt:', 'placement:')) and name not in known:
        return f'there is no such rule{did_you_mean(near(name, known))}'
    for part in _parts(found.check):
        if isinstance(part, policy.RuleCheck) and part.match not in enforcer.rules:
            meant = [f'rule:{rule}' for rule in near(part.match, enforcer.rules)]
            return f'rule:{part.match} is not defined{did_you_mean(meant)}'
        if str(part) == '!' and '!' not in str(found.check_str):
            return f'{found.check_str!r} is not understood; expected such as "role:admin"'
    return ''


def _whole(rule: str, rules: Mapping[str, Any]) -> Iterator[Any]:
    """What a rule is made of, with the rules that it names; there are no circles."""
    for part in _parts(rules[rule]):
        yield part
        if isinstance(part, policy.RuleCheck):
            yield from _whole(part.match, rules)


def _parts(check: Any) -> Iterator[Any]:
    """A check and what it is made of."""
    yield check
    within = [*getattr(check, 'rules', ()), *filter(None, [getattr(check, 'rule', None)])]
    for inner in within:
        yield from _parts(inner)
