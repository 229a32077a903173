# SPDX-License-Identifier: Apache-2.0
"""A metric declared over HTTP counts at once, everywhere, with nothing started again."""

from collections.abc import Iterator

import httpx2 as httpx
import numpy as np
import pytest

from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.request import RequestSpec
from gantt.core.weighers.load import LoadWeigher
from gantt.core.weighers.metrics import MetricsWeigher
from tests.http.site import Site

PATH = '/v1/declared-metrics'
SPEC = RequestSpec(resources={'VCPU': 1})


@pytest.fixture(scope='module')
def site() -> Site:
    return Site()


@pytest.fixture
def caller(site: Site) -> Iterator[httpx.Client]:
    transport = httpx.WSGITransport(site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:
        yield client


def listed(caller: httpx.Client, name: str) -> dict:
    metrics = caller.get(PATH).json()['metrics']
    return next((metric for metric in metrics if metric['name'] == name), {})


def test_what_hosts_report_is_listed_declared_or_not(caller):
    assert listed(caller, 'load') == {
        'name': 'load',
        'declared': False,
        'unit': '',
        'lower': None,
        'upper': None,
        'stale_seconds': None,
        'description': '',
        'hosts': 6,
        'silent': 0,
    }


def test_they_come_in_pages(site, caller):
    site.hosts['cmp-1'].facts['metrics'] = {name: ReportedMetric(value=1.0) for name in ('a', 'b')}
    site.hosts['cmp-1'].report()
    site.world.turn(2.0)
    seen, marker = [], None
    while not seen or marker:
        params = {'limit': 2, 'marker': marker} if marker else {'limit': 2}
        page = caller.get(PATH, params=params).json()
        seen += [metric['name'] for metric in page['metrics']]
        marker = page['next_marker']
    assert seen == ['a', 'b', 'load']
    del site.hosts['cmp-1'].facts['metrics']
    site.hosts['cmp-1'].report()
    site.world.turn(2.0)


def test_a_declaration_counts_at_once(site, caller):
    """cmp-6 has said nothing for four minutes, and cmp-1 says what cannot be."""
    site.hosts['cmp-1'].facts['metrics'] = {'load': ReportedMetric(value=70.0)}
    site.hosts['cmp-1'].report()
    site.world.turn()
    body = {'upper': 64, 'lower': 0, 'stale_seconds': 150, 'unit': 'tasks'}
    dry = caller.put(f'{PATH}/load', params={'dry_run': True}, json=body).json()
    assert dry['message'] == 'metric load would be declared'
    assert not listed(caller, 'load')['declared']

    table = site.world.scheduler.cache.working
    weigher = MetricsWeigher({'metrics_weight_setting': 'load=1.0'})
    everybody = np.arange(len(table))
    assert set(weigher.raw(table, SPEC, everybody)) == {70.0, 0.5}

    assert caller.put(f'{PATH}/load', json=body).status_code == 201
    metric = listed(caller, 'load')
    assert (metric['declared'], metric['hosts'], metric['silent']) == (True, 6, 2)
    site.world.turn(1.0)
    table = site.world.scheduler.cache.working
    assert set(weigher.raw(table, SPEC, everybody)) == {0.5}
    shares = LoadWeigher({'load_weight_setting': 'load=1.0'}).limits(table, SPEC)
    assert shares == (0.0, 64.0)

    assert caller.delete(f'{PATH}/load').status_code == 200
    assert not listed(caller, 'load')['declared']
    assert caller.delete(f'{PATH}/load').status_code == 404
    assert caller.delete(f'{PATH}/load', params={'dry_run': True}).status_code == 404
    site.world.turn(1.0)
    assert not site.world.scheduler.cache.working.declared_metrics


@pytest.mark.parametrize(
    ('body', 'said'),
    [
        ({'lower': 3, 'upper': 1}, 'upper'),
        ({'stale_seconds': -1}, 'stale_seconds'),
        ({'upper': 1e300}, 'upper'),
        ({'colour': 'red'}, 'colour'),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(caller, body, said):
    answer = caller.put(f'{PATH}/power', json=body)
    assert answer.status_code == 400
    assert said in answer.text
    assert not listed(caller, 'power')


def test_a_site_may_refuse_what_nobody_declared(site, caller):
    settings = site.world.scheduler.settings
    caller.put(f'{PATH}/load', json={'upper': 64})
    site.world.turn(1.0)
    settings.refuse_undeclared_metrics = True
    try:
        host = site.hosts['cmp-2']
        host.facts['metrics'] = {'load': ReportedMetric(value=1.0)}
        host.report()
        for metrics, problem in (
            (
                {'load': ReportedMetric(value=65.0)},
                r'stats\.metrics\.load\.value: expected 64 or less',
            ),
            (
                {'other': ReportedMetric(value=1.0)},
                r'stats\.metrics\.other: expected a declared metric',
            ),
        ):
            host.facts['metrics'] = metrics
            with pytest.raises(exceptions.InvalidMessage, match=problem):
                host.report()
    finally:
        settings.refuse_undeclared_metrics = False
