# SPDX-License-Identifier: Apache-2.0
"""nova-compute as it is, with a played hypervisor that outlives its process and fails when told to.

The hypervisors that Nova has for its own tests forget their guests and the uuid of
their node; a real one does not.  A file ``fails`` in the state path names what is to
fail: ``spawn`` (the conductor goes on to an alternate), ``abort`` (it does not),
``migrate`` (a live migration is rolled back), ``receive`` (its destination refuses).
"""

import json
import sys
import types
from pathlib import Path

from nova.cmd import compute  # first: it chooses how threads are made

# isort: split
from nova import exception, virt
from nova.virt import fake, node

CONF = compute.CONF


class Hypervisor(fake.MediumFakeDriver):
    """Guests are kept in a file."""

    def init_host(self, host):
        super().init_host(host)
        if self._kept.exists():
            for guest in json.loads(self._kept.read_text()):
                self.instances[guest['uuid']] = fake.FakeInstance(**guest)

    def get_nodenames_by_uuid(self, refresh=False):
        return {node.get_local_node_uuid(): CONF.host}

    def get_available_resource(self, nodename):
        return super().get_available_resource(nodename) | {'uuid': node.get_local_node_uuid()}

    @property
    def _kept(self):
        return Path(CONF.state_path) / 'guests.json'

    def _keep(self):
        self._kept.write_text(json.dumps([vars(guest) for guest in self.instances.values()]))

    def _fails(self, step):
        named = Path(CONF.state_path) / 'fails'
        return named.exists() and named.read_text().strip() == step

    def spawn(self, context, instance, *args, **kwargs):
        if self._fails('spawn'):
            raise exception.ComputeResourcesUnavailable(reason='told to fail')
        if self._fails('abort'):
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason='told to fail')
        super().spawn(context, instance, *args, **kwargs)
        self._keep()

    def destroy(self, *args, **kwargs):
        super().destroy(*args, **kwargs)
        self._keep()

    def cleanup(self, *args, **kwargs):
        super().cleanup(*args, **kwargs)
        self._keep()

    def pre_live_migration(self, context, instance, *args, **kwargs):
        if self._fails('receive'):
            raise exception.MigrationPreCheckError(reason='told to fail')
        return super().pre_live_migration(context, instance, *args, **kwargs)

    def check_can_live_migrate_destination(self, context, instance, *args, **kwargs):
        if self._fails('receive'):
            raise exception.MigrationPreCheckError(reason='told to fail')
        return super().check_can_live_migrate_destination(context, instance, *args, **kwargs)

    def live_migration(
        self,
        context,
        instance,
        dest,
        post_method,
        recover_method,
        block_migration=False,
        migrate_data=None,
    ):
        if self._fails('migrate'):
            recover_method(context, instance, dest, migrate_data)
            return
        post_method(context, instance, dest, block_migration, migrate_data)


if __name__ == '__main__':
    played = types.ModuleType('nova.virt.played')
    played.Hypervisor = Hypervisor
    sys.modules['nova.virt.played'] = played
    virt.played = played
    sys.exit(compute.main())
