# SPDX-License-Identifier: Apache-2.0
"""The same case on our side, by the way that a report and a request of Nova take.

Nova's own serialized objects come in: a ComputeNode becomes a report and is
folded into a row, a RequestSpec is translated, an Aggregate is read as the cast
that carries it.
"""

from typing import Any

import msgspec

from gantt import exceptions, plugin_loader
from gantt.core.claims import reconcile, registration
from gantt.core.messages import base, image_properties
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.request import Image, Purpose, SelectDestinations
from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.placement import prefilters
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.placement.place import place
from gantt.core.placement.prefilters import Prefilters
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.table.host_table import HostTable
from gantt.core.topology.search import find_layout
from gantt.nova.model import flavor
from gantt.nova.wire import casts
from gantt.nova.wire import spec as nova_spec
from gantt.rpc.api import stats, stats_foreign
from tests.oracle import named

#: The two of Nova's filters that look inside of a host, and what they say together.
INSIDE = ('NUMATopologyFilter', 'PciPassthroughFilter')
TOGETHER = 'NUMATopologyFilter and PciPassthroughFilter'
#: What Nova has Placement look at of aggregates.
WHERE = ('AggregatesFilter', 'AvailabilityZoneFilter')
#: Who is left of the hosts that are named; all filters for those that are forced.
NAMES = ('ForcedHostsFilter', 'IgnoredHostsFilter', 'RequestedDestinationFilter')
NAMED, FORCED, SEVERAL = 'hosts that are named', 'hosts that are forced', 'several instances'
#: Amounts and traits, and hosts by aggregates and zones: what Placement is asked for.
PLACEMENT = ('resources', 'required', 'forbidden', 'where')
#: Seconds of the database's clock.
NOW = 1_000_000.0
#: Our name of an option of Nova, where it is another one, by group.
RENAMED = {
    'metrics': {
        'weight_setting': 'metrics_weight_setting',
        'weight_multiplier': 'metrics_weight_multiplier',
        'weight_of_unavailable': 'metrics_weight_of_unavailable',
        'required': 'metrics_required',
    },
    'pci': {'alias': 'pci_aliases'},
}


