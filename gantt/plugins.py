# SPDX-License-Identifier: Apache-2.0
"""Loading filters and weighers by name from the entry points, with helpful errors.

A plugin is a class in group ``gantt.filters`` or ``gantt.weighers``.  It is
checked before the service starts: that it loads, is of the right kind, reads
columns that exist, and that its options are sane.
"""

import difflib
import functools
import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import stevedore.exception
from stevedore import DriverManager

from gantt import exceptions
from gantt.core import nova_filter
from gantt.core.filters.base import Filter
from gantt.core.pipeline import Pipeline
from gantt.core.plugin import Plugin
from gantt.core.weighers.base import Weigher

FILTERS = 'gantt.filters'
WEIGHERS = 'gantt.weighers'
KINDS: dict[str, type[Plugin]] = {FILTERS: Filter, WEIGHERS: Weigher}

#: The filters in force unless configured otherwise, cheap and selective first.
DEFAULT_FILTERS = (
    'ForcedHostsFilter', 'IgnoredHostsFilter', 'RequestedDestinationFilter', 'ComputeFilter',
    'AvailabilityZoneFilter', 'AggregatesFilter', 'TraitsFilter', 'ResourcesFilter',
    'NUMATopologyFilter', 'PciPassthroughFilter',
    'ServerGroupAntiAffinityFilter', 'ServerGroupAffinityFilter', 'SameHostFilter',
    'DifferentHostFilter', 'ComputeCapabilitiesFilter', 'ImagePropertiesFilter',
    'LocationFilter', 'RulesFilter',
)  # fmt: skip
DEFAULT_WEIGHERS = (
    'RAMWeigher', 'CPUWeigher', 'DiskWeigher', 'IoOpsWeigher', 'NumInstancesWeigher',
    'HypervisorVersionWeigher', 'PCIWeigher', 'MetricsWeigher', 'BuildFailureWeigher',
    'CrossCellWeigher', 'ImagePropertiesWeigher', 'ServerGroupSoftAffinityWeigher',
    'ServerGroupSoftAntiAffinityWeigher',
    'RulesWeigher',
)  # fmt: skip


