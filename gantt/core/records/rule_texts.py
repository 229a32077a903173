# SPDX-License-Identifier: Apache-2.0
"""Rules as callers may know them: their own in full, an operator's by where it stands.

Who asks for a place is told which rule was in the way, not what it says: the text
of an operator's rule may name projects, tenants and hosts.  It is kept in the
decision, for operators.
"""

import re

#: Source of the rules of who asks, and of the policies of a server group.
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
    """Whether a rule as operators see it, with its source, is one of a user or of a group's."""
    return shown.endswith((f' ({USER})', f' ({GROUP})'))


def plain_text(shown: str) -> str:
    """A rule for who asks, from what operators see of it; what was told already stays."""
    if is_users(shown) or _OPERATORS.fullmatch(shown):
        return shown
    for place, words in _PLACES:
        found = place.search(shown)
        if found:
            return f"the operator's {words.format(found[1])}"
    return "an operator's rule"
