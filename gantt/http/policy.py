# SPDX-License-Identifier: Apache-2.0
"""Policy: every route declares the name of a rule, which is checked here.

The rules are those of the code, unless the site's policy file overrides them.  They are
read once: a change of the file needs a new start, as a change of an option does.
"""

import functools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import cachetools
import msgspec
from oslo_config import cfg
from oslo_policy import policy

from gantt import exceptions
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.http.caller import ANONYMOUS_CALLER, Caller

_POLICY_FILE_OPTION = '[oslo_policy] policy_file'
#: Maximum number of results that are remembered.
CACHED_VERDICTS_MAX = 2048
#: A rule for each kind of check that calls no other service.
_LOCAL_RULES = ('@', '!', 'not @', '@ and !', '@ or !', 'rule:a', 'role:a', 'a:%(a)s')


class Forbidden(exceptions.Refused):
    """Error for a caller that does not meet the rule of the request."""

    code = 'gantt.forbidden'
    http_status = 403
    template = 'rule {rule} does not let you: it asks for {needs}; you have {have}'


class PolicyEnforcer:
    """The rules in force."""

    def __init__(
        self,
        conf: Any,
        rules: Sequence[policy.RuleDefault],
        policy_file: str | None = None,
    ) -> None:
        """Read the rules.

        :param conf: a parsed configuration; [oslo_policy] is registered on it
        :param rules: the defaults, of the base and of all capabilities
        :param policy_file: instead of the one that the configuration names
        :raises Misconfigured: the policy file is missing, or wrong; names the rule
        """
        self.enforcer = policy.Enforcer(conf, policy_file=policy_file)
        self.enforcer.suppress_default_change_warnings = True
        self.enforcer.register_defaults(list(rules))
        _load_files(self.enforcer, conf)
        # From here on the files are not read again.
        self.enforcer.use_conf = False
        self._lock = threading.Lock()
        self._verdicts: cachetools.LRUCache[tuple[Any, ...], bool] = cachetools.LRUCache(
            CACHED_VERDICTS_MAX
        )
        self._local: dict[str, bool] = {}
        #: Rules that an unidentified caller meets.
        self.open = frozenset(rule for rule in self.rules if self.allows(rule, ANONYMOUS_CALLER))

    @property
    def defaults(self) -> Collection[policy.RuleDefault]:
        """The rules as they are without a policy file."""
        return self.enforcer.registered_rules.values()

    @property
    def rules(self) -> frozenset[str]:
        """Names of all rules of our own interface."""
        return frozenset(
            name for name in self.enforcer.registered_rules if name.startswith('gantt:')
        )

    def admit(self, rule: str, caller: Caller) -> Caller:
        """Return the caller, marked where the rule admits it to objects of all projects.

        :raises Forbidden: neither to objects of all projects, nor to its own
        """
        caller = msgspec.structs.replace(caller, everywhere=True)
        if not self.allows(rule, caller):
            caller = msgspec.structs.replace(caller, everywhere=False)
            self.check(rule, caller)
        return caller

    def check(self, rule: str, caller: Caller, field: str = '', expected: str = '') -> None:
        """Refuse a caller that does not meet the rule.

        :param field: name of the request's field that needs the rule
        :param expected: value of the field that other callers may send
        :raises Forbidden: the caller does not meet it
        """
        if self.allows(rule, caller):
            return
        refused = Forbidden(rule=rule, needs=self._rule_text(rule), have=caller.roles_and_scope())
        if field:
            message = f'{field}: expected {expected} of you: {refused.message}'
            refused = Forbidden(message, field=field, **refused.kwargs)
        raise refused

    def allows(self, rule: str, caller: Caller) -> bool:
        """Return whether the caller meets the rule for all that it is admitted to.

        :raises Bug: a handler names a rule that does not exist
        """
        if rule not in self.enforcer.registered_rules:
            raise exceptions.Bug(invariant=f'{rule} is a rule of the policy')
        own = not caller.everywhere and caller.project
        target = {'project_id': own} if own else {}
        return self.meets(rule, caller, target)

    def meets(self, rule: str, caller: Caller, target: Mapping[str, str | None]) -> bool:
        """Return whether the caller meets the rule for an object.

        Rules do not change, so results are remembered, unless a rule calls another service.

        :param target: attributes of the object, such as its ``project_id``
        """
        key = (rule, caller, *sorted(target.items()))
        with self._lock:
            is_met = self._verdicts.get(key)
        if is_met is None:
            is_met = bool(self.enforcer.enforce(rule, target, caller.credentials()))
            if self._is_local(rule):
                with self._lock:
                    self._verdicts[key] = is_met
        return is_met

    def _is_local(self, rule: str) -> bool:
        """Return whether only caller and target decide a rule and the rules that it names."""
        is_local = self._local.get(rule)
        if is_local is None:
            is_local = self._local[rule] = all(
                type(part) in _local_checks() for part in _checks_of_rule(rule, self.enforcer.rules)
            )
        return is_local

    def _rule_text(self, rule: str) -> str:
        """Return the text of a rule's check, as written in the policy file or in the code."""
        enforcer = self.enforcer
        definition = enforcer.file_rules.get(rule) or enforcer.registered_rules[rule]
        text = definition.check_str
        for name in sorted(enforcer.rules, key=len, reverse=True):
            if f'rule:{name}' in text:
                text = text.replace(f'rule:{name}', str(enforcer.rules[name]))
        return text