def installed(group: str) -> list[str]:
    """Names of all plugins of a group."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


@functools.cache
def find(group: str, name: str) -> type[Plugin]:
    """The class of a plugin.

    :raises PluginError: unknown (with the nearest known name), does not load,
        is of the wrong kind, or reads a column that does not exist
    """
    if ':' in name:
        return _fit(group, name, _imported(name))
    known = installed(group)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f'did you mean {near[0]!r}?' if near else f'installed: {", ".join(known) or "none"}'
        raise exceptions.PluginError(
            plugin=name, problem=f'is not installed in {group}; {hint}', fix='Correct the name'
        )
    try:
        manager: DriverManager[Any] = DriverManager(
            group, name, invoke_on_load=False, on_load_failure_callback=_reraise
        )
        found = manager.driver
    except exceptions.PluginError:
        raise
    except stevedore.exception.NoMatches as e:
        raise exceptions.PluginError(plugin=name, problem=str(e), fix='Install it') from e
    except Exception as e:
        # Importing runs code that is not ours: whatever it raises is its failure.
        raise exceptions.PluginError(
            plugin=name,
            problem=f'does not load: {type(e).__name__}: {e}',
            fix='Mend or disable it',
        ) from e
    return _fit(group, name, found)


def _fit(group: str, name: str, found: Any) -> type[Plugin]:
    """A class of the right kind; one written for Nova is put into a shape that fits."""
    kind = KINDS[group]
    if isinstance(found, type) and issubclass(found, kind):
        found.check_columns()
        return found
    if group == FILTERS and nova_filter.is_for_nova(found):
        return nova_filter.adapted(found)
    raise exceptions.PluginError(
        plugin=name,
        problem=f'is {found!r}; expected a subclass of {kind.__module__}.{kind.__name__}',
        fix='Correct its entry point',
    )


def _imported(name: str) -> Any:
    """What stands at ``module:Class``, which is not installed under a name of its own."""
    module, _, attribute = name.partition(':')
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as e:
        # Importing runs code that is not ours: whatever it raises is its failure.
        raise exceptions.PluginError(
            plugin=name,
            problem=f'does not load: {type(e).__name__}: {e}',
            fix='Write module:Class, and mend it or disable it',
        ) from e


def _reraise(manager: object, entry_point: object, error: BaseException) -> None:
    raise error


def load(
    names: Sequence[str], options: Mapping[str, Any] | None = None, group: str = FILTERS
) -> list[Any]:
    """Plugins by name, in this order.

    :param options: option name -> value; each plugin takes those it declares
    :raises PluginError: see :func:`find`; or a name is listed twice, or an
        option has a value that the plugin refuses
    """
    options = options or {}
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise exceptions.PluginError(
            plugin=twice[0], problem=f'is listed twice in {group}', fix='List it once'
        )
    loaded = []
    for name in names:
        found = find(group, name)
        mine = {o.name: options[o.name] for o in found.options if o.name in options}
        loaded.append(found(mine))
    return loaded


def load_pipeline(
    filters: Sequence[str] = DEFAULT_FILTERS,
    weighers: Sequence[str] = DEFAULT_WEIGHERS,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """A pipeline of plugins by name.

    :param settings: the other arguments of :class:`~gantt.core.pipeline.Pipeline`
    """
    return Pipeline(load(filters, options, FILTERS), load(weighers, options, WEIGHERS), **settings)


def changed(
    pipeline: Pipeline,
    filters: Sequence[str] | None = None,
    weighers: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """A pipeline as it would be with other plugins, options or settings.

    :raises PluginError: see :func:`load`; or no plugin of it has such an option
    """
    now = pipeline.described()
    options = dict(options or {})
    chosen = {
        FILTERS: list(now['filters']) if filters is None else list(filters),
        WEIGHERS: list(now['weighers']) if weighers is None else list(weighers),
    }
    known = {
        o.name for group, names in chosen.items() for n in names for o in find(group, n).options
    }
    for name in sorted(options.keys() - known):
        near = difflib.get_close_matches(name, sorted(known), 1, 0.5)
        hint = f'did you mean {near[0]!r}?' if near else 'none is like it'
        raise exceptions.PluginError(
            plugin='pipeline', option=name, fix='Correct the name',
            problem=f'no filter or weigher that runs has the option {name!r}; {hint}',
        )  # fmt: skip
    values: dict[str, Any] = {}
    for plugin in (*now['filters'].values(), *now['weighers'].values()):
        values.update(plugin)
    values.update(options)
    kept = {name: now[name] for name in _SETTINGS}
    return load_pipeline(chosen[FILTERS], chosen[WEIGHERS], values, **{**kept, **settings})


_SETTINGS = (
    'subset_size', 'shuffle_best', 'default_zone', 'skip_failing', 'detailed', 'normalization',
    'prefilters',
)  # fmt: skip


def from_conf(conf: Any) -> Pipeline:
    """The pipeline that a configuration asks for.

    :raises PluginError: see :func:`find`
    """
    from gantt.conf import filters as section

    chosen = conf[section.FILTERS.name]
    loaded: dict[str, list[Any]] = {}
    for group, names in (
        (FILTERS, chosen.enabled_filters),
        (WEIGHERS, chosen.enabled_weighers),
    ):
        values: dict[str, Any] = {}
        for name in names:
            values.update(section.register_plugin(conf, group, find(group, name)))
        loaded[group] = load(names, values, group)
    return Pipeline(
        loaded[FILTERS],
        loaded[WEIGHERS],
        subset_size=chosen.host_subset_size,
        shuffle_best=chosen.shuffle_best_same_weighed_hosts,
        default_zone=chosen.default_availability_zone,
        skip_failing=chosen.skip_failing_plugins,
        detailed=chosen.detail_placed_decisions,
        normalization=conf[section.WEIGHERS.name].normalization,
        prefilters={opt.name: chosen[opt.name] for opt in section.PREFILTER_OPTS},
    )
