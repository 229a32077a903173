# SPDX-License-Identifier: Apache-2.0
"""Loading plugins by name from the entry points, with helpful errors.

A plugin is a class in group ``gantt.filters`` or ``gantt.weighers``, or in a group of a capability,
which passes the class that its plugins extend.  It is checked before the service starts: that it
loads, is of the right kind, reads columns that exist, and that its options are sane.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.filters import host_passes
from gantt.core.filters.base import Filter
from gantt.core.messages.near import nearest_names
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.plugin import Plugin
from gantt.core.weighers.base import Weigher

FILTERS = 'gantt.filters'
WEIGHERS = 'gantt.weighers'
KINDS: dict[str, type[Plugin]] = {FILTERS: Filter, WEIGHERS: Weigher}

#: The filters in force unless configured otherwise, cheap and selective first.
DEFAULT_FILTERS = (
    'ForcedHostsFilter',
    'IgnoredHostsFilter',
    'RequestedDestinationFilter',
    'ComputeFilter',
    'AvailabilityZoneFilter',
    'AggregatesFilter',
    'TraitsFilter',
    'ResourcesFilter',
    'NUMATopologyFilter',
    'PciPassthroughFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'GroupPolicyFilter',
    'SameHostFilter',
    'DifferentHostFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'LocationFilter',
    'RulesFilter',
)
DEFAULT_WEIGHERS = (
    'RAMWeigher',
    'CPUWeigher',
    'DiskWeigher',
    'IoOpsWeigher',
    'NumInstancesWeigher',
    'HypervisorVersionWeigher',
    'PCIWeigher',
    'MetricsWeigher',
    'BuildFailureWeigher',
    'CrossCellWeigher',
    'ImagePropertiesWeigher',
    'ServerGroupSoftAffinityWeigher',
    'ServerGroupSoftAntiAffinityWeigher',
    'GroupPolicyWeigher',
    'PoolRoomWeigher',
    'ResourceClassWeigher',
    'DeviceFitWeigher',
    'RulesWeigher',
)


def installed(group: str) -> list[str]:
    """Return the names of all plugins of a group."""
    return sorted(_entries(group))


@functools.cache
def _entries(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points by name; that of the package which comes first on the path."""
    entries: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=group):
        entries.setdefault(entry.name, entry)
    return entries


def rescan() -> None:
    """Make packages that were installed since the last scan visible; loaded plugins stay."""
    importlib.invalidate_caches()
    _entries.cache_clear()


@functools.cache
def find(group: str, name: str, kind: type[Plugin] | None = None) -> type[Plugin]:
    """Return the class of a plugin.

    :param kind: the class that plugins of the group extend; None: that of ``KINDS``
    :raises PluginError: unknown (with the nearest known name), does not load,
        is of the wrong kind, or reads a column that does not exist
    """
    plugin = _import_object(name) if ':' in name else _load_entry_point(group, name)
    return _checked_class(group, name, plugin, kind or KINDS[group])


def find_class(group: str, name: str, kind: type) -> Any:
    """Return the class of a plugin of another kind.

    :raises PluginError: unknown (with the nearest known name), does not load, or is
        of the wrong kind
    """
    loaded = _load_entry_point(group, name)
    if isinstance(loaded, type) and issubclass(loaded, kind):
        return loaded
    raise _wrong_kind_error(name, loaded, kind)


def _load_entry_point(group: str, name: str) -> Any:
    names = installed(group)
    if name not in names:
        nearest = nearest_names(name, names, 1)
        hint = (
            f'did you mean {nearest[0]!r}?'
            if nearest
            else f'installed: {", ".join(names) or "none"}'
        )
        raise exceptions.PluginError(
            plugin=name,
            problem=f'is not installed in {group}; {hint}',
            fix='Correct the name, or install the package that has it',
        )
    try:
        return _entries(group)[name].load()
    except exceptions.PluginError:
        raise
    except Exception as e:
        # What such an installation adds to the path of Python is read when a process starts.
        late = '; if "pip install -e" installed it while this process ran, start the process again'
        more = late if isinstance(e, ModuleNotFoundError) else ''
        raise _import_error(name, e, more, 'Mend or disable it') from e


def _import_error(name: str, error: Exception, more: str, fix: str) -> exceptions.PluginError:
    """Return the error for a plugin whose import failed.

    Importing runs code that is not ours: whatever it raises is its failure.
    """
    module = (error.name or '') if isinstance(error, ImportError) else ''
    if module.partition('.')[0] == 'gantt':
        # Only the public modules keep their paths and names from release to release.
        more = (
            '; expected imports from gantt.plugin_api, which has what a plugin needs: its __all__ '
            'lists the names'
        )
    problem = f'does not load: {type(error).__name__}: {error}{more}'
    return exceptions.PluginError(plugin=name, problem=problem, fix=fix)


