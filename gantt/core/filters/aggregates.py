# SPDX-License-Identifier: Apache-2.0
"""Filters by aggregates: membership, zones, extra specs, and what keeps users apart.

A question is evaluated once per aggregate and carried over to its hosts by the bits of their
aggregates.  Values of one key over all aggregates of a host count together, as in Nova: match-style
keys are split at commas, limits are whole numbers of which the least counts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from gantt.core.filters.base import (
    EVERY_PURPOSE,
    Condition,
    Conditions,
    ConditionsFilter,
    Filter,
    Parts,
    UnknownFacts,
    has_any,
    names_of,
    one_or_all,
    only,
)
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND, Option
from gantt.core.resources.host import Aggregate
from gantt.core.rules import nova_json
from gantt.core.table.columns import BoolArray, FloatArray, IntArray, words_of
from gantt.core.table.host_table import HostTable

OUTSIDE_REASON, FORBIDDEN_REASON = 'not in the aggregates asked for', 'in a forbidden aggregate'


class AggregatesFilter(Filter):
    """``member_of`` is an AND of ORs; aggregates are named by uuid or name."""

    reason = 'not in the aggregates asked for, or in a forbidden one'
    columns = ('aggregates',)
    kinds = EVERY_KIND
    fields = ('member_of', 'forbidden_aggregates')
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return aggregate_mask(hosts, spec.member_of, spec.forbidden_aggregates)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for the first condition that it breaks.

        Names are for operators: some of them come from rules that keep tenants apart.
        """
        bits = hosts.aggregates.take(rows, axis=1)
        conditions = [(OUTSIDE_REASON, names, True) for names in spec.member_of]
        conditions += [(FORBIDDEN_REASON, [name], False) for name in spec.forbidden_aggregates]
        parts: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for text, names, expected in conditions:
            wrong = has_any(bits, hosts.aggregate_bits(names)) != expected
            count = int(np.count_nonzero(wrong))
            if count:
                shown = f'{text}: {names_of(_names(hosts, names)) or "there is none"}'
                parts[shown] = parts.get(shown, 0) + count
                reasons[shown] = text
                bits = bits[:, ~wrong]
        return {'parts': parts, 'public_parts': reasons}

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        return unknown_aggregates(hosts, spec.member_of)


def unknown_aggregates(hosts: HostTable, member_of: list[list[str]]) -> Iterable[UnknownFacts]:
    """Yield unknown aggregates of lists that have no known aggregate, reported by no host."""
    aggregates = hosts.known_aggregates
    names = {aggregate.name for aggregate in aggregates.values()}
    for requested in member_of:
        if (
            aggregates.keys().isdisjoint(requested)
            and names.isdisjoint(requested)
            and not has_any(hosts.aggregates, hosts.aggregate_bits(requested)).any()
        ):
            yield from (UnknownFacts('aggregate', name, sorted(names)) for name in requested)


def _names(hosts: HostTable, uuids: list[str]) -> list[str]:
    """Return names of aggregates that were named by name or uuid."""
    aggregates = hosts.known_aggregates
    return [aggregates[key].name if key in aggregates else key for key in uuids]


def aggregate_mask(
    hosts: HostTable, member_of: list[list[str]], forbidden: list[str]
) -> BoolArray | None:
    """Return hosts in one of each list of ``member_of`` and in none of ``forbidden``."""
    mask: BoolArray | None = None
    for names in member_of:
        in_aggregates = has_any(hosts.aggregates, hosts.aggregate_bits(names))
        mask = in_aggregates if mask is None else np.logical_and(mask, in_aggregates, out=mask)
    if forbidden:
        words = hosts.aggregate_bits(forbidden)
        if words:
            outside = ~has_any(hosts.aggregates, words)
            mask = outside if mask is None else np.logical_and(mask, outside, out=mask)
    return mask


NumberT = TypeVar('NumberT', int, float)


