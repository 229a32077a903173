# SPDX-License-Identifier: Apache-2.0
"""Rules as callers may read them: their own in full, an operator's by its source.

A caller receives the source of the rule that refused a host, not its text: the text
of an operator's rule may name projects, tenants and hosts.  It is stored in the
decision, for operators.
"""

import re

#: Sources of the rules of a caller, and of the policies of a server group.
USER = 'user'
GROUP = 'group'
_PLACES = (
    (re.compile(r' \(configuration, rule ([0-9]+)\)\Z'), 'rule {} of the configuration'),
    (re.compile(r' \(flavor rule:([^()]+)\)\Z'), 'rule {} of the flavor'),
    (re.compile(r' \(aggregate .*, rule:([^,()]+)\)\Z', re.DOTALL), 'rule {} of an aggregate'),
)
_OPERATORS = re.compile(
    "an operator's rule|the operator's rule [^()]+ of (the configuration|the flavor|an aggregate)"
)


def is_users(shown: str) -> bool:
    """Return whether a rule, shown with its source, is one of a user or of a group."""
    return shown.endswith((f' ({USER})', f' ({GROUP})'))


def plain_text(shown: str) -> str:
    """Return a rule for the caller, from its form for operators; converted texts stay."""
    if is_users(shown) or _OPERATORS.fullmatch(shown):
        return shown
    for place, template in _PLACES:
        matched = place.search(shown)
        if matched:
            return f"the operator's {template.format(matched[1])}"
    return "an operator's rule"