def _checked_class(group: str, name: str, found: Any, kind: type[Plugin]) -> type[Plugin]:
    """Return a plugin's class, checked to be of the kind; a class written for Nova is adapted."""
    if isinstance(found, type) and issubclass(found, kind):
        found.check_declarations()
        return found
    if group == FILTERS and host_passes.is_for_nova(found):
        return host_passes.adapted_filter(found)
    raise _wrong_kind_error(name, found, kind)


def _wrong_kind_error(name: str, found: Any, kind: type) -> exceptions.PluginError:
    return exceptions.PluginError(
        plugin=name,
        problem=f'is {found!r}; expected a subclass of {kind.__module__}.{kind.__name__}',
        fix='Correct its entry point',
    )


def _import_object(name: str) -> Any:
    """Return the object at ``module:Class``: a plugin without an entry point."""
    module, _, attribute = name.partition(':')
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as e:
        raise _import_error(name, e, '', 'Write module:Class, and mend it or disable it') from e


def load(
    names: Sequence[str],
    options: Mapping[str, Any] | None = None,
    group: str = FILTERS,
    kind: type[Plugin] | None = None,
) -> list[Any]:
    """Return plugins by name, in this order.

    :param options: option name -> value; each plugin takes those it declares
    :param kind: see :func:`find`
    :raises PluginError: see :func:`find`; or a name is listed twice, or an
        option has a value that the plugin refuses
    """
    options = options or {}
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise exceptions.PluginError(
            plugin=twice[0], problem=f'is listed twice in {group}', fix='List it once'
        )
    kinds = () if kind is None else (kind,)
    return [_make_plugin(find(group, name, *kinds), options) for name in names]


def _make_plugin(plugin: type[Plugin], options: Mapping[str, Any]) -> Any:
    """Return an instance of a plugin, with the values of the options that it declares."""
    return plugin({o.name: options[o.name] for o in plugin.options if o.name in options})


def load_pipeline(
    filters: Sequence[str] = DEFAULT_FILTERS,
    weighers: Sequence[str] = DEFAULT_WEIGHERS,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """Return a pipeline of plugins by name.

    :param settings: see :class:`~gantt.core.placement.pipeline.PipelineSettings`
    """
    return Pipeline(
        load(filters, options, FILTERS),
        load(weighers, options, WEIGHERS),
        PipelineSettings(**settings),
    )


def changed_pipeline(
    pipeline: Pipeline,
    filters: Sequence[str] | None = None,
    weighers: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """Return a pipeline as it would be with other plugins, options or settings.

    The names are those of plugins that are installed or in force: the caller may be far away,
    and no module is imported because it names it.

    :raises InvalidMessage: names the argument: a plugin that is neither, an option that none
        of them has, or a value that it refuses
    """
    now = pipeline.described()
    classes = {
        FILTERS: _classes_by_name(
            FILTERS, pipeline.filters, list(now['filters']) if filters is None else filters
        ),
        WEIGHERS: _classes_by_name(
            WEIGHERS, pipeline.weighers, list(now['weighers']) if weighers is None else weighers
        ),
    }
    given_options = dict(options or {})
    option_names = {
        o.name for chosen in classes.values() for plugin in chosen for o in plugin.options
    }
    for name in sorted(given_options.keys() - option_names):
        nearest = nearest_names(name, sorted(option_names), 1)
        hint = f'did you mean {nearest[0]!r}?' if nearest else 'none is like it'
        raise exceptions.invalid(
            f'options.{name}',
            f'expected an option of a filter or weigher that runs; got {name!r}; {hint}',
        )
    values: dict[str, Any] = {}
    for plugin in (*now['filters'].values(), *now['weighers'].values()):
        values.update(plugin)
    values.update(given_options)
    try:
        plugins = {
            group: [_make_plugin(p, values) for p in chosen] for group, chosen in classes.items()
        }
        replaced = msgspec.structs.replace(pipeline.settings, **settings)
        return Pipeline(plugins[FILTERS], plugins[WEIGHERS], replaced)
    except exceptions.PluginError as e:
        option = e.kwargs.get('option')
        field = f'options.{option}' if option else 'filters and weighers'
        raise exceptions.invalid(field, e.message) from None


def _classes_by_name(
    group: str, running: Sequence[Plugin], names: Sequence[str]
) -> list[type[Plugin]]:
    """Return classes of plugins by name.

    :raises InvalidMessage: a name is neither installed nor in force, or is given twice
    """
    in_force = {plugin.name: type(plugin) for plugin in running}
    in_force |= {f'{cls.__module__}:{cls.__qualname__}': cls for cls in in_force.values()}
    chosen: list[type[Plugin]] = []
    for number, name in enumerate(names):
        plugin, field = in_force.get(name), f'{group.removeprefix("gantt.")}[{number}]'
        try:
            if plugin is None:
                if ':' in name:
                    raise exceptions.PluginError(
                        plugin=name,
                        problem='expected the name of a plugin that is installed or in force',
                    )
                plugin = find(group, name)
        except exceptions.PluginError as e:
            raise exceptions.invalid(field, e.message) from None
        if plugin in chosen:
            raise exceptions.invalid(field, f'expected each name once; got {name} twice')
        chosen.append(plugin)
    return chosen