@functools.cache
def _local_checks() -> frozenset[type]:
    """Return the exact types of checks that call no other service; a plugin's may call one."""
    return frozenset(type(policy.RuleDefault('local', text).check) for text in _LOCAL_RULES)


def _load_files(enforcer: policy.Enforcer, conf: Any) -> None:
    """Read the files and check every rule in them: oslo.policy lets a wrong one refuse all."""
    try:
        enforcer.load_rules()
    except (ValueError, OSError, cfg.Error) as e:
        raise _misconfigured(enforcer, ' '.join(str(e).split())) from None
    except (TypeError, AttributeError):
        raise _misconfigured(enforcer, 'expected a mapping of names of rules to rules') from None
    if enforcer.policy_path is None and _is_configured(conf):
        raise _misconfigured(enforcer, 'there is no such file')
    for name, definition in enforcer.file_rules.items():
        problem = _rule_problem(enforcer, name, definition)
        if problem:
            raise _misconfigured(enforcer, f'rule {name}: {problem}')
    if not enforcer.check_rules():
        raise _misconfigured(enforcer, 'rules refer to each other in a circle')


def _is_configured(conf: Any) -> bool:
    """Return whether the option was set."""
    location = conf.get_location('policy_file', 'oslo_policy')
    default_locations = (cfg.Locations.opt_default, cfg.Locations.set_default)
    return location is not None and location.location not in default_locations


def _misconfigured(enforcer: policy.Enforcer, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[oslo_policy] policy_file',
        problem=f'{enforcer.policy_path or enforcer.policy_file}: {problem}',
        fix='See etc/gantt/policy.yaml.sample for every rule as it is without a file',
    )


def _rule_problem(enforcer: policy.Enforcer, name: str, default: policy.RuleDefault) -> str:
    """Return the problem of a rule of a file, or ''."""
    rules = enforcer.registered_rules
    if name.startswith(('gantt:', 'placement:')) and name not in rules:
        return f'there is no such rule{did_you_mean(nearest_names(name, rules))}'
    for part in _parts_of_check(default.check):
        if isinstance(part, policy.RuleCheck) and part.match not in enforcer.rules:
            similar = [f'rule:{rule}' for rule in nearest_names(part.match, enforcer.rules)]
            return f'rule:{part.match} is not defined{did_you_mean(similar)}'
        if str(part) == '!' and '!' not in str(default.check_str):
            return f'{default.check_str!r} is not understood; expected such as "role:admin"'
    return ''


def _checks_of_rule(rule: str, rules: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the checks of a rule and of the rules that it names; there are no circles."""
    for part in _parts_of_check(rules[rule]):
        yield part
        if isinstance(part, policy.RuleCheck):
            yield from _checks_of_rule(part.match, rules)


def _parts_of_check(check_route: Any) -> Iterator[Any]:
    """Yield a check and its parts."""
    yield check_route
    within = [
        *getattr(check_route, 'rules', ()),
        *filter(None, [getattr(check_route, 'rule', None)]),
    ]
    for inner in within:
        yield from _parts_of_check(inner)
