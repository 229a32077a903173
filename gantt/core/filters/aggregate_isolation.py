# SPDX-License-Identifier: Apache-2.0
"""Aggregates that keep projects, flavors and images apart."""

from typing import Any

from gantt.core.filters.aggregate_metadata import inside, restricted, split, those
from gantt.core.filters.base import (
    EVERY_PURPOSE,
    Conditions,
    ConditionsFilter,
    Filter,
    names_of,
    one_or_all,
)
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND, Option
from gantt.core.resources.host import Aggregate
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

TENANT_KEY = 'filter_tenant_id'
TYPE_KEY = 'instance_type'

#: Spellings of yes and no: an image has ``True`` where an operator writes ``yes``.
_TRUTH = {'true': True, 'yes': True, 'on': True, 'false': False, 'no': False, 'off': False}


class AggregateMultiTenancyIsolation(Filter):
    """Hosts of aggregates with keys ``filter_tenant_id*`` admit only the projects named there."""

    reason = 'kept for other projects than {spec.project_id} by its aggregates'
    columns = ('aggregates',)
    kinds = EVERY_KIND
    fields = ('project_id',)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return restricted(
            hosts, those(hosts, _has_tenants), lambda a: spec.project_id in _tenants(a)
        )

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        project = spec.project_id or '(none)'
        return {'parts': {f'kept for other projects than {project}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        names = _names_at(hosts, those(hosts, _has_tenants), rows)
        project = spec.project_id or '(none)'
        return f'fits on {one_or_all(hosts, rows)} if {names} admits project {project}'


class AggregateTypeAffinityFilter(Filter):
    """Hosts of aggregates with a key ``instance_type`` admit only the flavors named there."""

    reason = 'kept for other flavors than {spec.flavor.name} by its aggregates'
    public_reason = 'the flavor'
    columns = ('aggregates',)
    fields = ('flavor',)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        rule = those(hosts, lambda metadata: TYPE_KEY in metadata)
        return restricted(hosts, rule, lambda a: spec.flavor.name in split(a.metadata[TYPE_KEY]))

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        flavor = spec.flavor.name or '(none)'
        return {'parts': {f'kept for other flavors than {flavor}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        names = _names_at(hosts, those(hosts, lambda metadata: TYPE_KEY in metadata), rows)
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
        names = _names_at(
            hosts,
            those(hosts, lambda metadata: not properties_requested.keys().isdisjoint(metadata)),
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
        rule = those(hosts, lambda metadata: key in metadata)
        return restricted(
            hosts, rule, lambda a: any(self._same(value, v) for v in split(a.metadata[key]))
        )

    def _same(self, value: str, other: str) -> bool:
        if value == other:
            return True
        if self.aggregate_image_properties_isolation_as_nova:
            return False
        truth = _TRUTH.get(value.lower())
        return truth is not None and truth is _TRUTH.get(other.lower())


def _has_tenants(metadata: Any) -> bool:
    return any(key.startswith(TENANT_KEY) for key in metadata)


def _tenants(aggregate: Aggregate) -> set[str]:
    return {
        tenant
        for key, value in aggregate.metadata.items()
        if key.startswith(TENANT_KEY)
        for tenant in split(value)
    }


def _names_at(hosts: HostTable, aggregates: list[Aggregate], rows: IntArray) -> str:
    """Return names of those aggregates that have one of the hosts."""
    return names_of([a.name for a in aggregates if inside(hosts, [a]).take(rows).any()])
