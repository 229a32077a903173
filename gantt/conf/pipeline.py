# SPDX-License-Identifier: Apache-2.0
"""The pipeline of filters and weighers that a configuration asks for."""

from typing import Any

from gantt import exceptions, plugin_loader
from gantt.conf import filters
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.placement.prefilters import Prefilters


def pipeline_from_conf(conf: Any) -> Pipeline:
    """Return the configured pipeline.

    :raises PluginError: see :func:`gantt.plugin_loader.find`
    """
    chosen = conf[filters.FILTERS.name]
    loaded: dict[str, list[Any]] = {}
    for group, names in filters.enabled_plugins(conf).items():
        values: dict[str, Any] = {}
        for name in names:
            values.update(filters.register_plugin(conf, group, plugin_loader.find(group, name)))
        try:
            loaded[group] = plugin_loader.load(names, values, group)
        except exceptions.PluginError as e:
            raise _error_of_option(e, filters.GROUPS[group].name) from None
    return Pipeline(
        loaded[plugin_loader.FILTERS],
        loaded[plugin_loader.WEIGHERS],
        PipelineSettings(
            subset_size=chosen.host_subset_size,
            shuffle_best=chosen.shuffle_best_same_weighed_hosts,
            default_zone=chosen.default_availability_zone,
            location_parts=tuple(chosen.location_parts),
            skip_failing=chosen.skip_failing_plugins,
            detailed=chosen.detail_placed_decisions,
            normalization=conf[filters.WEIGHERS.name].normalization,
            prefilters=Prefilters(**{opt.name: chosen[opt.name] for opt in filters.PREFILTER_OPTS}),
        ),
    )


def _error_of_option(error: exceptions.PluginError, group: str) -> exceptions.PluginError:
    """Return a plugin's error about an option's value, with the full name of the option."""
    name = error.kwargs.get('option')
    if not name:
        return error
    full = f'[{group}] {name}'
    problem = str(error.kwargs['problem']).removeprefix(f'option {name}: ')
    return exceptions.PluginError(
        plugin=error.kwargs['plugin'],
        option=full,
        problem=f'{full}: {problem}',
        fix=error.kwargs.get('fix', 'Correct it'),
    )