class World:
    """One cloud: its table, and the plugins with its options.

    :ivar rules: filters by name
    :ivar weighers: weighers by name
    """

    def __init__(
        self,
        cloud: dict[str, Any],
        answer: dict[str, Any],
        names: tuple[list[str], list[str]],
        *,
        as_nova: bool,
    ) -> None:
        self.table = table_of(cloud, answer)
        values = options_of(cloud['options'])
        plain = [name for name in names[0] if name not in INSIDE]
        self.rules = _pipelines(plain, values, plugin_loader.FILTERS, as_nova)
        self.inside = Pipeline(plugin_loader.load(INSIDE, values), [])
        self.weighers = _pipelines(names[1], values, plugin_loader.WEIGHERS, as_nova)
        self.prefilters = Prefilters(**cloud['options'].get('scheduler', {}))
        self.where = Pipeline(plugin_loader.load(WHERE, values), [])
        self.nodes = [host['hypervisor_hostname'] for host in cloud['hosts']]
        self._named = plugin_loader.load(NAMES, values)
        every = [rule for pipeline in self.rules.values() for rule in pipeline.filters]
        every += [*plugin_loader.load((*WHERE, 'TraitsFilter'), values), *self._named]
        self._forced = Pipeline(every, [], PipelineSettings(prefilters=self.prefilters))

    def named_verdicts(self, request: SelectDestinations) -> str:
        """p or r for each host, by the names in the request."""
        filter_run = FilterRun(self.table, request.spec, Pipeline(self._named, []))
        filter_run.evaluate(request.consumers[0])
        return ''.join('p' if alive else 'r' for alive in filter_run.alive.tolist())

    def forced_verdicts(self, request: SelectDestinations) -> str:
        """As :meth:`verdicts`, of all filters together but those that look inside."""
        filter_run = FilterRun(self.table, request.spec, self._forced)
        try:
            filter_run.evaluate(request.consumers[0])
        except exceptions.PluginError as e:
            return f'x {e}'
        return ''.join('p' if alive else 'r' for alive in filter_run.alive.tolist())

    def picks(self, request: SelectDestinations, case: dict[str, Any]) -> list[str | None]:
        """The node for each of several instances; None where there is none."""
        rules = [
            r
            for name, pipeline in self.rules.items()
            if name in case['ask']
            for r in pipeline.filters
        ]
        weighers = [
            w
            for name, pipeline in self.weighers.items()
            if name in case['ask']
            for w in pipeline.weighers
        ]
        decision = place(
            self.table.copy(),
            request,
            Pipeline([*rules, *self._named], weighers),
            seed=0,
            decision_id=request.request_id,
        )
        nodes = [m.selection.node if m.selection else None for m in decision.members]
        return nodes or [None]

    def verdicts(self, name: str, request: SelectDestinations) -> str:
        """p or r for each host, as the oracle writes it; x: the filter raises."""
        filter_run = FilterRun(self.table, request.spec, self.rules[name])
        try:
            filter_run.evaluate(request.consumers[0])
        except exceptions.PluginError as e:
            return f'x {e}'
        return ''.join('p' if alive else 'r' for alive in filter_run.alive.tolist())

    def asked(self, request: SelectDestinations) -> dict[str, Any]:
        """Amounts, traits, and p or r for each host by aggregates and zones."""
        spec = prefilters.rewrite_spec(request.spec, self.table, self.prefilters)[0]
        filter_run = FilterRun(self.table, spec, self.where)
        filter_run.evaluate(request.consumers[0])
        return {
            'resources': spec.resources,
            'required': sorted(spec.required_traits),
            'forbidden': sorted(spec.forbidden_traits),
            'where': ''.join('p' if alive else 'r' for alive in filter_run.alive.tolist()),
        }

    def inside_verdicts(self, request: SelectDestinations) -> str:
        """As :meth:`verdicts`, of both filters and of the layout that decides."""
        filter_run = FilterRun(self.table, request.spec, self.inside)
        try:
            for rule in self.inside.request_checkers:
                rule.check_request(request.spec)
            filter_run.evaluate(request.consumers[0])
            wish = self.inside.inside.wish(request.spec)
        except (exceptions.PluginError, exceptions.InvalidMessage) as e:
            return f'x {e}'
        return ''.join(
            'p' if alive and (wish is None or self._has_layout(wish, row)) else 'r'
            for row, alive in enumerate(filter_run.alive.tolist())
        )

    def _has_layout(self, wish: TopologyRequest, row: int) -> bool:
        return (
            find_layout(wish, self.table.free_topology(row), self.inside.inside.pack).layout
            is not None
        )

    def weights(self, name: str, request: SelectDestinations) -> list[float] | str:
        """The weight of each host; text: the weigher raises."""
        pipeline = self.weighers[name]
        filter_run = FilterRun(self.table, request.spec, pipeline)
        try:
            filter_run.evaluate(request.consumers[0])
            return filter_run.rank().total.tolist()
        except exceptions.PluginError as e:
            return f'x {e}'


def _pipelines(
    names: list[str], values: dict[str, Any], group: str, as_nova: bool
) -> dict[str, Pipeline]:
    """Each plugin alone, with the options that it has."""
    pipelines = {}
    for name in names:
        mine = dict(values)
        for option in plugin_loader.find(group, name).options:
            if option.name.endswith(('_as_nova', '_weight_physical')):
                mine[option.name] = as_nova
            elif option.name.endswith('_normalization') and as_nova:
                mine[option.name] = 'nova'
            elif option.name == 'metrics_fail_on_missing':
                mine[option.name] = as_nova and values['metrics_required']
        loaded = plugin_loader.load([name], mine, group)
        pipelines[name] = (
            Pipeline(loaded, []) if group == plugin_loader.FILTERS else Pipeline([], loaded)
        )
    return pipelines


