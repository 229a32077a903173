# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a headless Chromium: what a person sees and does there."""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from bench.browser import COMMANDS, Browser, command
from gantt import exceptions
from gantt.cmd.http_app import make_app
from gantt.core.messages.resource_classes import Inventory
from gantt.http import auth
from gantt.http.server import HttpServer
from tests.http import identity
from tests.http.callers import as_caller, ask
from tests.http.dashboard import LOADED, walk
from tests.http.identity import Keystone
from tests.http.site import Site, fixed
from tests.planner import a_description, a_member, a_plan_request, places
from tests.plans import created

WIDTHS = {'phone': (390, 844), 'desktop': (1280, 900)}
#: Points of the canvas with anything on them, and how many colours these have.
PAINTED = """(() => {
  const c = document.getElementById('map');
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const seen = new Set(); let n = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3]) { n += 1; seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); }
  return [n, seen.size];
})()"""  # noqa: E501


@pytest.fixture(scope='module')
def a_browser() -> Iterator[Browser]:
    if command() is None:
        pytest.skip(f'NO CHROMIUM: none of {", ".join(COMMANDS)} is installed')
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(a_browser: Browser) -> Iterator[Browser]:
    """The browser without problems before, and without any afterwards."""
    a_browser.screen(*WIDTHS['desktop'])
    a_browser.problems.clear()
    yield a_browser
    problems = list(a_browser.problems)
    a_browser.open('about:blank')
    assert problems == []


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """``serve(app)``: its address, until the test is over."""
    servers = []

    def start(app: Any) -> str:
        server = HttpServer(app, '127.0.0.1', 0, threads=4)
        server.start()
        servers.append(server)
        return f'http://127.0.0.1:{server.port}'

    yield start
    for server in servers:
        server.stop(5)


def _lively(site: Site) -> None:
    """Placed, confirmed, refused."""
    claim = site.place(1).selections[0][0]
    site.hosts[claim.host].confirm(claim.claim_id)
    site.place(2, 3)
    for number in (50, 51):
        with pytest.raises(exceptions.NoValidHost):
            site.place(number, VCPU=400)


def _text(browser: Browser, selector: str) -> str:
    return browser.run(f'document.querySelector({json.dumps(selector)}).innerText')


def _rows(browser: Browser) -> list[str]:
    rows = "[...document.querySelectorAll('#decisions .rows button')].map((e) => e.innerText)"
    return browser.run(rows)


@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
def test_it_is_drawn_at_every_width_and_in_both_themes(
    browser: Browser, site: Site, serve: Callable[[Any], str], width: str, dark: bool
) -> None:
    _lively(site)
    browser.screen(*WIDTHS[width], dark=dark)
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    points, colours = browser.run(PAINTED)
    assert points > 6 * 100
    assert colours > 2
    assert browser.run('document.documentElement.scrollWidth') <= WIDTHS[width][0]
    ink, page = browser.run(
        '[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]'
        '.map((c) => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))'
    )
    assert (ink > page) is dark
    browser.click('#decisions .rows button')
    browser.wait("document.querySelector('#detail-body h3')")
    assert browser.run('document.documentElement.scrollWidth') <= WIDTHS[width][0]
    assert browser.run(
        "document.getElementById('detail').scrollWidth <= document.getElementById('detail').clientWidth"  # noqa: E501
    )


