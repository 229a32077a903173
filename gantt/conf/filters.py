# SPDX-License-Identifier: Apache-2.0
"""[filters] and [weighers]: which plugins run, how the pick is made, and their own options.

A plugin declares its options on its class; here they become options of
``[filters]`` or ``[weighers]``.  Those of the default set are registered with
the rest, those of other plugins when the plugin is enabled.
"""

import itertools
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import FloatOpt, mutable, register_group
from gantt.core.plugin import Option, Plugin
from gantt.core.table.facts import LOCATION_PARTS
from gantt.core.weighers.base import NORMALIZATIONS

FILTERS = cfg.OptGroup('filters', title='Filters, weighers and the pick')
WEIGHERS = cfg.OptGroup('weighers', title='Multipliers and other options of the weighers')
GROUPS = {plugin_loader.FILTERS: FILTERS, plugin_loader.WEIGHERS: WEIGHERS}

OPTS = [
    mutable.ListOpt(
        'enabled_filters',
        default=list(plugin_loader.DEFAULT_FILTERS),
        help='Filters by the names of their entry points in gantt.filters, or as module:Class. '
        'Their order changes cost and the counts in explanations, never who survives; see '
        'order_by_cost. A name that is not installed stops the service at start.',
    ),
    mutable.ListOpt(
        'extra_filters',
        default=[],
        help='Filters that run in addition to enabled_filters, named in the same way. Name '
        'your own here, and enabled_filters stays what each release makes of it.',
    ),
    mutable.BoolOpt(
        'order_by_cost',
        default=True,
        help='Run those filters first that remove most hosts for their cost, as measured here '
        'on real requests. Otherwise they run in the order of enabled_filters, extra_filters '
        'last. An explanation lists them as they ran.',
    ),
    mutable.ListOpt(
        'enabled_weighers',
        default=list(plugin_loader.DEFAULT_WEIGHERS),
        help='Weighers by the names of their entry points in gantt.weighers. One whose '
        'multiplier is 0 does not run.',
    ),
    mutable.ListOpt(
        'extra_weighers',
        default=[],
        help='Weighers that run in addition to those of enabled_weighers. Their options are in '
        '[weighers].',
    ),
    mutable.IntOpt(
        'host_subset_size',
        default=1,
        min=1,
        max=1000,
        help='Pick at random among so many best hosts. More than 1 lowers the number of lost '
        'races where several schedulers serve the same hosts, at the price of the second best.',
    ),
    mutable.BoolOpt(
        'shuffle_best_same_weighed_hosts',
        default=False,
        help='Pick at random among hosts of the very same best weight. Otherwise the first of '
        'them in the order of the host table is taken.',
    ),
    cfg.StrOpt(
        'default_availability_zone',
        default='nova',
        help='Availability zone of a host that neither an aggregate nor its own report puts '
        'into one.',
    ),
    cfg.ListOpt(
        'location_parts',
        default=list(LOCATION_PARTS),
        help='Names of the parts of the location of hosts, the widest first: the levels at which '
        'policies of groups may hold beside host and facts, as zone. With the default a host at '
        's1.r2.k3 is in rack s1.r2.k3, in room s1.r2 and at site s1; one whose location ends '
        'before a part is in no domain of that level.',
    ),
    mutable.BoolOpt(
        'skip_failing_plugins',
        default=False,
        help='Leave out a filter or weigher that raises, and say so in the decision, instead of '
        'failing the request. A filter that is left out removes nobody: decisions may then '
        'break the rule that it stands for.',
    ),
    mutable.BoolOpt(
        'detail_placed_decisions',
        default=False,
        help='Ask filters for the numbers behind their removals also where a host was found. '
        'Costs about a quarter of the time of a decision. Refusals always have them.',
    ),
]

WEIGHER_OPTS = [
    mutable.StrOpt(
        'normalization',
        default='',
        choices=['', *NORMALIZATIONS],
        help='How raw values become shares of 1, for weighers whose own option '
        '(x_weight_normalization) is empty. nova: from the smallest to the largest of the '
        'request, as in Nova. fraction: of the capacity of the host, else of the largest. rank: '
        'by place alone. absolute: in [0, 1] whichever other hosts there are. Empty: each weigher '
        'has its usual one.',
    ),
]

