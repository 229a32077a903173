# SPDX-License-Identifier: Apache-2.0
"""A volume service: Gantt says on which pool a volume lies, and keeps the room for it.

    python -m devel.examples.volumes --config-file gantt.conf create 20
    python -m devel.examples.volumes --config-file gantt.conf delete UUID

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

#: Seconds that creating a volume may take before its room is given to others.
CREATE_SECONDS = 60


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that exists."""

    uuid: str
    pool: str
    gigabytes: int


class VolumeService:
    """A service that creates volumes in pools with room for them.

    :param make: creates a volume on its pool, and raises where that fails
    :param destroy: deletes a volume; does nothing where there is none
    """

    def __init__(
        self,
        scheduler: client.SchedulerClient,
        make: Callable[[Volume], None] = lambda volume: None,
        destroy: Callable[[str], None] = lambda uuid: None,
    ) -> None:
        self._scheduler = scheduler
        self._make = make
        self._destroy = destroy

    def create(
        self,
        gigabytes: int,
        *,
        volume: str | None = None,
        traits: Sequence[str] = (),
        project: str | None = None,
    ) -> Volume:
        """Create a volume; repeating it with the same uuid returns the same volume.

        :param traits: traits that its pool must have
        :raises NoValidHost: no pool has room; the message states what is in the way
        :raises Conflict: creating it took longer than its room was kept
        """
        volume = volume or str(uuid.uuid4())
        answer = self._scheduler.select_destinations(
            request_id=volume,
            consumers=[volume],
            lease_seconds=CREATE_SECONDS,
            alternates=0,
            spec=RequestSpec(
                kind=RequestKind.POOL,
                resources={'DISK_GB': gigabytes},
                required_traits=list(traits),
                consumer_type='VOLUME',
                project_id=project,
            ),
        )
        new_volume = Volume(uuid=volume, pool=answer.selections[0][0].host, gigabytes=gigabytes)
        try:
            self._make(new_volume)
        except Exception:
            self.delete(volume, 'it could not be made')
            raise
        # From here on no lease ends it.  Where it has ended before, another consumer has the room.
        [claim] = self._scheduler.confirm_request(volume)['claims']
        if claim['outcome'] != 'ok':
            self._destroy(volume)
            raise exceptions.Conflict(
                f'volume {volume} took longer to make than its room was kept', request_id=volume
            )
        return new_volume

    def delete(self, volume: str, reason: str = 'deleted') -> None:
        """Delete the volume, then free its room; repeating it is harmless."""
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
    args = parser.parse_args(argv)
    cfg.CONF(['--config-file', args.config_file], project='gantt')
    service = VolumeService(client.SchedulerClient(client.get_transport(cfg.CONF)))
    try:
        if args.verb == 'create':
            volume = service.create(args.gigabytes)
            print(f'volume {volume.uuid}: {volume.gigabytes} GB on {volume.pool}')
        else:
            service.delete(args.volume)
            print(f'volume {args.volume} is deleted')
    except exceptions.GanttError as e:
        print(f'volumes: {e}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