def test_it_says_what_the_interface_says(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    _lively(site)
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    label = browser.run("document.getElementById('map').getAttribute('aria-label')")
    assert label == 'Heat map of 6 hosts by free share of VCPU: 5 up, 1 stale'
    assert '4\nlive claims' in _text(browser, '#tiles')
    assert 'placed: 2' in _text(browser, '#rate')
    assert 'no valid host or pool: 2' in _text(browser, '#rate')
    assert '1 confirmed, half within' in browser.run(
        "[...document.querySelectorAll('#wait title')].at(-1).textContent"
    )
    claims = _text(browser, '#claims .bars').split('\n')
    assert [line for line in claims if line][:4] == ['reserved', '3', 'confirmed', '1']
    assert '2 refusals. A host counts once for each of them: 12 in all.' in _text(
        browser, '#refused'
    )
    assert 'disk free' in _text(browser, '#tiles')
    assert 'ResourcesFilter\n−10, 0 left' in _text(browser, '#refused')
    assert '2 ×' in _text(browser, '#groups')
    assert [row.split('\n')[0] for row in _rows(browser)] == 2 * ['no valid host'] + 2 * ['placed']


def test_nothing_that_can_be_opened_shows_a_value_that_is_not_there(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    """Hosts in each condition, with dedicated CPUs, decisions for hosts and pools, a plan."""
    _lively(site)
    store = site.world.store
    dedicated = site.hosts['cmp-4']
    dedicated.facts['inventories'] |= {'PCPU': Inventory(total=8)}
    dedicated.report()
    store.hosts.disable_host('cmp-3', 'new memory', 'ops')
    store.providers.create_provider('ceph-1', inventories={'DISK_GB': Inventory(total=100)})
    site.world.turn()
    site.insights.reload_soon()
    with as_caller(site, 'admin', project=None) as caller:
        for number, amount in ((60, 60), (61, 600)):
            ask(caller, number, {'kind': 'pool', 'resources': {'DISK_GB': amount}})
    site.plans.place_group(a_plan_request(a_description(a_member('web', 3), uuid=fixed(7))))
    site.insights.reload_soon()
    browser.open(f'{serve(site.app)}/dashboard')
    shown = {}
    for name, broken, text in walk(browser):
        assert broken == [], (name, text)
        shown[name] = text
    assert {'class PCPU', 'window 86400', 'outcome failed', 'host 5'} <= set(shown)
    dialogs = [text for name, text in shown.items() if name.startswith('#decisions')]
    assert len(dialogs) == 6
    pools = [text for text in dialogs if '60 GiB disk' in text or '600 GiB disk' in text]
    assert len(pools) == 2
    for text in pools:
        assert '1 pool was looked at' in text
        assert 'no valid host' not in text
        assert 'hosts' not in text.split('How it was made')[0]
        assert 'Host\t' not in text and 'oldest report' not in text
    assert sum('no valid pool' in text for text in pools) == 1
    assert sum('oldest report' in text for text in dialogs) == 2  # of two where hosts were left
    page = shown['page']
    assert 'no valid pool' in page and 'no valid host or pool' in page
    assert '8\nlive claims' in page  # 4 on hosts, 3 planned, 1 on a pool
    assert '2 refusals. A host counts once for each of them: 12 in all.' in page
    assert '1 refusal for want of a pool beside them.' in page
    for noun in ('vCPU', 'pCPU', 'RAM', 'disk'):
        assert f'{noun} free' in page


def test_plans_of_groups_are_shown_with_what_has_become_of_their_members(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    assert browser.run("document.getElementById('plans').hidden")
    group = a_description(a_member('web', 3), a_member('db'), uuid=fixed(7))
    site.plans.place_group(a_plan_request(group))
    created(site.world.store, places(site.world, fixed(7))['web-2'])
    site.insights.reload_soon()
    browser.open(browser.run('location.href'))
    browser.wait(LOADED)
    shown = _text(browser, '#plans')
    assert '1 plan. Members: 3 planned, 1 created.' in shown
    rows = "[...document.querySelectorAll('#plans tbody td')].map((e) => e.innerText)"
    assert browser.run(rows)[:6] == [fixed(7), '3', '1', '–', '–', '–']
    browser.screen(*WIDTHS['phone'])
    assert browser.run('document.documentElement.scrollWidth') <= WIDTHS['phone'][0]


def test_a_click_explains_a_decision(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    _lively(site)
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    browser.click('#decisions .rows li:nth-child(1) button')
    browser.wait("document.querySelector('#detail-body .bars')")
    refused = _text(browser, '#detail')
    assert '0/6 hosts fit' in refused
    assert 'ResourcesFilter\n−5, 0 left\ntoo little free VCPU' in refused
    assert fixed(51) in refused
    browser.click('#detail-close')
    browser.click('#decisions .rows li:nth-child(4) button')
    browser.wait("document.querySelector('#detail-body table')")
    placed = _text(browser, '#detail table')
    assert placed.split('\n')[0].startswith('Host\tTotal\tRAM')
    assert placed.count('▸') == 1
    browser.press('Escape')
    assert not browser.run("document.getElementById('detail').open")


def test_the_map_is_for_mouse_and_keyboard(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    at = 'map.getBoundingClientRect()'
    x, y = browser.run(f'[{at}.left + 10, {at}.top + 10]')
    browser.call('Input.dispatchMouseEvent', type='mouseMoved', x=x, y=y)
    assert _text(browser, '#tip').split('\n')[0] == 'cmp-1'
    assert '16 of 16 VCPU free (100 %)' in _text(browser, '#map-said')
    browser.run("document.getElementById('map').focus()")
    for key in ('Home', 'ArrowRight', 'End'):
        browser.press(key)
    assert _text(browser, '#map-said').startswith('cmp-6: 16 of 16 VCPU free (100 %); stale')
    browser.press('Enter')
    browser.wait("document.querySelector('#detail-body table')")
    assert _text(browser, '#detail-title') == 'Host cmp-6'
    assert 'the last report is' in _text(browser, '#detail-body')


def test_another_class_order_and_part_of_a_name(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)

    def choose(name: str, value: str) -> None:
        browser.run(
            f'(() => {{ const e = document.getElementById({name!r}); e.value = {value!r};'
            "e.dispatchEvent(new Event('input')); })()"
        )

    choose('class', 'MEMORY_MB')
    browser.wait("document.getElementById('map').getAttribute('aria-label').includes('MEMORY_MB')")
    choose('order', 'free')
    browser.run("document.getElementById('map').focus()")
    browser.press('Home')
    assert _text(browser, '#map-said').startswith('cmp-2: 30.5 GiB of 31.5 GiB MEMORY_MB free')
    choose('find', 'P-5')
    assert _text(browser, '#map-said') == '1 of 6 hosts have “P-5” in their name'


def test_what_people_are_told_where_there_is_nothing(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    for name in [*site.hosts]:
        site.world.store.hosts.remove_host(name)
    site.insights.reload_soon()
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    sentences = {
        'hosts': 'No host is known yet',
        'rate': 'No decision is kept from the last',
        'wait': 'No host has confirmed a claim',
        'refused': 'Nothing that is kept was refused',
        'decisions': 'No decision is kept yet.',
    }
    for section, words in sentences.items():
        assert words in _text(browser, f'#{section}'), section


def test_names_are_text_whatever_is_in_them(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    evil = '<img src=x onerror=document.title=1>'
    site.world.store.hosts.disable_host('cmp-3', evil, evil)
    site.insights.reload_soon()
    browser.open(f'{serve(site.app)}/dashboard')
    browser.wait(LOADED)
    browser.run("document.getElementById('map').focus()")
    for key in ('Home', 'ArrowRight', 'ArrowRight', 'Enter'):
        browser.press(key)
    browser.wait("document.querySelector('#detail-body table')")
    assert evil in _text(browser, '#detail-body')
    assert browser.run('[document.title, document.images.length]') == ['Gantt', 0]


class Away:
    """An application that can be away: 503 as ours says it, or no connection at all."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.refuses: str | None = None
        self.status = '503 Service Unavailable'
        self.tokens: list[str | None] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ['PATH_INFO']
        if path.startswith('/v1'):
            self.tokens.append(environ.get('HTTP_X_AUTH_TOKEN'))
        if self.refuses is not None and path.startswith(self.refuses):
            error = {'code': 'gantt.test', 'detail': 'the database is away', 'request_id': 'req-1'}
            start_response(self.status, [('Content-Type', 'application/json')])
            return [json.dumps({'errors': [error]}).encode()]
        return self.app(environ, start_response)


def test_an_error_is_said_where_it_is_and_what_was_known_stays(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    _lively(site)
    front = Away(site.app)
    browser.open(f'{serve(front)}/dashboard')
    browser.wait(LOADED)
    front.refuses = '/v1/activity'
    again = "document.getElementById('window').dispatchEvent(new Event('input'))"
    browser.run(again)
    browser.wait("document.querySelector('#rate .note').innerText")
    note = _text(browser, '#rate .note')
    assert note.startswith('Not known: the database is away (gantt.test, req-1). Shown is what was')
    assert 'placed: 2' in _text(browser, '#rate')
    assert _text(browser, '#hosts .note') == ''
    assert browser.run("document.getElementById('trouble').hidden")
    front.refuses = '/v1'
    browser.run(again)
    browser.wait("!document.getElementById('trouble').hidden")
    assert 'Nothing could be asked: the database is away' in _text(browser, '#trouble')
    front.refuses = None
    browser.run(again)
    browser.wait("document.getElementById('trouble').hidden")
    assert _text(browser, '#rate .note') == ''
    # The browser itself logs each answer that is no success; the page does not.
    assert all('Failed to load resource' in problem for problem in browser.problems)
    browser.problems.clear()


def test_a_token_is_sent_once_it_is_given_and_forgotten_when_told(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    front = Away(site.app)
    front.refuses, front.status = '/v1', '401 Unauthorized'
    browser.open(f'{serve(front)}/dashboard')
    browser.wait("!document.getElementById('trouble').hidden")
    assert 'give a token' in _text(browser, '#trouble')
    assert set(front.tokens) == {None}
    browser.problems.clear()
    front.refuses = None
    browser.click('#token')
    browser.run("document.getElementById('token-value').focus()")
    browser.type('secret-1')
    front.tokens.clear()
    browser.press('Enter')
    browser.wait(LOADED)
    assert set(front.tokens) == {'secret-1'}
    assert _text(browser, '#token') == 'Token: set'
    assert browser.run("document.documentElement.outerHTML.includes('secret-1')") is False
    browser.click('#token')
    front.tokens.clear()
    browser.click('#token-forget')
    browser.wait("document.getElementById('token').textContent === 'Token'")
    assert browser.run('sessionStorage.length') == 0


def test_behind_keystone_a_token_shows_what_its_roles_may_see(
    browser: Browser, site: Site, serve: Callable[[Any], str], tmp_path: pathlib.Path
) -> None:
    keystone = Keystone()
    conf = identity.configuration(tmp_path, {'keystone_authtoken': identity.options(keystone.url)})
    app = make_app(
        site.insights,
        site.world.store,
        site.client,
        site.metrics,
        strategy=auth.strategy('keystone', conf),
    )

    def give(token: str) -> None:
        browser.click('#token')
        browser.run("document.getElementById('token-value').focus()")
        browser.type(token)
        browser.press('Enter')

    browser.open(f'{serve(app)}/dashboard')
    browser.wait("!document.getElementById('trouble').hidden")
    assert 'give a token' in _text(browser, '#trouble')
    give(keystone.issue('member'))
    browser.wait("document.querySelector('#hosts .note').innerText.includes('gantt:hosts:list')")
    give(keystone.issue('reader', system=True))
    browser.wait("document.getElementById('trouble').hidden")
    browser.wait("document.getElementById('map').ariaLabel?.includes('6 hosts')")
    assert _text(browser, '#hosts .note') == ''
    keystone.stop()
    # The browser itself logs each answer that is no success; the page does not.
    assert all('Failed to load resource' in problem for problem in browser.problems)
    browser.problems.clear()


def test_ten_thousand_hosts_are_one_answer(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    many = httpx.Client(transport=httpx.WSGITransport(site.app), base_url='http://localhost')
    small = many.get('/v1/host-map').json()
    count = 10_000
    for name in ('condition', 'zone', 'free', 'cap', 'claims', 'report_age_seconds'):
        small[name] = [small[name][i % 6] for i in range(count)]
    small['hosts'] = [f'cmp-{i:05}' for i in range(count)]
    asked: list[str] = []

    def front(environ: dict[str, Any], start_response: Any) -> Any:
        asked.append(environ['PATH_INFO'])
        if environ['PATH_INFO'] == '/v1/host-map':
            start_response('200 OK', [('Content-Type', 'application/json')])
            return [json.dumps(small).encode()]
        return site.app(environ, start_response)

    browser.open(f'{serve(front)}/dashboard')
    browser.wait(LOADED)
    assert asked.count('/v1/host-map') == 1
    assert not [path for path in asked if path.startswith('/v1/hosts')]
    points, _ = browser.run(PAINTED)
    assert points > count * 9
    browser.run("document.getElementById('map').focus()")
    browser.press('End')
    assert _text(browser, '#map-said').startswith('cmp-09999:')


def test_the_page_works_behind_a_prefix(
    browser: Browser, site: Site, serve: Callable[[Any], str]
) -> None:
    """As a web server mounts it, e.g. under /scheduler."""

    def mounted(environ: dict[str, Any], start_response: Any) -> Any:
        prefix = '/scheduler'
        path = environ['PATH_INFO']
        if not path.startswith(prefix):
            start_response('404 Not Found', [])
            return [b'']
        inner = {**environ, 'SCRIPT_NAME': prefix, 'PATH_INFO': path.removeprefix(prefix)}
        return site.app(inner, start_response)

    browser.open(f'{serve(mounted)}/scheduler/dashboard/')
    browser.wait(LOADED)
    assert browser.run('location.pathname') == '/scheduler/dashboard'
    assert browser.run(PAINTED)[0] > 600
