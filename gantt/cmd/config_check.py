# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage config check``: whether a service would start with this configuration."""

import contextlib
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.cmd import doctor
from gantt.cmd.doctor import checks
from gantt.conf import files, opts, unknown
from gantt.conf.pipeline import pipeline_from_conf
from gantt.db import stores
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.rpc.amqp import driver, transport


def run(conf: Any) -> int:
    """Read all options, look for misspelled ones, load the plugins, reach the servers."""
    tried: list[tuple[str, Callable[[Any], str]]] = [
        ('options', check_options),
        ('names', _check_names),
        ('ports', _check_ports),
        ('plugins', _check_plugins),
        ('database', _check_database),
        ('broker', _check_broker),
    ]
    failed = 0
    for name, check in tried:
        try:
            print(f'{name:<10} ok     {check(conf)}')
        except (cfg.Error, exceptions.GanttError) as e:
            failed += 1
            print(f'{name:<10} WRONG  {files.message(e)}')
    return 1 if failed else 0


def check_options(conf: Any) -> str:
    """Check that every option can be read, and none contradicts another; return a line about it.

    :raises Misconfigured: names the option
    """
    read = 0
    for group, options in opts.list_opts():
        for option in options:
            read += _reads(conf, group, option)
    for finding in doctor.contradictions(conf):
        raise exceptions.Misconfigured(
            option=finding.option, problem=finding.why, fix=finding.instead
        )
    return f'{read} read, nothing contradicts'


def _check_names(conf: Any) -> str:
    """Check the names in the files.  :raises Misconfigured: no process reads an option in them"""
    unread_options = unknown.unread(conf)
    if unread_options:
        raise exceptions.Misconfigured('; '.join(map(str, unread_options)))
    return 'none in the files is misspelled'


def _reads(conf: Any, group: str | None, option: Any) -> bool:
    """Return whether an option is registered; reading its value has oslo.config check it."""
    try:
        holder = conf if group in (None, 'DEFAULT') else conf[group]
        holder[option.dest]
    except cfg.NoSuchOptError:
        return False  # of a plugin that is installed, but not enabled
    except (cfg.Error, ValueError) as e:
        raise exceptions.Misconfigured(
            option=f'[{group or "DEFAULT"}] {option.name}',
            problem=files.message(e),
            fix='Correct it',
        ) from None
    return True


def _check_ports(conf: Any) -> str:
    """Check the ports.  :raises Misconfigured: two programs share one; names both options"""
    for finding in checks.clashes(conf):
        raise exceptions.Misconfigured(
            option=finding.option, problem=finding.why, fix=finding.instead
        )
    return 'no two programs want one'


def _check_plugins(conf: Any) -> str:
    described = pipeline_from_conf(conf).described()
    counts = [f'{len(v)} {k}' for k, v in described.items() if isinstance(v, list | tuple | dict)]
    return ', '.join(counts) or 'loaded'


def _check_database(conf: Any) -> str:
    engine = session.engine_from_conf(conf)
    try:
        migration.check(engine)
        with contextlib.closing(stores.connect(conf).database) as database:
            database.check_rights()
        return f'{session.family(engine)}, schema {migration.version(engine)}'
    finally:
        engine.dispose()


def _check_broker(conf: Any) -> str:
    """Check the broker.  :raises BrokerUnavailable: none takes us; names the option"""
    addresses = []
    for option, carrier in transport.carriers(conf):
        try:
            if not driver.is_in_process(carrier):
                transport.service_defaults(conf)
                transport.wait_for_broker(carrier, 0, option)
            addresses.append(transport.address(carrier))
        finally:
            carrier.cleanup()
    return ', '.join(addresses)
