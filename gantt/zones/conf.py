# SPDX-License-Identifier: Apache-2.0
"""[zones]: child and parent zones, and how the former are queried.

A strategy declares its options on its class, as filters do; here they become options of
``[zones]``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import filters, register_group
from gantt.core.plugin import Plugin
from gantt.zones.model.strategies import DEFAULT, ZoneStrategy

#: Group of the entry points of strategies.
STRATEGIES = 'gantt.zone_strategies'
GROUP = cfg.OptGroup(
    'zones',
    title='Other zones',
    help='Read by gantt-scheduler and gantt-api. Zones are registered by "gantt zone add".',
)

OPTS = [
    cfg.StrOpt(
        'credentials_file',
        default='',
        help='A file with a section for each credential for calls to child zones: '
        'auth_url, application_credential_id and application_credential_secret, of the identity '
        'service of that zone; ca_file, the authorities that are believed there; certificate and '
        'key, what is shown there; server_sha256, the digest of the certificate that the zone has '
        'to show. Readable by these processes only. Empty: zones on this machine only.',
    ),
    cfg.ListOpt(
        'strategies',
        default=list(DEFAULT),
        help='Strategies by which child zones are queried, by the names of their entry points in '
        'gantt.zone_strategies; any subset works. None: all zones are queried at once.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register [zones], with the options of the strategies that are installed."""
    register_group(conf, GROUP, _opts())


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return the options for oslo.config's generator."""
    return [(GROUP.name, _opts())]


def strategies_from_conf(conf: Any) -> list[ZoneStrategy]:
    """Return the configured strategies.

    :raises PluginError: one does not load, or an option has a value that it refuses
    """
    section, names = conf[GROUP.name], conf[GROUP.name].strategies
    values: dict[str, Any] = {}
    for name in names:
        plugin = plugin_loader.find(STRATEGIES, name, ZoneStrategy)
        register_group(conf, GROUP, filters.opts_of(plugin, is_mutable=False))
        values.update({option.name: section[option.name] for option in plugin.options})
    return load_strategies(names, values)


def load_strategies(names: Sequence[str], options: Mapping[str, Any]) -> list[ZoneStrategy]:
    """Return strategies by name, in this order.

    :param options: option name -> value; each strategy takes those it declares
    :raises PluginError: one does not load, or an option has a value that it refuses
    """
    return plugin_loader.load(names, options, STRATEGIES, ZoneStrategy)


def _opts() -> list[Any]:
    strategy_options = [
        opt for plugin in _installed() for opt in filters.opts_of(plugin, is_mutable=False)
    ]
    return [*OPTS, *strategy_options]


def _installed() -> Iterable[type[Plugin]]:
    for name in plugin_loader.installed(STRATEGIES):
        try:
            yield plugin_loader.find(STRATEGIES, name, ZoneStrategy)
        except exceptions.PluginError:
            continue  # who enables it hears why
