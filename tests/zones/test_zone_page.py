# SPDX-License-Identifier: Apache-2.0
"""The dashboard's panel of zones, in a headless Chromium."""

import pytest

from bench.browser import COMMANDS, Browser, command
from tests.http.dashboard import LOADED, walk
from tests.world import a_request

ROWS = "[...document.querySelectorAll('#zones tbody tr')].map((e) => e.innerText)"


@pytest.fixture
def browser():
    if command() is None:
        pytest.skip(f'NO CHROMIUM: none of {", ".join(COMMANDS)} is installed')
    with Browser() as started:
        yield started


def test_the_dashboard_shows_zones_where_there_are_some(zone, browser, tmp_path):
    east, cloud = zone('east').hosts(3), zone('cloud').hosts(1)
    top = zone('top').hosts(1).above(east, cloud)
    zone('over').above(top)
    top.put('/v1/zones/cloud', {'last_resort': True})
    cloud.cut()
    for width in (1280, 390):
        browser.screen(width, 900)
        browser.open(f'{top.url}/dashboard')
        browser.wait(LOADED)
        assert browser.run('document.documentElement.scrollWidth') <= width
        silent, answers, above = sorted(browser.run(ROWS), key=lambda row: row.split()[0])
        assert silent.startswith('cloud last resort') and 'unresponsive' in silent
        assert answers.startswith('east') and answers.split()[-3:] == ['3', '3', '0']
        assert above.startswith('over (parent)')
    browser.open(f'{east.url}/dashboard')
    browser.wait(LOADED)
    assert browser.run("document.getElementById('zones').hidden") is False  # it has one above
    browser.open(f'{zone("alone").url}/dashboard')
    browser.wait(LOADED)
    assert browser.run("document.getElementById('zones').hidden") is True
    assert browser.problems == []


def test_decisions_over_zones_show_no_value_that_is_not_there(zone, browser):
    east, cloud = zone('east').hosts(1, 16), zone('cloud').hosts(1)
    top = zone('top').hosts(1, 2).above(east, cloud)
    zone('over').above(top)
    for vcpu in (2, 12, 100):
        top.select(a_request(vcpu=vcpu))
    top.recorder.flush()
    top.put('/v1/zones/cloud', {'enabled': False})
    browser.open(f'{top.url}/dashboard')
    shown = {}
    for name, broken, text in walk(browser):
        assert broken == [], (name, text)
        shown[name] = text
    assert sum(name.startswith('#decisions') for name in shown) == 3
    assert browser.problems == []
