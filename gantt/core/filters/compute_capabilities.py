# SPDX-License-Identifier: Apache-2.0
"""ComputeCapabilitiesFilter: the host has the capabilities in the flavor's extra specs."""

from gantt import exceptions
from gantt.core.filters.aggregate_extra_specs import AS_NOVA
from gantt.core.filters.base import Condition, Conditions, ConditionsFilter, Parts, names_of
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts as nova_facts
from gantt.core.rules import nova_specs
from gantt.core.rules.facts import NOVA_COLUMNS, capability
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable

SCOPE = 'capabilities'
#: Most extra specs of a request that name facts of hosts: each is evaluated on all of them.
REQUESTED_MAX = 64
ADDRESS_BITS = 'hw:maxphysaddr_bits'
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
    options = (AS_NOVA,)
    extra_specs_as_nova: bool

    def check_request(self, spec: RequestSpec) -> None:
        if len(spec.flavor.extra_specs) <= REQUESTED_MAX:
            return
        count = len(requested_specs(spec))
        if count > REQUESTED_MAX:
            raise exceptions.invalid(
                'request.spec.flavor.extra_specs',
                f'expected at most {REQUESTED_MAX} that name facts of hosts, got {count}',
            )

    def concerns(self, spec: RequestSpec) -> bool:
        return bool(spec.flavor.extra_specs)

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        family = 'capabilities_printed' if self.extra_specs_as_nova else 'capabilities'
        for key, path, requirement in requested_specs(spec):
            # An empty path has no name: the stat without one is the same.
            fact = f'{family}.{":".join(path) or "stats:"}'
            scoped = key.startswith(SCOPE + ':') or key == ADDRESS_BITS
            condition = nova_specs.expression(
                requirement, fact, self.extra_specs_as_nova, not scoped
            )
            yield (key, requirement), condition.mask(hosts, spec)

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        key, requirement = condition
        yield f'{key} is not {requirement!r} ({self._found(hosts, key, rows)})', len(rows)

    def _found(self, hosts: HostTable, key: str, rows: IntArray) -> str:
        """Return values that such hosts have instead, a few of them."""
        path = _path(key)
        texts: dict[str, None] = {}
        facts = capability(hosts, path)
        for row in rows[:100].tolist():
            values = (fact.at(row) for fact in facts)
            value = next((v for v in values if v is not None), None)
            text = 'nothing' if value is None else nova_facts.text_of(value) or ''
            texts[text if len(text) <= 40 else text[:37] + '...'] = None
        return f'hosts have {names_of(list(texts))}'


def requested_specs(spec: RequestSpec) -> list[tuple[str, list[str], str]]:
    """Return (key, path of the fact, requirement) of extra specs that concern capabilities."""
    specs = spec.flavor.extra_specs
    bits = specs.get(ADDRESS_BITS)
    requirements = []
    for key, requirement in specs.items():
        if key == ADDRESS_BITS:
            requirements.append((key, _ADDRESS_PATH, f'>= {requirement}'))
        elif bits is not None and _path(key) == _ADDRESS_PATH and ':' in key:
            continue  # the flavor's own key counts
        elif ':' not in key or key.startswith(SCOPE + ':'):
            requirements.append((key, _path(key), requirement))
    return requirements


def _path(key: str) -> list[str]:
    if key == ADDRESS_BITS:
        return _ADDRESS_PATH
    parts = key.split(':')
    return parts[1:] if len(parts) > 1 and parts[0] == SCOPE else parts
