# SPDX-License-Identifier: Apache-2.0
"""Delay until the dashboard shows every host, in a headless Chromium.

A real ``gantt-api`` on PostgreSQL; each time the page is opened with an empty cache.
The value is the median time from the navigation to the frame that has the heat map
of all hosts on the screen.  The first opening, for which the API reads all hosts
from the database, is stated beside it.  The yardstick is the plainest page of the
same server, ``/v1``: from the navigation to its first paint.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import statistics
from typing import Any

from bench import Result, callers, conditions
from bench.browser import Browser
from bench.explain import fill
from bench.rig import rig

#: When what is seen first was painted, milliseconds from the navigation.
FIRST = "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime"
HOSTS = "(performance.getEntriesByName('gantt-hosts-painted')[0] || {}).startTime"
ANSWER = (
    "performance.getEntriesByType('resource').filter((e) => e.name.includes('host-map'))"
    '.map((e) => [e.responseEnd - e.requestStart, e.encodedBodySize, e.decodedBodySize])[0]'
)
LABEL = "document.getElementById('map').getAttribute('aria-label')"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--repeats', type=int, default=9)


def run(args: argparse.Namespace) -> Result:
    """Open the page and the plainest one in turn."""
    port = callers.free_port()
    url = f'http://127.0.0.1:{port}'
    options = callers.options(api={'host': '127.0.0.1', 'port': port})
    with rig(options) as testbed, Browser() as browser:
        fill(testbed, args.hosts)
        testbed.start('api', 'gantt-api')
        testbed.wait_for('api', 'is ready')
        browser.screen(1280, 900)
        browser.call('Network.enable')
        browser.call('Network.setCacheDisabled', cacheDisabled=True)
        version = browser.call('Browser.getVersion')['product']
        cold = _open(browser, url)
        openings: list[dict[str, Any]] = []
        stick: list[float] = []
        for _ in range(args.repeats):
            browser.open(f'{url}/v1')
            stick.append(browser.wait(FIRST))
            openings.append(_open(browser, url))
        label = browser.run(LABEL) or ''
        problems = [text for opening in (cold, *openings) for text in opening.pop('problems')]
        if f'{args.hosts:,} hosts' not in label:
            problems.append(f'the map says {label!r}')
        stated = callers.servers(testbed)
        callers.end(testbed)
    medians = {
        key: round(statistics.median(opening[key] for opening in openings), 1)
        for key in ('hosts_painted_ms', 'first_contentful_paint_ms', 'answer_ms')
    }
    value, yardstick = medians['hosts_painted_ms'], statistics.median(stick)
    return Result(
        bench='dashboard',
        value=value,
        unit='ms',
        yardstick={'name': 'the page /v1', 'value': round(yardstick, 1)},
        ratio=round(value / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'browser': version,
            'hosts': args.hosts,
            'repeats': args.repeats,
            'medians': medians,
            'maximum': max(opening['hosts_painted_ms'] for opening in openings),
            'first_opening': cold,
            'bytes_sent': int(openings[-1]['sent']),
            'bytes_unpacked': int(openings[-1]['unpacked']),
            'problems': problems,
        },
        audit=len(problems),
    )


def _open(browser: Browser, url: str) -> dict[str, Any]:
    """Open the page and wait for its hosts; times in milliseconds, sizes in bytes."""
    browser.problems.clear()
    browser.open(f'{url}/dashboard')
    painted = browser.wait(HOSTS, 60)
    answer, sent, unpacked = browser.run(ANSWER)
    return {
        'hosts_painted_ms': round(painted, 1),
        'first_contentful_paint_ms': round(browser.wait(FIRST), 1),
        'answer_ms': round(answer, 1),
        'sent': sent,
        'unpacked': unpacked,
        # Our page names its icon; the plain one before it does not, and its refusal comes late.
        'problems': [text for text in browser.problems if '/favicon.ico' not in text],
    }
