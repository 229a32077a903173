# SPDX-License-Identifier: Apache-2.0
"""Filters by facts of hosts as Nova names them: extra specs of flavors, and queries in JSON."""

from typing import Any

from gantt import exceptions
from gantt.core.filters.aggregates import EXTRA_SPECS_AS_NOVA
from gantt.core.filters.base import (
    Condition,
    Conditions,
    ConditionsFilter,
    Filter,
    Parts,
    names_of,
    one_or_all,
    only,
)
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules import nova_facts, nova_json
from gantt.core.rules.expression import Expression
from gantt.core.rules.facts import NOVA_COLUMNS, capability_facts
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

CAPABILITIES_SCOPE = 'capabilities'
#: Most extra specs of a request that name facts of hosts: each is evaluated on all of them.
CAPABILITY_SPECS_MAX = 64
ADDRESS_BITS_KEY = 'hw:maxphysaddr_bits'
_ADDRESS_PATH = ['cpu_info', 'maxphysaddr', 'bits']


class ComputeCapabilitiesFilter(ConditionsFilter):
    """Keys without scope or in ``capabilities:`` name facts of a host, with colons a way inside.

    A key without scope is left alone by hosts that have no such fact; in the scope
    the fact must be there.
    """

    reason = 'does not have the capabilities of the extra specs'
    public_reason = 'the extra specs of the flavor'
    columns = NOVA_COLUMNS
    shown = '{0}={1}'
    remedy_text = 'fits on {where} without extra spec {what}'
    options = (EXTRA_SPECS_AS_NOVA,)
    extra_specs_as_nova: bool

    def check_request(self, spec: RequestSpec) -> None:
        if len(spec.flavor.extra_specs) <= CAPABILITY_SPECS_MAX:
            return
        count = len(requested_specs(spec))
        if count > CAPABILITY_SPECS_MAX:
            raise exceptions.invalid(
                'request.spec.flavor.extra_specs',
                f'expected at most {CAPABILITY_SPECS_MAX} that name facts of hosts, got {count}',
            )

    def concerns(self, spec: RequestSpec) -> bool:
        return bool(spec.flavor.extra_specs)

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        family = 'capabilities_printed' if self.extra_specs_as_nova else 'capabilities'
        for key, path, requirement in requested_specs(spec):
            # An empty path has no name: the stat without one is the same.
            fact = f'{family}.{":".join(path) or "stats:"}'
            scoped = key.startswith(CAPABILITIES_SCOPE + ':') or key == ADDRESS_BITS_KEY
            condition = nova_json.requirement(
                requirement, fact, self.extra_specs_as_nova, not scoped
            )
            yield (key, requirement), condition.mask(hosts, spec)

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        key, requirement = condition
        yield f'{key} is not {requirement!r} ({self._found(hosts, key, rows)})', len(rows)

    def _found(self, hosts: HostTable, key: str, rows: IntArray) -> str:
        """Return values of the key on these hosts instead, a few of them."""
        path = _fact_path(key)
        texts: dict[str, None] = {}
        facts = capability_facts(hosts, path)
        for row in rows[:100].tolist():
            values = (fact.value_at(row) for fact in facts)
            value = next((v for v in values if v is not None), None)
            text = 'nothing' if value is None else nova_facts.text_of(value) or ''
            texts[text if len(text) <= 40 else text[:37] + '...'] = None
        return f'hosts have {names_of(list(texts))}'


def requested_specs(spec: RequestSpec) -> list[tuple[str, list[str], str]]:
    """Return (key, path of the fact, requirement) of extra specs that concern capabilities."""
    specs = spec.flavor.extra_specs
    bits = specs.get(ADDRESS_BITS_KEY)
    requirements = []
    for key, requirement in specs.items():
        if key == ADDRESS_BITS_KEY:
            requirements.append((key, _ADDRESS_PATH, f'>= {requirement}'))
        elif bits is not None and _fact_path(key) == _ADDRESS_PATH and ':' in key:
            continue  # the flavor's own key counts
        elif ':' not in key or key.startswith(CAPABILITIES_SCOPE + ':'):
            requirements.append((key, _fact_path(key), requirement))
    return requirements


def _fact_path(key: str) -> list[str]:
    if key == ADDRESS_BITS_KEY:
        return _ADDRESS_PATH
    parts = key.split(':')
    return parts[1:] if len(parts) > 1 and parts[0] == CAPABILITIES_SCOPE else parts


class JsonFilter(Filter):
    """Hint ``query``: JSON with the operators ``= < > in <= >= not or and`` and ``$fact.key``."""

    reason = 'does not fit the query'
    public_reason = 'the hint query'
    columns = NOVA_COLUMNS
    options = (
        Option(
            'json_filter_as_nova',
            bool,
            False,
            'In queries treat "not" within "and" and "or" as true if it has an argument, as '
            'Nova does',
        ),
    )
    json_filter_as_nova: bool

    def check_request(self, spec: RequestSpec) -> None:
        self._query(spec)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        try:
            query = self._query(spec)
        except exceptions.InvalidMessage:
            return only(hosts, [])
        return None if query is None else query.mask(hosts, spec)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        return {'parts': {f'do not fit the query {_query_text(spec)}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        return f'fits on {one_or_all(hosts, rows)} without the query {_query_text(spec)}'

    def _query(self, spec: RequestSpec) -> Expression | None:
        """Return the query of a request, None where it has none.

        :raises InvalidMessage: it cannot be parsed, or costs too much
        """
        texts = spec.hints.get('query', [])
        if len(texts) > 1:
            raise nova_json.invalid_query(f'expected one query, got {len(texts)}')
        if not texts or not texts[0]:
            return None
        return nova_json.compiled_query(texts[0], self.json_filter_as_nova)


def _query_text(spec: RequestSpec) -> str:
    text = ' '.join(spec.hints.get('query', []))
    return text if len(text) <= 80 else text[:77] + '...'
