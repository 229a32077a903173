# SPDX-License-Identifier: Apache-2.0
"""Checks that try a setting: filters, rules, credentials, devices, files and ports."""

import os
import stat
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from gantt import exceptions, plugin_loader
from gantt.cmd import policies
from gantt.cmd.checks.results import Finding, Result, error, warning
from gantt.compute.drivers import pci
from gantt.conf import clear_text, keystone, listeners, unknown
from gantt.conf.filters import enabled_plugins
from gantt.http import auth
from gantt.nova.source import api as source
from gantt.nova.source.cells import Cells

_AUTHENTICATION_GROUP = 'keystone_authtoken'
#: Filters without which nearly every answer is wrong, and what happens then.
_USUAL_FILTERS = {
    'ComputeFilter': 'hosts that are disabled, silent or over-full are chosen',
    'ResourcesFilter': 'hosts without room are chosen, and every claim on them is refused: '
    'requests end as conflicts',
}
#: Rules that a site may open to every caller: numbers of the process, or nothing of a site.
_OPEN_POLICIES = {'gantt:metrics:show'}


def check_filters(conf: Any) -> Iterator[Finding]:
    """Check for filters of the usual ones that are not enabled."""
    enabled = enabled_plugins(conf)[plugin_loader.FILTERS]
    for name in plugin_loader.DEFAULT_FILTERS:
        if name not in enabled:
            then = _USUAL_FILTERS.get(name)
            yield (error if then else warning)(
                '[filters] enabled_filters',
                ', '.join(enabled),
                f'{name} is missing: {then or "what requests ask of it is not looked at"}',
                f'Add {name}',
            )


def _option_finding(failed: exceptions.Misconfigured, value: object) -> Finding:
    """Return the finding of an error that names an option itself."""
    option, problem, fix = (str(failed.kwargs[key]) for key in ('option', 'problem', 'fix'))
    return error(option, value, problem, fix)


def check_callers(conf: Any) -> Iterator[Finding]:
    """Check how callers of the HTTP interface are identified, and what they may do."""
    auth.strategy(conf.api.auth_strategy, conf)
    rules = policies.enforcer(conf)
    if conf.api.auth_strategy == 'keystone':
        tokens = conf[_AUTHENTICATION_GROUP]
        url = conf[tokens.auth_section or _AUTHENTICATION_GROUP].auth_url
        if urlsplit(url).scheme == 'http' and not clear_text.is_local(urlsplit(url).hostname):
            why = 'our password and the tokens of all callers go there for everybody to read'
            fix = 'Say https, and in cafile who vouches for it'
            yield warning(f'[{_AUTHENTICATION_GROUP}] auth_url', url, why, fix)
        if tokens.insecure:
            why = 'whoever stands between may vouch for any token'
            yield warning(f'[{_AUTHENTICATION_GROUP}] insecure', True, why, 'Set cafile instead')
    for rule in sorted(rules.open - policies.defaults().open - _OPEN_POLICIES):
        yield warning(
            '[oslo_policy] policy_file',
            rules.enforcer.policy_path or '',
            f'the rule {rule} lets everybody who reaches the port, without a token',
            'Let it ask for a role',
        )


def check_policies(conf: Any) -> Iterator[Result]:
    """Check that the site's policy file is understood.  :raises Misconfigured: it is not"""
    path = policies.enforcer(conf).enforcer.policy_path
    if path is not None and path.endswith('.json'):
        yield warning(
            why=f'{path} is JSON; convert it with oslopolicy-convert-json-to-yaml, and name the '
            'new one in [oslo_policy] policy_file'
        )
    yield 'the rules are those of the code' if path is None else f'{path} is understood'


def check_cells(conf: Any) -> Iterator[Finding]:
    """Check the configured cells of Nova's hosts."""
    options = conf.nova_source
    try:
        Cells(options.cells_file, options.cell)
    except exceptions.Misconfigured as e:
        yield _option_finding(e, options[str(e.kwargs['option']).removeprefix('[nova_source] ')])
    except exceptions.InvalidMessage as e:
        fix = 'Make it with: nova-manage cell_v2 list_hosts > FILE'
        yield error('[nova_source] cells_file', options.cells_file, e.message, fix)


def check_apis(conf: Any) -> Iterator[Finding]:
    """Check the credentials of gantt-nova-source for keystone."""
    keystone.register_opts(conf)
    if not keystone.has_credentials(conf, 'nova'):
        return  # it does not start, and says why: it need not run here
    try:
        source.apis(conf, conf.nova_source.request_seconds)
    except exceptions.Misconfigured as e:
        e.kwargs['fix'] = f'Set {e.kwargs["fix"]}'
        yield _option_finding(e, conf.nova.auth_section or conf.nova.auth_type)
        return
    for section in dict.fromkeys(keystone.section(conf, group) for group in keystone.SERVICES):
        url = conf[section].auth_url if 'auth_url' in conf[section] else None
        if url is not None and not _is_http(url):
            fix = 'Expected e.g. https://keystone.example.org/v3'
            yield error(f'[{section}] auth_url', url, 'it is no address of keystone', fix)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ('http', 'https') and bool(parts.hostname)
    except ValueError:
        return False


def check_devices(conf: Any) -> Iterator[Finding]:
    """Check the devices that an agent next to nova-compute is to report."""
    try:
        pci.parse(conf.compute.device_spec)
    except exceptions.Misconfigured as e:
        yield _option_finding(e, '; '.join(conf.compute.device_spec))


def check_ports(conf: Any) -> Iterator[Result]:
    """Check for ports that two programs of this configuration would listen on."""
    for first, second, port in listeners.port_clashes(conf):
        yield error(
            first.option,
            first.first,
            f'{first.program} would listen on port {port}, and so would {second.program} '
            f'({second.option} = {second.first}): the one of them that starts later ends',
            f'Set it to {first.first + 1000}, or leave it out where {first.program} does not run',
        )
    yield 'no two programs want one'


def check_listeners(conf: Any) -> Iterator[Finding]:
    """Check for listeners of our processes without TLS that other machines can reach."""
    has_metrics = any(listeners.metrics(conf, group).first for group in listeners.PROGRAMS)
    exposures = [
        clear_text.api_exposure(conf),
        clear_text.metrics_exposure(conf) if has_metrics else None,
    ]
    yield from (error(*exposure) for exposure in exposures if exposure is not None)


def check_files(conf: Any) -> Iterator[Finding]:
    """Check which users may read the passwords."""
    for path in [*conf.config_file, *getattr(conf, 'config_dir', [])]:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            yield warning(
                path,
                oct(stat.S_IMODE(mode)),
                'every user of this machine may read the passwords of the broker and of the '
                'database' + (', and change them' if mode & stat.S_IWOTH else ''),
                f'chown root:gantt {path}; chmod 0640 {path}',
            )
    path = conf.zones.credentials_file
    mode = os.stat(path).st_mode if path and os.path.exists(path) else 0
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        yield warning(
            '[zones] credentials_file',
            path,
            'every user of this machine may read the secrets that zones below are spoken to with',
            f'chown root:gantt {path}; chmod 0640 {path}',
        )


def check_unread(conf: Any) -> Iterator[Finding]:
    """Yield a finding for each option that no process reads."""
    for option in unknown.unread_options(conf):
        yield error(option.option, option.value, option.why, 'Correct the name, or remove it')
