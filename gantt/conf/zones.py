# SPDX-License-Identifier: Apache-2.0
"""[zones]: the zones below and above this one, and how those below are queried.

A strategy declares its options on its class, as filters do; here they become options of
``[zones]``.
"""

from collections.abc import Iterable
from typing import Any

from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import filters, register_group
from gantt.core.plugin import Plugin
from gantt.core.zones.strategies import DEFAULT
from gantt.core.zones.strategy import ZoneStrategy

GROUP = cfg.OptGroup(
    'zones',
    title='Other zones',
    help='Read by gantt-scheduler and gantt-api. Zones are registered by "gantt zone add".',
)

OPTS = [
    cfg.StrOpt(
        'credentials_file',
        default='',
        help='A file with a section for each credential by which zones below are spoken to: '
        'auth_url, application_credential_id and application_credential_secret, of the identity '
        'service of that zone; ca_file, the authorities that are believed there; certificate and '
        'key, what is shown there; server_sha256, the digest of the certificate that the zone has '
        'to show. Readable by these processes alone. Empty: zones on this machine only.',
    ),
    cfg.ListOpt(
        'strategies',
        default=list(DEFAULT),
        help='Strategies by which zones below are queried, by the names of their entry points in '
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
        plugin = plugin_loader.find(plugin_loader.STRATEGIES, name)
        register_group(conf, GROUP, filters.opts_of(plugin, is_mutable=False))
        values.update({option.name: section[option.name] for option in plugin.options})
    return plugin_loader.load(names, values, plugin_loader.STRATEGIES)


def _opts() -> list[Any]:
    strategy_options = [
        opt for plugin in _installed() for opt in filters.opts_of(plugin, is_mutable=False)
    ]
    return [*OPTS, *strategy_options]


def _installed() -> Iterable[type[Plugin]]:
    for name in plugin_loader.installed(plugin_loader.STRATEGIES):
        try:
            yield plugin_loader.find(plugin_loader.STRATEGIES, name)
        except exceptions.PluginError:
            continue  # who enables it hears why
