# SPDX-License-Identifier: Apache-2.0
"""gantt-manage of a zone with another one below it: the audit, the doctor, hosts named."""

import json
import shutil
import uuid

import msgspec
import pytest
from oslo_config import cfg

from gantt import conf as options
from gantt.cmd.checks import site
from gantt.cmd.checks.zones import check_zones
from gantt.core.messages.report import RegisterHost
from gantt.stores import stores_for_url
from tests.world import a_request
from tests.zones.tree import Zone


@pytest.fixture
def east(tmp_path, sqlite_template):
    """A zone with two hosts."""
    path = shutil.copy(sqlite_template, tmp_path / 'east.db')
    zone = Zone('east', stores_for_url(f'sqlite:///{path}')).start()
    yield zone.hosts(2)
    zone.stop()
    zone.store.database.close()


@pytest.fixture
def top(synced, east):
    """The zone of the configuration file, above it."""
    zone = Zone('top', stores_for_url(f'sqlite:///{synced}/gantt.db')).start()
    yield zone.above(east)
    zone.stop()
    zone.store.database.close()


def register(zone, journal):
    zone.scheduler.register_host(
        RegisterHost(name='same', boot_nonce=str(uuid.uuid4()), journal=journal)
    )


def test_the_audit_is_over_the_zones_below(east, top, manage):
    assert top.select(a_request()).selections
    code, out, error = manage('audit')
    assert code == 0, error
    assert out.splitlines() == [
        'over-commit 0, lost 0, leaked 0, doubled 0, providers 0',
        'zone east: compared, live claims there: 1, hosts: 2',
    ]
    journal = str(uuid.uuid4())
    register(east, journal)
    register(top, journal)
    code, out, _ = manage('audit')
    assert code == 1
    assert 'doubled: host same: is registered here and in zone east' in out
    assert 'to do, doubled: a host that is registered in two zones: ' in out
    east.cut()
    code, out, _ = manage('audit', '-f', 'json')
    audit = json.loads(out)
    # What cannot be compared is no finding, and not nothing either.
    assert code == 1 and not any(audit['counts'].values())
    assert 'its claims are not known' in audit['zones'][0]['problem']


@pytest.fixture
def conf(synced):
    options_of_site = cfg.ConfigOpts()
    options.register_opts(options_of_site)
    options_of_site([], project='gantt', default_config_files=[])
    options_of_site.set_override('connection', f'sqlite:///{synced}/gantt.db', 'database')
    return options_of_site


def test_the_doctor_says_what_is_wrong_with_a_zone_below(east, top, conf, synced):
    def found():
        return [(problem.severity.value, problem.option) for problem in check_zones(conf)]

    def set_(**values):
        [record] = top.store.zones.child_zones()
        top.store.zones.save_child_zone(msgspec.structs.replace(record, **values))

    assert found() == []
    conf.set_override('enabled_weighers', ['RAMWeigher'], 'filters')
    [scores] = check_zones(conf)
    assert scores.severity == 'warning' and 'offers do not count' in scores.why
    conf.clear_override('enabled_weighers', 'filters')
    east.put('/v1/parents/top', {'enabled': False})
    assert found() == [('error', 'zone east')]
    east.cut()
    assert found() == [('warning', 'zone east')]
    set_(credential='nowhere')
    [unusable] = check_zones(conf)
    assert unusable.severity == 'error' and 'credentials_file' in unusable.why
    set_(enabled=False)
    assert found() == []
    secrets = synced / 'credentials'
    secrets.write_text('[hall-2]\n')
    secrets.chmod(0o644)
    conf.set_override('credentials_file', str(secrets), 'zones')
    assert '[zones] credentials_file' in {problem.option for problem in site.check_files(conf)}
    secrets.chmod(0o600)
    assert '[zones] credentials_file' not in {problem.option for problem in site.check_files(conf)}