def options_of(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Nova's options under our names and in our types."""
    by_our_name: dict[str, Any] = {}
    for group, values in options.items():
        if group == 'scheduler':
            continue  # those of the pre-filters
        for name, value in values.items():
            ours = RENAMED.get(group, {}).get(name, name)
            if ours in ('metrics_weight_setting', 'image_props_weight_setting'):
                value = ', '.join(value)
            if ours == 'pci_aliases':
                value = f'[{", ".join(value)}]'
            if isinstance(value, float) and 'multiplier' in ours and value == 0:
                value = 0.0  # never the negative one
            by_our_name[ours] = '' if value is None else value
    by_our_name.setdefault('metrics_required', True)
    return by_our_name


def table_of(cloud: dict[str, Any], answer: dict[str, Any]) -> HostTable:
    """All hosts as reported, with their guests, in their aggregates."""
    groups = {m: group['uuid'] for group in cloud['groups'] for m in group['members']}
    changes = []
    names = named.names_of(cloud)
    hosts = zip(cloud['hosts'], answer['nodes'], names, strict=True)
    for number, (host, node, name) in enumerate(hosts, 1):
        row = _row(number, host, node, name)
        placed = [
            Placed(
                base.derived_id('test', guest['uuid']),
                guest['uuid'],
                number,
                groups.get(guest['uuid']) if guest['claimed'] else None,
                image=_image(answer['images'][guest['uuid']]),
            )
            for guest in host['guests']
        ]
        changes.append(HostChange(provider_id=number, row=row, placed=placed))
    taken_over = casts.update_aggregates({'aggregates': answer['aggregates']})
    aggregates = [
        Aggregate(id=i, uuid=a.uuid, name=a.name, metadata=a.metadata, hosts=a.hosts)
        for i, a in enumerate(taken_over.aggregates, 1)
    ]
    return HostTable.build(changes, aggregates, {}, (), NOW)


def _image(properties: dict[str, Any]) -> str | None:
    """What is kept with the claim of a guest whose request had such an image."""
    return image_properties.text_of(Image(properties=flavor.image_properties(properties, 'image')))


def _row(number: int, host: dict[str, Any], node: dict[str, Any], name: str) -> HostRow:
    facts = stats_foreign.reported_facts(host['host'], node, stats.Ratios())
    registration_of_host = RegisterHost(
        name=facts.host,
        node=facts.node,
        uuid=facts.uuid,
        boot_nonce=stats.DICTIONARY_REPORT_NONCE,
        cell=host['cell'],
    )
    row = registration.register(None, registration_of_host, provider_id=number)
    row = reconcile.apply_report(row, [], {}, facts.report(row.epoch, 1), NOW).row
    if name != host['host']:
        # One of several nodes, as the source of Nova's hosts says it.
        hypervisor = msgspec.structs.replace(row.facts.hypervisor, service=host['host'])
        facts = msgspec.structs.replace(row.facts, hypervisor=hypervisor)
        row = msgspec.structs.replace(row, name=name, facts=facts)
    service = host['service']
    age = service['last_seen_up']
    return msgspec.structs.replace(
        row,
        reported_at=0.0 if age is None else NOW - age,
        disabled='by an operator' if service['disabled'] else None,
    )


def request_of(case: dict[str, Any], primitive: dict[str, Any]) -> SelectDestinations:
    """The request as Nova's conductor would send it.

    :raises InvalidMessage: it is refused
    """
    args = {
        'spec_obj': primitive,
        'return_objects': True,
        'return_alternates': True,
        'instance_uuids': [case['consumer'], *case.get('several', ())],
    }
    translation = nova_spec.translate(
        args, {'request_id': 'req-1'}, budget_ms=1000, lease_seconds=60, max_attempts=3
    )
    if '_nova_check_type' not in (case['hints'] or {}):
        return translation.request
    # Of a host that the case leaves open, while Nova rebuilds only where the guest is.
    spec = msgspec.structs.replace(translation.request.spec, purpose=Purpose.REBUILD)
    return msgspec.structs.replace(translation.request, spec=spec)


def without_names(request: SelectDestinations) -> SelectDestinations:
    """The same of any host, for filters that are asked one by one."""
    spec = msgspec.structs.replace(request.spec, force_hosts=[], force_nodes=[], ignore_hosts=[])
    return msgspec.structs.replace(request, spec=spec, consumers=request.consumers[:1])
