# SPDX-License-Identifier: Apache-2.0
"""A real ``gantt-scheduler`` in nova-scheduler's place, with hosts in two cells."""

import itertools
from pathlib import Path
from typing import Any

from gantt import client
from gantt.core.claims.claim import Claim
from gantt.core.messages.report import HostReport, NumaCell, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from tests.nemesis.site import Site, until
from tests.rpc.bus import a_conf

#: The cell of the captured requests, and another one.
CELL, OTHER_CELL = '3f08903e-ffa4-442a-bd00-09d817a78499', '7f1e1e00-56a1-4f9b-9d6a-0f0e7e6a5c01'
HERE = [f'compute-{n:03}' for n in range(1, 7)]
THERE = [f'compute-{n:03}' for n in range(101, 105)]
RATIO = 4.0


class Cloud:
    """The processes, their hosts, and the database behind them."""

    def __init__(
        self, folder: Path, database: str, broker: str, names: tuple[str, ...] = ('scheduler',)
    ) -> None:
        self.site = Site(folder, database, broker)
        self._carrier = client.get_transport(a_conf(broker))
        try:
            self._open(names)
        except BaseException:
            self.close()
            raise

    def _open(self, names: tuple[str, ...]) -> None:
        # All clocks here are one.
        self.site.start(*names, rpc={'nova_enabled': True, 'nova_clock_skew_seconds': 0})
        self._claims = client.ClaimsClient(self._carrier)
        self._stats = client.StatsClient(self._carrier)
        self._sequence = itertools.count(1)
        for name in HERE:
            self.host(name, CELL)
        for name in THERE:
            self.host(name, OTHER_CELL, {'VCPU': 8})

    def close(self) -> None:
        self._carrier.cleanup()
        self.site.close()

    def host(self, name: str, cell: str | None, less: dict[str, int] | None = None) -> None:
        """Register a host and report for it; as a source does that speaks for Nova's hosts."""
        registered = self._claims.register_host(
            RegisterHost(name=name, boot_nonce='n', cell=cell, zone='nova', reporter='nova')
        )
        room = {'VCPU': 64, 'MEMORY_MB': 1 << 20, 'DISK_GB': 4000} | (less or {})
        ratios = {'VCPU': RATIO}
        fate = self._stats.update_resource_stats(
            HostReport(
                name=name,
                epoch=registered.epoch,
                sequence=next(self._sequence),
                full=True,
                inventories={
                    kind: Inventory(total=total, allocation_ratio=ratios.get(kind, 1.0))
                    for kind, total in room.items()
                },
                numa=[
                    NumaCell(id=n, cpus=list(range(n * 32, n * 32 + 32)), memory_mb=1 << 19)
                    for n in range(2)
                ],
                running=None,
                pending=None,
            )
        )
        assert fate.outcome == 'applied'

    def claims(self, consumer: str) -> list[Claim]:
        """All claims of an instance, ended ones too."""
        return self.site.store.claims.list_claims(consumer=consumer, limit=100)

    def live(self, consumer: str) -> list[tuple[str, str]]:
        """(host, state) of the live claims of an instance."""
        return sorted((c.host, c.state.value) for c in self.claims(consumer) if c.is_live)

    def until(self, asked: Any, awaited: str) -> Any:
        return until(asked, awaited, 30.0)