def split_values(text: str) -> list[str]:
    """Return the values of a match-style key: parts between commas, without spaces around."""
    return [part.strip() for part in text.split(',')]


def in_aggregates(hosts: HostTable, aggregates: Iterable[Aggregate]) -> BoolArray:
    """Return which hosts are in one of the aggregates."""
    codes = (hosts.aggregate_codes.get(aggregate.uuid) for aggregate in aggregates)
    return has_any(hosts.aggregates, words_of(code for code in codes if code is not None))


def aggregates_with(
    hosts: HostTable, chosen: Callable[[Mapping[str, str]], bool]
) -> list[Aggregate]:
    """Return the aggregates whose metadata the predicate ``chosen`` accepts."""
    return [a for a in hosts.known_aggregates.values() if chosen(a.metadata)]


def admitted_hosts(
    hosts: HostTable, has_rule: list[Aggregate], admits: Callable[[Aggregate], bool]
) -> BoolArray | None:
    """Return hosts with no rule, or one that admits the request; None: no host has a rule."""
    if not has_rule:
        return None
    return ~in_aggregates(hosts, has_rule) | in_aggregates(hosts, filter(admits, has_rule))


def least_metadata_value(
    hosts: HostTable,
    key: str,
    otherwise: 'NumberT | IntArray | FloatArray',
    read: Callable[[str], 'NumberT | None'],
) -> 'tuple[np.ndarray, list[str]]':
    """Return the least value of a key over each host's aggregates, and texts that are no value.

    :param otherwise: where no aggregate of a host has a value, one for all or by row
    :param read: returns a value from its text, None where it is none; such a text does not count
    """
    values = np.array(np.broadcast_to(np.asarray(otherwise), len(hosts)))
    by_value: dict[NumberT, list[Aggregate]] = {}
    wrong: list[str] = []
    for aggregate in aggregates_with(hosts, lambda metadata: key in metadata):
        value = read(aggregate.metadata[key])
        if value is None:
            wrong.append(aggregate.metadata[key])
        else:
            by_value.setdefault(value, []).append(aggregate)
    for value in sorted(by_value, reverse=True):
        values[in_aggregates(hosts, by_value[value])] = value
    return values, wrong


EXTRA_SPECS_SCOPE = 'aggregate_instance_extra_specs:'
EXTRA_SPECS_AS_NOVA = Option(
    'extra_specs_as_nova',
    bool,
    False,
    'Read extra specs in all as Nova does: of <or> a b c only every other word counts, and <in> '
    'and <all-in> look into the printed form of a list instead of for members of it',
)


class AggregateInstanceExtraSpecsFilter(ConditionsFilter):
    """Every key without scope, or in the filter's own, is in an aggregate with a fitting value.

    One fitting value of any aggregate of the host is enough, so ``s!= x`` passes
    wherever some value differs.
    """

    reason = 'its aggregates do not have what the extra specs ask for'
    public_reason = 'the extra specs of the flavor'
    columns = ('aggregates',)
    fields = ('flavor',)
    options = (EXTRA_SPECS_AS_NOVA,)
    extra_specs_as_nova: bool
    shown = '{0} {1}'
    remedy_text = 'fits on {where} in an aggregate with: {what}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        for key, requirement in requested_specs(spec):
            yield (key, requirement), self._meets(hosts, spec, key, requirement)

    def _meets(self, hosts: HostTable, spec: RequestSpec, key: str, requirement: str) -> BoolArray:
        if not key:  # a fact without a key has no name
            return only(hosts, [])
        fact = f'metadata_listed.{key}'
        return nova_json.requirement(requirement, fact, self.extra_specs_as_nova).mask(hosts, spec)

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        key, requirement = condition
        has_key = in_aggregates(
            hosts, aggregates_with(hosts, lambda metadata: key in metadata)
        ).take(rows)
        count = int(np.count_nonzero(has_key))
        yield f'in no aggregate with {key}', len(rows) - count
        yield f'in aggregates whose {key} does not fit {requirement!r}', count


