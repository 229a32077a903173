# SPDX-License-Identifier: Apache-2.0
"""Modules that authors of plug-ins imported once: found under their old paths, with a warning.

``gantt.plugin_api`` is what they import now.  A plug-in written before it goes on.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

C = TypeVar('C', bound=type)
F = TypeVar('F', bound=Callable[..., Any])

FILTERS = 'gantt.plugin_api'
SOURCES = 'gantt.plugin_api.report_sources'

#: Old path -> where the module is now, and the face that has what plug-ins need of it; '': none.
MOVED = {
    'gantt.compute.census': ('gantt.compute.agent.running_guests', SOURCES),
    'gantt.compute.member': ('gantt.compute.farm.host_agent', SOURCES),
    'gantt.compute.report_only': ('gantt.compute.sources.report_only', SOURCES),
    'gantt.compute.report_source': ('gantt.compute.sources.report_source', SOURCES),
    'gantt.compute.reporter': ('gantt.compute.agent.reporter', SOURCES),
    'gantt.compute.runner': ('gantt.compute.farm.runner', SOURCES),
    'gantt.compute.session': ('gantt.compute.agent.session', SOURCES),
    'gantt.compute.shapes': ('gantt.compute.farm.shapes', SOURCES),
    'gantt.core.beside': ('gantt.core.claims.host_facts', ''),
    'gantt.core.build': ('gantt.core.messages.build', ''),
    'gantt.core.claim': ('gantt.core.claims.claim', FILTERS),
    'gantt.core.columns': ('gantt.core.table.columns', FILTERS),
    'gantt.core.commit': ('gantt.core.claims.commit', FILTERS),
    'gantt.core.decision': ('gantt.core.records.decision', FILTERS),
    'gantt.core.extra_specs': ('gantt.core.messages.extra_specs', FILTERS),
    'gantt.core.filters.closing': ('gantt.core.filters.base', FILTERS),
    'gantt.core.group': ('gantt.core.table.placed_index', FILTERS),
    'gantt.core.host': ('gantt.core.resources.host', FILTERS),
    'gantt.core.host_state': ('gantt.core.table.host_state', FILTERS),
    'gantt.core.host_table': ('gantt.core.table.host_table', FILTERS),
    'gantt.core.image_properties': ('gantt.core.messages.image_properties', FILTERS),
    'gantt.core.interned': ('gantt.core.table.columns', FILTERS),
    'gantt.core.kept_masks': ('gantt.core.table.caches', FILTERS),
    'gantt.core.message': ('gantt.core.messages.base', FILTERS),
    'gantt.core.metrics': ('gantt.core.table.metrics', FILTERS),
    'gantt.core.near': ('gantt.core.messages.near', FILTERS),
    'gantt.core.nova_events': ('gantt.core.nova.events', ''),
    'gantt.core.nova_facts': ('gantt.core.nova.facts', FILTERS),
    'gantt.core.nova_filter': ('gantt.core.filters.host_passes', FILTERS),
    'gantt.core.nova_source': ('gantt.core.nova.source', ''),
    'gantt.core.overrides': ('gantt.core.table.aggregates', FILTERS),
    'gantt.core.quoting': ('gantt.core.messages.quoting', FILTERS),
    'gantt.core.ranking': ('gantt.core.placement.ranking', FILTERS),
    'gantt.core.report': ('gantt.core.messages.report', FILTERS),
    'gantt.core.request': ('gantt.core.messages.request', FILTERS),
    'gantt.core.resources': ('gantt.core.messages.resource_classes', FILTERS),
    'gantt.core.scales': ('gantt.core.placement.ranking', FILTERS),
    'gantt.core.topology.columns': ('gantt.core.table.topology', FILTERS),
    'gantt.core.topology.layout': ('gantt.core.messages.layout', FILTERS),
    'gantt.core.topology.wish': ('gantt.core.messages.topology_request', FILTERS),
    'gantt.core.weighers.free': ('gantt.core.weighers.base', FILTERS),
    'gantt.plugins': ('gantt.plugin_loader', FILTERS),
    'gantt.rpc.transport': ('gantt.rpc.amqp.transport', SOURCES),
}


#: Where old paths lead -> former name there -> what it is called now, or another module and that.
RENAMED = {
    'gantt.compute.agent.running_guests': {'Census': 'GuestInventory', 'settle': 'after_boot'},
    'gantt.compute.farm.host_agent': {'Member': 'HostAgent', 'Settings': 'HostAgentSettings'},
    'gantt.compute.farm.runner': {'Turns': 'PeriodicTasks'},
    'gantt.compute.farm.shapes': {'Part': 'ShapePart'},
    'gantt.compute.sources.report_only': {'Entry': 'HostEntry'},
    'gantt.core.claims.commit': {'Fate': 'CommitStatus', 'RequestFate': 'RequestOutcome'},
    'gantt.core.claims.host_facts': {
        'FactsHeard': 'UpdateHostFactsResult',
        'TellFacts': 'UpdateHostFacts',
    },
    'gantt.core.messages.image_properties': {'kept': 'stored', 'KEPT_MAX': 'STORED_MAX'},
    'gantt.core.messages.report': {'Metric': 'ReportedMetric', 'ClaimWords': 'ClaimUpdate'},
    'gantt.core.messages.resource_classes': {'HOT': 'CORE_CLASSES'},
    'gantt.core.nova.events': {
        'Cast': 'NovaCast',
        'Guest': 'NovaGuest',
        'GuestSettled': 'GuestLocation',
    },
    'gantt.core.nova.facts': {'Fact': 'NovaFact'},
    'gantt.core.nova.source': {
        'AggregatesTold': 'AggregateUpdate',
        'AskMoves': 'ListMoves',
        'GroupsTold': 'GroupUpdate',
        'GuestsHeard': 'GuestListResult',
        'GuestsSettled': 'GuestLocations',
        'MoveAsked': 'PendingMove',
    },
    'gantt.core.placement.ranking': {'NORMALIZATIONS': 'gantt.core.weighers.base:NORMALIZATIONS'},
    'gantt.core.resources.host': {
        'Beside': 'AgentFacts',
        'Kind': 'HostKind',
        'TOPIC_PREFIX': 'gantt.core.messages.base:TOPIC_PREFIX',
        'topic_of': 'gantt.core.messages.base:topic_of',
    },
    'gantt.core.table.caches': {'KeptArrays': 'ArrayCache', 'KeptMasks': 'MaskCache'},
    'gantt.core.table.columns': {
        'KeptArrays': 'gantt.core.table.caches:ArrayCache',
        'KeptMasks': 'gantt.core.table.caches:MaskCache',
    },
    'gantt.core.table.metrics': {
        name: f'gantt.core.table.metric_values:{name}' for name in ('ages', 'may_age', 'values')
    },
    'gantt.core.table.placed_index': {
        name: f'gantt.core.table.group_members:{name}'
        for name in ('members_by_row', 'members_on_row')
    },
    'gantt.plugin_loader': {'from_conf': 'gantt.conf.pipeline:pipeline_from_conf'},
}


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else found: asked last, so that it costs nothing where nothing moved."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in MOVED:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__['__getattr__'] = forwarder(module.__name__)


def forwarder(old: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module under an old path: looks names up, and warns."""
    path, face = MOVED[old]

    def look_up(name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        where, _, now = RENAMED.get(path, {}).get(name, name).rpartition(':')
        where = where or path
        # Looked up late: the module may import what is being imported.
        found = getattr(importlib.import_module(where), now)
        if face and hasattr(importlib.import_module(face), now):
            instead = f'import {now} from {face}'
        else:
            instead = f'{now} is in {where}, which may move again'
            instead += f'; {face} has what plug-ins need' if face else ''
        # One that end users see: who runs a plug-in is seldom who wrote it.
        warnings.warn(f'{old} has moved: {instead}', FutureWarning, stacklevel=2)
        return found

    return look_up


def renamed(face: str, names: dict[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a public module some of whose names are others now.

    :param face: the module, by its dotted path
    :param names: the former name -> what it is called now
    """

    def look_up(name: str) -> Any:
        if name not in names:
            raise AttributeError(f'module {face!r} has no attribute {name!r}')
        now = names[name]
        warnings.warn(f'{face}.{name} is called {now} now', FutureWarning, stacklevel=2)
        return getattr(sys.modules[face], now)

    return look_up


def former_attributes(**names: str) -> Callable[[C], C]:
    """A public class some of whose attributes have other names now: the former ones go on.

    :param names: the former name -> what it is called now
    """

    def decorate(cls: C) -> C:
        for former, now in names.items():
            setattr(cls, former, _former(cls.__name__, former, now))
        return cls

    return decorate


def _former(owner: str, former: str, now: str) -> property:
    def look_up(self: object) -> Any:
        warnings.warn(f'{owner}.{former} is called {now} now', FutureWarning, stacklevel=2)
        return getattr(self, now)

    return property(look_up)


def renamed_argument(old: str, new: str) -> Callable[[F], F]:
    """A public method one of whose arguments has another name now: the former one goes on."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs and new not in kwargs:
                where = f'{method.__qualname__}: argument {old}'
                warnings.warn(f'{where} is called {new} now', FutureWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return method(*args, **kwargs)

        return typing.cast(F, call)

    return decorate


def install() -> None:
    """Have old paths found, in this process."""
    if not any(isinstance(one, MovedModules) for one in sys.meta_path):
        sys.meta_path.append(MovedModules())