#: Names and defaults are those of Nova's [scheduler].
PREFILTER_OPTS = [
    mutable.BoolOpt(
        'limit_tenants_to_placement_aggregate',
        default=False,
        help='Keep projects that aggregates name in a key filter_tenant_id* in these aggregates.',
    ),
    mutable.BoolOpt(
        'placement_aggregate_required_for_tenants',
        default=False,
        help='With limit_tenants_to_placement_aggregate: place nothing of a project that no '
        'aggregate names.',
    ),
    mutable.BoolOpt(
        'query_placement_for_image_type_support',
        default=False,
        help='Require the trait COMPUTE_IMAGE_TYPE_* for the disk format of the image, unless '
        'the guest boots from a volume.',
    ),
    mutable.BoolOpt(
        'enable_isolated_aggregate_filtering',
        default=False,
        help='Keep aggregates with a key trait:X whose value is required for requests that '
        'require trait X.',
    ),
    mutable.BoolOpt(
        'image_metadata_prefilter',
        default=False,
        help='Require the traits that buses, models and architectures in the properties of the '
        'image stand for.',
    ),
]

_OPTION_CLASSES = {
    bool: cfg.BoolOpt,
    int: cfg.IntOpt,
    float: FloatOpt,
    str: cfg.StrOpt,
    list: cfg.ListOpt,
}


def opts_of(plugin: type[Plugin], is_mutable: bool = True) -> list[Any]:
    """Return the options that a plugin declares, for oslo.config.

    :param is_mutable: whether a running process applies a changed value
    :raises PluginError: an option has a type that no configuration file has
    """
    return [_plugin_option(plugin, option, is_mutable) for option in plugin.options]


def _plugin_option(plugin: type[Plugin], option: Option, is_mutable: bool) -> Any:
    make = _OPTION_CLASSES.get(option.type)
    if make is None:
        raise exceptions.PluginError(
            plugin=plugin.name,
            option=option.name,
            problem=f'option {option.name}: expected type bool, int, float, str or list, '
            f'got {option.type!r}',
            fix='Correct its declaration',
        )
    bounds: dict[str, Any] = {}
    if option.type in (int, float):
        bounds = {'min': option.min, 'max': option.max}
    if option.choices:
        bounds = {'choices': list(option.choices)}
    common = {'default': option.default, 'help': option.help}
    return make(option.name, mutable=is_mutable, **common, **bounds)


def enabled_plugins(conf: Any) -> dict[str, list[str]]:
    """Return group of plugins -> names of the enabled plugins, in the configured order."""
    section = conf[FILTERS.name]
    return {
        plugin_loader.FILTERS: [*section.enabled_filters, *section.extra_filters],
        plugin_loader.WEIGHERS: [*section.enabled_weighers, *section.extra_weighers],
    }


def register_plugin(conf: Any, group: str, plugin: type[Plugin]) -> dict[str, Any]:
    """Register the options of a plugin and return their values."""
    section = GROUPS[group]
    register_group(conf, section, opts_of(plugin))
    return {option.name: conf[section.name][option.name] for option in plugin.options}


def register_opts(conf: Any) -> None:
    """Register [filters] and [weighers], with the options of the default set."""
    register_group(conf, FILTERS, [*OPTS, *PREFILTER_OPTS])
    register_group(conf, WEIGHERS, WEIGHER_OPTS)
    for group, names in (
        (plugin_loader.FILTERS, plugin_loader.DEFAULT_FILTERS),
        (plugin_loader.WEIGHERS, plugin_loader.DEFAULT_WEIGHERS),
    ):
        for plugin in _loadable_plugins(group, names):
            register_group(conf, GROUPS[group], opts_of(plugin))


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return for oslo.config's generator the options of everything that is installed and loads."""
    plugin_options = {
        group: _without_repeats(
            itertools.chain.from_iterable(
                opts_of(plugin)
                for plugin in _loadable_plugins(group, plugin_loader.installed(group))
            )
        )
        for group in GROUPS
    }
    return [
        (FILTERS.name, [*OPTS, *PREFILTER_OPTS, *plugin_options[plugin_loader.FILTERS]]),
        (WEIGHERS.name, [*WEIGHER_OPTS, *plugin_options[plugin_loader.WEIGHERS]]),
    ]


def _without_repeats(opts: Iterable[Any]) -> list[Any]:
    """Drop repeats: plugins of one family share options."""
    return list({opt.name: opt for opt in opts}.values())


def _loadable_plugins(group: str, names: Iterable[str]) -> Iterable[type[Plugin]]:
    # A plugin that does not load is reported when it is enabled.
    for name in names:
        try:
            yield plugin_loader.find(group, name)
        except exceptions.PluginError:
            continue