def requested_specs(spec: RequestSpec) -> list[tuple[str, str]]:
    """Return extra specs that concern aggregates, keys without the scope."""
    return [
        (key.removeprefix(EXTRA_SPECS_SCOPE), requirement)
        for key, requirement in spec.flavor.extra_specs.items()
        if ':' not in key or key.startswith(EXTRA_SPECS_SCOPE)
    ]


TENANT_KEY = 'filter_tenant_id'
TYPE_KEY = 'instance_type'

#: Spellings of yes and no: an image has ``True`` where an operator writes ``yes``.
_BOOLEAN_SPELLINGS = {
    'true': True,
    'yes': True,
    'on': True,
    'false': False,
    'no': False,
    'off': False,
}


class AggregateMultiTenancyIsolation(Filter):
    """Hosts of aggregates with keys ``filter_tenant_id*`` admit only the projects named there."""

    reason = 'kept for other projects than {spec.project_id} by its aggregates'
    columns = ('aggregates',)
    kinds = EVERY_KIND
    fields = ('project_id',)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return admitted_hosts(
            hosts, aggregates_with(hosts, _has_tenants), lambda a: spec.project_id in _tenants(a)
        )

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        project = spec.project_id or '(none)'
        return {'parts': {f'kept for other projects than {project}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        names = _aggregate_names(hosts, aggregates_with(hosts, _has_tenants), rows)
        project = spec.project_id or '(none)'
        return f'fits on {one_or_all(hosts, rows)} if {names} admits project {project}'


class AggregateTypeAffinityFilter(Filter):
    """Hosts of aggregates with a key ``instance_type`` admit only the flavors named there."""

    reason = 'kept for other flavors than {spec.flavor.name} by its aggregates'
    public_reason = 'the flavor'
    columns = ('aggregates',)
    fields = ('flavor',)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        rule = aggregates_with(hosts, lambda metadata: TYPE_KEY in metadata)
        return admitted_hosts(
            hosts, rule, lambda a: spec.flavor.name in split_values(a.metadata[TYPE_KEY])
        )

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        flavor = spec.flavor.name or '(none)'
        return {'parts': {f'kept for other flavors than {flavor}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        names = _aggregate_names(
            hosts, aggregates_with(hosts, lambda metadata: TYPE_KEY in metadata), rows
        )
        flavor = spec.flavor.name or '(none)'
        return f'fits on {one_or_all(hosts, rows)} if {names} admits flavor {flavor}'


class AggregateImagePropertiesIsolation(ConditionsFilter):
    """Pass hosts whose aggregates have, of each image property they name, the image's value.

    An image without the property passes: the isolation has one side only.
    """

    reason = 'kept for images with other properties by its aggregates'
    public_reason = 'the properties of the image'
    columns = ('aggregates',)
    fields = ('image',)
    purposes = EVERY_PURPOSE
    options = (
        Option(
            'aggregate_image_properties_isolation_namespace',
            str,
            '',
            'Only keys of aggregates that begin with this and the separator keep images '
            'apart; empty: all keys. The key is compared whole with the names of properties',
        ),
        Option(
            'aggregate_image_properties_isolation_separator',
            str,
            '.',
            'What stands between the namespace and the rest of a key',
        ),
        Option(
            'aggregate_image_properties_isolation_as_nova',
            bool,
            False,
            'Compare the text of a property as Nova does: True is not the same as true or '
            'yes, and a property that is False or 0 keeps nobody out',
        ),
    )
    aggregate_image_properties_isolation_namespace: str
    aggregate_image_properties_isolation_separator: str
    aggregate_image_properties_isolation_as_nova: bool

    shown = 'kept for images with another {0} than {1}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        for key, value in self._requested(spec).items():
            admits = self._admitted(hosts, key, value)
            if admits is not None:
                yield (key, value), admits

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        properties_requested = self._requested(spec)
        names = _aggregate_names(
            hosts,
            aggregates_with(
                hosts, lambda metadata: not properties_requested.keys().isdisjoint(metadata)
            ),
            rows,
        )
        return f'fits on {one_or_all(hosts, rows)} with an image that {names} admits'

    def _requested(self, spec: RequestSpec) -> dict[str, str]:
        """Return properties of the image that count."""
        space = self.aggregate_image_properties_isolation_namespace
        prefix = space + self.aggregate_image_properties_isolation_separator if space else ''
        return {
            key: value
            for key, value in spec.image.properties.items()
            if key.startswith(prefix) and self._counts(value)
        }

    def _counts(self, value: str) -> bool:
        if self.aggregate_image_properties_isolation_as_nova:
            return value not in ('', 'False', '0')
        return value != ''

    def _admitted(self, hosts: HostTable, key: str, value: str) -> BoolArray | None:
        rule = aggregates_with(hosts, lambda metadata: key in metadata)
        return admitted_hosts(
            hosts, rule, lambda a: any(self._same(value, v) for v in split_values(a.metadata[key]))
        )

    def _same(self, value: str, other: str) -> bool:
        if value == other:
            return True
        if self.aggregate_image_properties_isolation_as_nova:
            return False
        truth = _BOOLEAN_SPELLINGS.get(value.lower())
        return truth is not None and truth is _BOOLEAN_SPELLINGS.get(other.lower())


def _has_tenants(metadata: Any) -> bool:
    return any(key.startswith(TENANT_KEY) for key in metadata)


def _tenants(aggregate: Aggregate) -> set[str]:
    return {
        tenant
        for key, value in aggregate.metadata.items()
        if key.startswith(TENANT_KEY)
        for tenant in split_values(value)
    }


def _aggregate_names(hosts: HostTable, aggregates: list[Aggregate], rows: IntArray) -> str:
    """Return names of the ``aggregates`` that have a host at ``rows``."""
    return names_of([a.name for a in aggregates if in_aggregates(hosts, [a]).take(rows).any()])


class AvailabilityZoneFilter(Filter):
    """A host's zone: of an aggregate that has one, else reported, else the default.

    A forced host has to be in the zone as well, but for the default one: that of
    ``nova:HOST`` is what people write where they do not know the zone of the host.
    """

    reason = 'not in availability zone {spec.availability_zone}'
    public_reason = 'the availability zone asked for'
    columns = ('zone',)
    kinds = EVERY_KIND
    fields = ('availability_zone', 'force_hosts', 'force_nodes')
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        requested = spec.availability_zone
        if requested is None:
            return None
        if requested == hosts.default_zone and (spec.force_hosts or spec.force_nodes):
            named = (a.metadata.get('availability_zone') for a in hosts.known_aggregates.values())
            if requested not in named:  # hosts that report it do not make it one of an operator's
                return None
        code = hosts.zones.get(requested)
        if code is None:
            return hosts.zone == 0 if requested == hosts.default_zone else only(hosts, [])
        mask = hosts.zone == code
        if requested == hosts.default_zone:
            mask |= hosts.zone == 0
        return mask

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        requested, zones = spec.availability_zone, _known_zones(hosts)
        if requested is not None and requested not in zones:
            yield UnknownFacts('availability zone', requested, sorted(zones))

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        zones = sorted({hosts.zone_name(int(row)) for row in np.unique(rows)[:1000]})
        host_count = f'{len(rows)} host{"s" if len(rows) > 1 else ""}'
        return f'fits on {host_count} in availability zone {names_of(zones)}'


def _known_zones(hosts: HostTable) -> set[str]:
    """Return zones that a host is in, or that an aggregate has, be it empty."""
    codes = np.flatnonzero(np.bincount(hosts.zone)).tolist()
    named = {a.metadata.get('availability_zone', '') for a in hosts.known_aggregates.values()}
    return {hosts.zones.names[code] or hosts.default_zone for code in codes} | named - {''}
