# SPDX-License-Identifier: Apache-2.0
"""The table of all checks; each command runs those of its stage, in this order."""

from gantt.cmd.checks import (
    LIBRARIES,
    NAMES,
    PLUGINS,
    CheckResource,
    CheckStage,
    SiteCheck,
    broker,
    database,
    options,
    site,
    zones,
)

CONFIG, DOCTOR, UPGRADE = CheckStage.CONFIG, CheckStage.DOCTOR, CheckStage.UPGRADE

TABLE = (
    SiteCheck('options', options.check_bounds, CONFIG | DOCTOR),
    NAMES,
    SiteCheck('ports', site.check_ports, CONFIG | DOCTOR),
    PLUGINS,
    LIBRARIES,
    SiteCheck('database', database.check_usable, CONFIG, CheckResource.DATABASE),
    SiteCheck('broker', broker.check_reachable, CONFIG, CheckResource.BROKER),
    SiteCheck('settings', options.check_site, DOCTOR),
    SiteCheck('cells', site.check_cells, DOCTOR),
    SiteCheck('apis', site.check_apis, DOCTOR),
    SiteCheck('devices', site.check_devices, DOCTOR),
    SiteCheck('listeners', site.check_listeners, DOCTOR),
    SiteCheck('callers', site.check_callers, DOCTOR),
    SiteCheck('filters', site.check_filters, DOCTOR),
    SiteCheck('files', site.check_files, DOCTOR),
    SiteCheck('unread', site.check_unread, DOCTOR),
    SiteCheck('brokers', broker.check_options, DOCTOR),
    SiteCheck('queues', broker.check_version, DOCTOR, CheckResource.BROKER),
    SiteCheck('server', database.check_server, DOCTOR, CheckResource.DATABASE),
    SiteCheck('zones', zones.check_zones, DOCTOR, CheckResource.SERVICE),
    SiteCheck('Schema of the database', database.check_schema, UPGRADE, CheckResource.DATABASE),
    SiteCheck('Options', options.check_understood, UPGRADE),
    SiteCheck('Policies', site.check_policies, UPGRADE),
    SiteCheck('Schedulers that run', broker.check_schedulers, UPGRADE, CheckResource.SERVICE),
    SiteCheck('Senders on the bus', broker.check_senders, UPGRADE, CheckResource.BROKER),
    SiteCheck('Hosts', database.check_hosts, UPGRADE, CheckResource.DATABASE),
    SiteCheck('Promises', database.check_promises, UPGRADE, CheckResource.DATABASE),
)


def of_stage(stage: CheckStage) -> list[SiteCheck]:
    """Return the checks of a stage."""
    return [check for check in TABLE if stage in check.stages]
