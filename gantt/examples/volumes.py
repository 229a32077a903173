# SPDX-License-Identifier: Apache-2.0
"""A volume service: Gantt says on which pool a volume lies, and keeps the room for it.

    python -m gantt.examples.volumes --config-file gantt.conf create 20
    python -m gantt.examples.volumes --config-file gantt.conf delete UUID

A volume is the only consumer of a request, and its uuid is the id of both: the service has nothing
to note, and whatever it repeats after a failure has the effect of one.
"""

import argparse
import contextlib
import sys
import uuid
from collections.abc import Callable, Sequence

import msgspec
from oslo_config import cfg

from gantt import client, exceptions
from gantt.core.messages.request import RequestKind, RequestSpec

#: How long making a volume may take before its room is given to others, in seconds.
MAKING_SECONDS = 60


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that is there."""

    uuid: str
    pool: str
    gigabytes: int


class VolumeService:
    """Makes volumes where there is room for them.

    :param make: makes one on its pool, and raises where that fails
    :param destroy: the reverse; of one that is not there it does nothing
    """

    def __init__(
        self,
        scheduler: client.SchedulerClient,
        make: Callable[[Volume], None] = lambda volume: None,
        destroy: Callable[[str], None] = lambda uuid: None,
    ) -> None:
        self._scheduler = scheduler
        self._make, self._destroy = make, destroy

    def create(
        self,
        gigabytes: int,
        *,
        volume: str | None = None,
        traits: Sequence[str] = (),
        project: str | None = None,
    ) -> Volume:
        """A new volume; one of a uuid that was made before is that one.

        :param traits: that its pool must have
        :raises NoValidHost: no pool has room; the message says what is in the way
        :raises Conflict: making it took longer than its room was kept
        """
        volume = volume or str(uuid.uuid4())
        answer = self._scheduler.select_destinations(
            request_id=volume,
            consumers=[volume],
            lease_seconds=MAKING_SECONDS,
            alternates=0,
            spec=RequestSpec(
                kind=RequestKind.POOL,
                resources={'DISK_GB': gigabytes},
                required_traits=list(traits),
                consumer_type='VOLUME',
                project_id=project,
            ),
        )
        made = Volume(uuid=volume, pool=answer.selections[0][0].host, gigabytes=gigabytes)
        try:
            self._make(made)
        except Exception:
            self.delete(volume, 'it could not be made')
            raise
        # From here on no lease ends it.  Where it has ended before, somebody else has the room.
        [claim] = self._scheduler.confirm_request(volume)['claims']
        if claim['fate'] != 'ok':
            self._destroy(volume)
            raise exceptions.Conflict(
                f'volume {volume} took longer to make than its room was kept', request_id=volume
            )
        return made

    def delete(self, volume: str, reason: str = 'deleted') -> None:
        """The volume is gone, then its room is free; once or more often."""
        self._destroy(volume)
        with contextlib.suppress(exceptions.NotFound):  # it was never there, or long ago
            self._scheduler.release_request(volume, reason=reason)


def main(argv: list[str] | None = None) -> int:
    """Create or delete one volume."""
    parser = argparse.ArgumentParser(prog='volumes', description=__doc__.splitlines()[0])
    parser.add_argument('--config-file', required=True)
    verbs = parser.add_subparsers(dest='verb', required=True)
    verbs.add_parser('create').add_argument('gigabytes', type=int)
    verbs.add_parser('delete').add_argument('volume')
    given = parser.parse_args(argv)
    cfg.CONF(['--config-file', given.config_file], project='gantt')
    service = VolumeService(client.SchedulerClient(client.get_transport(cfg.CONF)))
    try:
        if given.verb == 'create':
            made = service.create(given.gigabytes)
            print(f'volume {made.uuid}: {made.gigabytes} GB on {made.pool}')
        else:
            service.delete(given.volume)
            print(f'volume {given.volume} is deleted')
    except exceptions.GanttError as e:
        print(f'volumes: {e}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
