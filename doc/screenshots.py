# SPDX-License-Identifier: Apache-2.0
"""The pictures of the dashboard in the documents, made anew: ``python doc/screenshots.py``.

A site of 600 hosts is played for an hour of simulated time by the production
scheduler over the store in memory, and looked at in a headless Chromium.  The
same seed gives the same site; only the times of day differ.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import pathlib
import random
import sys
import time
import uuid

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from bench.browser import Browser  # noqa: E402
from gantt import exceptions  # noqa: E402
from gantt.cmd.http_app import make_app  # noqa: E402
from gantt.core.messages.report import Running  # noqa: E402
from gantt.core.messages.request import RequestSpec, SelectDestinations  # noqa: E402
from gantt.core.messages.resource_classes import Inventory  # noqa: E402
from gantt.groups.insights import HOOKS  # noqa: E402
from gantt.http.server import HttpServer  # noqa: E402
from gantt.insights.read_model import Insights  # noqa: E402
from gantt.telemetry.metrics import MetricRegistry  # noqa: E402
from tests.http.site import DirectClient, RecordingWorld  # noqa: E402
from tests.world import Host  # noqa: E402

HOSTS = 600
MINUTES = 60
BYTES_MAX = 150_000
INTO = HERE / 'source' / 'admin' / 'images'
FLAVORS = (
    {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20},
    {'VCPU': 4, 'MEMORY_MB': 16_384, 'DISK_GB': 40},
    {'VCPU': 16, 'MEMORY_MB': 65_536, 'DISK_GB': 160},
    {'VCPU': 96, 'MEMORY_MB': 524_288, 'DISK_GB': 400},
)
LOADED = "document.getElementById('freshness').textContent.startsWith('updated')"


class Play:
    """The site, and what happens there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = RecordingWorld()
        # The hour ends about now: the page shows times of day.
        self.world.clock.advance(time.time() - MINUTES * 61 - self.world.clock.wall())
        self.client = DirectClient(self.world)
        self.hosts = {name: self._host(name) for name in self._names()}
        self.silent: set[str] = set()
        #: Claims that their host is going to confirm: when, host, claim, consumer, resources.
        self.building: list[tuple[float, str, str, str, dict[str, int]]] = []

    def _names(self) -> list[str]:
        return [
            f'az{zone}-r{i // 20:02}-n{i % 20:02}' for zone in (1, 2, 3) for i in range(HOSTS // 3)
        ]

    def _host(self, name: str) -> Host:
        large = name.startswith('az3')
        cores = 128 if large else 64
        busy = self.rng.betavariate(2, 2.2) if not large else self.rng.betavariate(4, 1.5)
        return Host(
            self.world,
            name,
            zone=name[:3],
            inventories={
                'VCPU': Inventory(total=cores, allocation_ratio=2.0),
                'MEMORY_MB': Inventory(total=cores * 8192, reserved=4096),
                'DISK_GB': Inventory(total=4000),
            },
            foreign={'VCPU': int(cores * 2 * busy), 'MEMORY_MB': int(cores * 8192 * busy * 0.8)},
        )

    def run(self) -> None:
        """An hour; every host reports once a minute unless it is silent."""
        for name in self.rng.sample(sorted(self.hosts), 4):
            self.hosts.pop(name)  # registered, and never heard of again
        for host in self.hosts.values():
            host.report()
        self.world.turn(times=11)
        for minute in range(MINUTES):
            if minute == MINUTES - 12:
                self.silent = {n for n in self.hosts if n.startswith('az2-r03')}
                self.silent |= set(self.rng.sample(sorted(self.hosts), 5))
            self._minute(minute)
        for name in self.rng.sample(sorted(set(self.hosts) - self.silent), 9):
            self.world.store.hosts.disable_host(name, 'firmware update', 'ops')
        over = self.hosts['az1-r06-n07']
        over.facts['foreign'] = {'VCPU': 140}
        over.report()
        self.world.turn(0.5, times=4)

    def _minute(self, minute: int) -> None:
        busy = 6 + 5 * (20 < minute < 38)
        count = self.rng.randrange(busy - 3, busy + 4)
        for _ in range(count):
            self._ask(minute)
            self._confirm()
            self.world.turn(48 / count * self.rng.uniform(0.5, 1.5))
        for name, host in self.hosts.items():
            if name not in self.silent:
                host.report()
        self.world.turn(1, times=11)  # a turn takes in 64 reports
        self._confirm()

    def _ask(self, minute: int) -> None:
        flavor = self.rng.choices(range(4), (8, 5, 2, 1.2 if minute > 20 else 0.4))[0]
        needs = dict(FLAVORS[flavor])
        zone = self.rng.choice(('az1', 'az2', 'az3', None, None))
        if flavor == 3:
            zone = self.rng.choice(('az1', 'az2', 'az3'))
            needs['VCPU'] = self.rng.choice((96, 160, 240))
        spec = RequestSpec(resources=needs, availability_zone=zone)
        try:
            answer = self.client.select_destinations(
                SelectDestinations(
                    request_id=self._id(),
                    spec=spec,
                    consumers=[self._id() for _ in range(self.rng.choice((1, 1, 1, 2, 5)))],
                )
            )
        except exceptions.NoValidHost:
            return
        slow = 6.0 if 20 < minute < 38 else 1.0
        for chosen, *_ in answer.selections:
            wait = self.rng.lognormvariate(0.9, 0.5) * slow
            due = self.world.clock.wall() + wait
            if self.rng.random() < 0.97:
                made = (due, chosen.host, chosen.claim_id or '', chosen.consumer, needs)
                self.building.append(made)

    def _id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def _confirm(self) -> None:
        now = self.world.clock.wall()
        due = sorted(one for one in self.building if one[0] <= now)
        self.building = [one for one in self.building if one[0] > now]
        for _, name, claim_id, consumer, needs in due:
            host = self.hosts[name]
            if self.rng.random() < 0.02:
                self.world.scheduler.refuse(host.words(claim_id, reason='no space left'))
                continue
            host.confirm(claim_id)
            host.running[consumer] = Running(
                consumer=consumer, claim_id=claim_id, resources=dict(needs)
            )
            if self.rng.random() < 0.15:
                del host.running[consumer]

    def serve(self) -> HttpServer:
        """The interface in front of it."""
        world, scheduler = self.world, self.world.scheduler
        insights = Insights(
            world.store, scheduler.placing.pipeline, HOOKS, scheduler.settings, world.clock
        )
        server = HttpServer(
            make_app(insights, world.store, self.client, MetricRegistry()),
            '127.0.0.1',
            0,
            threads=4,
        )
        server.start()
        return server


def keep(name: str, picture: bytes) -> None:
    """Write a picture.

    :raises RuntimeError: it is too large for the documents
    """
    if len(picture) > BYTES_MAX:
        raise RuntimeError(f'{name} has {len(picture)} bytes, at most {BYTES_MAX}')
    (INTO / name).write_bytes(picture)
    sys.stdout.write(f'{INTO / name}: {len(picture)} bytes\n')


def take(browser: Browser, url: str) -> None:
    """All pictures."""
    browser.screen(1280, 1060)
    browser.open(f'{url}/dashboard')
    browser.wait(LOADED)
    browser.run("document.getElementById('map').focus()")
    for key in ('Home', *['ArrowDown'] * 3, *['ArrowRight'] * 9):
        browser.press(key)
    keep('dashboard.png', browser.picture())
    browser.press('Escape')
    browser.click('#groups button')
    browser.wait("document.querySelector('#detail-body .bars')")
    browser.screen(1280, 760)
    keep('dashboard-refusal.png', browser.picture())
    browser.press('Escape')
    browser.run(
        "(() => { const e = document.getElementById('outcome'); e.value = 'placed';"
        "e.dispatchEvent(new Event('input')); })()"
    )
    rows = "[...document.querySelectorAll('#decisions .rows .outcome')]"
    browser.wait(f"{rows}.every((e) => e.innerText === 'placed')")
    browser.screen(1280, 760, dark=True)
    browser.click('#decisions .rows li:nth-child(1) button')
    browser.wait("document.querySelector('#detail-body table')")
    keep('dashboard-placement-dark.png', browser.picture())
    browser.press('Escape')
    browser.screen(390, 844, dark=True, scale=2)
    browser.run('scrollTo(0, 0)')
    time.sleep(0.3)
    keep('dashboard-phone-dark.png', browser.picture())
    if browser.problems:
        raise RuntimeError(f'the console has: {browser.problems}')


def main() -> int:
    """Make them; exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seed', type=int, default=11)
    play = Play(parser.parse_args().seed)
    play.run()
    INTO.mkdir(parents=True, exist_ok=True)
    server = play.serve()
    try:
        with Browser() as browser:
            take(browser, f'http://127.0.0.1:{server.port}')
    finally:
        server.stop(5)
    return 0


if __name__ == '__main__':
    sys.exit(main())
