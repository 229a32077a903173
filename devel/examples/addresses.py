# SPDX-License-Identifier: Apache-2.0
"""An address service: Gantt counts the addresses of networks, the service says which they are.

    python -m devel.examples.addresses --config-file gantt.conf take 2
    python -m devel.examples.addresses --config-file gantt.conf keep|renew|give UUID

A pool is a network with so many ``IPV4_ADDRESS``.  An offer is kept for a while and may be renewed,
as a client of DHCP does; kept it stays until it is given back.  An offer that is not renewed
returns by itself.
"""

import argparse
import contextlib
import sys
import uuid

import msgspec
from oslo_config import cfg

from gantt import client, exceptions
from gantt.core.messages.request import RequestKind, RequestSpec

#: Seconds for which an offer is kept unless it is renewed.
OFFER_SECONDS = 30


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of one network that are kept for an owner.

    :ivar owner: uuid of the offer, by which it is renewed, kept and given back
    """

    owner: str
    network: str
    count: int
    seconds: float


class AddressService:
    """A service that hands out numbers of addresses of any network that has them."""

    def __init__(self, scheduler: client.SchedulerClient) -> None:
        self._scheduler = scheduler

    def take(
        self,
        count: int,
        *,
        owner: str | None = None,
        networks: list[str] | None = None,
        project: str | None = None,
    ) -> Offer:
        """Reserve addresses of one network, for a while.

        :param networks: uuids of aggregates, in one of which the network is; None: any will do
        :raises NoValidHost: no network has so many left
        """
        owner = owner or str(uuid.uuid4())
        answer = self._scheduler.select_destinations(
            request_id=owner,
            consumers=[owner],
            lease_seconds=OFFER_SECONDS,
            alternates=0,
            spec=RequestSpec(
                kind=RequestKind.POOL,
                resources={'IPV4_ADDRESS': count},
                member_of=[networks] if networks else [],
                consumer_type='ADDRESSES',
                project_id=project,
            ),
        )
        chosen = answer.selections[0][0]
        return Offer(
            owner=owner, network=chosen.host, count=count, seconds=chosen.lease_seconds or 0.0
        )

    def renew(self, owner: str) -> bool:
        """Renew the offer for as long again; return whether it is still there."""
        try:
            claims = self._scheduler.extend_claims(owner, OFFER_SECONDS)['claims']
        except exceptions.NotFound:
            return False
        return all(claim['outcome'] in ('ok', 'kept') for claim in claims)

    def keep(self, owner: str) -> bool:
        """Confirm the addresses as in use until given back; return whether they are still there."""
        claims = self._scheduler.confirm_request(owner)['claims']
        return all(claim['outcome'] == 'ok' for claim in claims)

    def give(self, owner: str) -> None:
        """Release the addresses; repeating it is harmless."""
        with contextlib.suppress(exceptions.NotFound):  # it was never there, or long ago
            self._scheduler.release_request(owner, reason='given back')


def main(argv: list[str] | None = None) -> int:
    """Run one command on the addresses of one owner."""
    parser = argparse.ArgumentParser(prog='addresses', description=__doc__.splitlines()[0])
    parser.add_argument('--config-file', required=True)
    verbs = parser.add_subparsers(dest='verb', required=True)
    verbs.add_parser('take').add_argument('count', type=int)
    for verb in ('renew', 'keep', 'give'):
        verbs.add_parser(verb).add_argument('owner')
    args = parser.parse_args(argv)
    cfg.CONF(['--config-file', args.config_file], project='gantt')
    service = AddressService(client.SchedulerClient(client.get_transport(cfg.CONF)))
    try:
        if args.verb == 'take':
            offer = service.take(args.count)
            print(f'{offer.owner}: {offer.count} of {offer.network}, for {offer.seconds:g} s')
        elif getattr(service, args.verb)(args.owner) is False:
            print(f'addresses: {args.owner} has none any more', file=sys.stderr)
            return 1
    except exceptions.GanttError as e:
        print(f'addresses: {e}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
