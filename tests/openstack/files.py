# SPDX-License-Identifier: Apache-2.0
"""The configuration of every service, as an operator would write it for one machine."""

import uuid
from pathlib import Path
from typing import Any

PASSWORD = 'secret'
HOSTS = ('alpha', 'beta', 'gamma')

IDENTITY = """\
auth_type = password
auth_url = {keystone}
username = {user}
password = {password}
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = RegionOne
"""

KEYSTONE = """\
[DEFAULT]
log_file = {root}/log/keystone.log
[database]
connection = {db}/{prefix}_keystone
[fernet_tokens]
key_repository = {root}/keystone/fernet
[credential]
key_repository = {root}/keystone/credential
[token]
provider = fernet
"""

GLANCE = """\
[DEFAULT]
log_file = {root}/log/glance.log
transport_url = {broker}
enabled_backends = files:file
node_staging_uri = file://{root}/glance/staging
[database]
connection = {db}/{prefix}_glance
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = {root}/glance/images
[os_glance_tasks_store]
filesystem_store_datadir = {root}/glance/tasks
[os_glance_staging_store]
filesystem_store_datadir = {root}/glance/staging
[paste_deploy]
flavor = keystone
config_file = {etc}/glance/glance-api-paste.ini
[keystone_authtoken]
www_authenticate_uri = {keystone}
{glance_identity}
"""

PLACEMENT = """\
[DEFAULT]
log_file = {root}/log/placement.log
[placement_database]
connection = {db}/{prefix}_placement
[api]
auth_strategy = keystone
[keystone_authtoken]
www_authenticate_uri = {keystone}
{placement_identity}
"""

NOVA = """\
[DEFAULT]
debug = true
state_path = {root}/nova
transport_url = {broker}
my_ip = 127.0.0.1
resume_guests_state_on_host_boot = false
service_down_time = 20
report_interval = 5
scheduler_instance_sync_interval = {sync}
[api]
auth_strategy = keystone
[wsgi]
api_paste_config = {root}/etc/nova/api-paste.ini
[api_database]
connection = {db}/{prefix}_nova_api
[database]
connection = {db}/{prefix}_nova
[oslo_concurrency]
lock_path = {root}/nova/locks
[vnc]
enabled = false
[glance]
{nova_identity}
[neutron]
{nova_identity}
[placement]
{nova_identity}
[service_user]
send_service_user_token = true
{nova_identity}
[keystone_authtoken]
www_authenticate_uri = {keystone}
service_token_roles = service
service_token_roles_required = true
{nova_identity}
[filter_scheduler]
track_instance_changes = true
[scheduler]
workers = 1
[conductor]
workers = 1
[notifications]
notification_format = both
[oslo_messaging_notifications]
driver = {notifications}
"""

COMPUTE = """\
[DEFAULT]
host = {host}
state_path = {root}/{host}
log_file = {root}/log/nova-compute-{host}.log
compute_driver = played.Hypervisor
[oslo_concurrency]
lock_path = {root}/{host}/locks
"""

GANTT = """\
[DEFAULT]
transport_url = {own_broker}
state_path = {root}/gantt
log_dir = {root}/log

[database]
connection = {db}/{prefix}_gantt

[rpc]
nova_enabled = {replaces}
nova_transport_url = {broker}
nova_rabbit_options = rabbit_quorum_queue:false
nova_max_attempts = 3

[api]
port = {gantt_port}
auth_strategy = keystone

[keystone_authtoken]
www_authenticate_uri = {keystone}
{gantt_identity}

[nova]
{gantt_identity}

[placement]
endpoint_override = {held}

[nova_source]
request_seconds = 300
interval_seconds = {interval}
resolve_seconds = 10
cells_file = {root}/gantt/cells.txt

[shadow]
outcome_seconds = 60
"""


def write(root: Path, words: dict[str, Any]) -> None:
    """Write all files under ``root/etc``.

    :param words: what the templates ask for; identities are added here
    """
    users = ('glance', 'placement', 'nova', 'gantt')
    words = dict(words, root=root) | {
        f'{user}_identity': IDENTITY.format(
            keystone=words['keystone'], user=user, password=PASSWORD
        )
        for user in users
    }
    texts = {
        'keystone/keystone.conf': KEYSTONE,
        'glance/glance-api.conf': GLANCE,
        'placement/placement.conf': PLACEMENT,
        'nova/nova.conf': NOVA,
        'gantt/gantt.conf': GANTT,
    }
    for name, text in texts.items():
        _put(root / 'etc' / name, text.format(**words))
    # nova-api looks for it beside its configuration.
    _put(root / 'etc/nova/api-paste.ini', (words['etc'] / 'nova/api-paste.ini').read_text())
    for host in HOSTS:
        _put(root / 'etc/compute' / f'{host}.conf', COMPUTE.format(root=root, host=host))
        _put(root / host / 'compute_id', str(uuid.uuid5(uuid.NAMESPACE_DNS, host)))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
