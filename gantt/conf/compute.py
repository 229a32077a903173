# SPDX-License-Identifier: Apache-2.0
"""[compute]: the agent of a host, its journal, its guests; and the farm of fake hosts."""

from typing import Any

from oslo_config import cfg

from gantt.conf import FloatOpt

GROUP = cfg.OptGroup(
    'compute',
    title='The agent of a compute host',
    help='Read by gantt-compute only. Sizes are in the unit of their resource class: MiB of '
    'memory, GiB of disk.',
)

#: Of a farm of fake hosts, on any command line that may play one.
FARM_OPTS = [
    cfg.IntOpt(
        'fake',
        min=1,
        max=1_000_000,
        metavar='N',
        help='Play N hosts in this process. gantt-compute reports them instead of this machine.',
    ),
    cfg.IntOpt(
        'seed',
        default=0,
        min=0,
        help='With --fake: names, shapes, jitter and failures follow from it.',
    ),
    cfg.StrOpt(
        'shapes',
        metavar='FILE',
        help='With --fake: YAML file of host shapes with weights, zones, aggregates, '
        'traits and NUMA cells.',
    ),
    cfg.StrOpt(
        'events',
        metavar='FILE',
        help='With --fake: YAML file of what is to happen to which hosts, and when.',
    ),
]

#: Command line of gantt-compute.
CLI_OPTS = [
    cfg.StrOpt(
        'name',
        help='Name of the service host, or of the farm with --fake. Default: '
        '[compute] name, else [DEFAULT] host; "farm" with --fake.',
    ),
    *FARM_OPTS,
    cfg.BoolOpt(
        'build-claims',
        dest='build_claims',
        default=False,
        help='With --fake: build what is claimed on the hosts played here without being '
        'told to by a conductor, for trying out. The claims are read from the API '
        'that the environment names as for the command gantt: GANTT_ENDPOINT, '
        'OS_CLOUD or OS_AUTH_URL and its kin.',
    ),
    cfg.StrOpt(
        'report-only',
        dest='report_only',
        metavar='FILE',
        help='Speak for the hosts that this YAML file lists and something else runs. '
        'It is read again when it changes.',
    ),
    cfg.BoolOpt(
        'rotate-key',
        dest='rotate_key',
        default=False,
        help='Put another key in place of that in [compute] key_file, signed by it, and '
        'end. The agent speaks with it from its next start on.',
    ),
    cfg.BoolOpt(
        'facts-only',
        dest='facts_only',
        default=False,
        help='Next to nova-compute on a host that gantt-nova-source reports: tell of this '
        'machine what the APIs of Nova do not carry, and build nothing.',
    ),
]

OPTS = [
    cfg.StrOpt(
        'name',
        default='',
        help='Name of this service host towards the scheduler. Empty: [DEFAULT] host.',
    ),
    cfg.StrOpt('node', default='', help='Hypervisor host name. Empty: as the service host.'),
    cfg.StrOpt('uuid', default='', help='Uuid of the host. Empty: the scheduler gives one.'),
    cfg.StrOpt('cell', default='', help='Uuid of the cell that the host is in, if any.'),
    cfg.StrOpt('zone', default='', help='Availability zone of the host, if any.'),
    cfg.StrOpt(
        'location',
        default='',
        help='Where the host stands, from large to small: site.room.rack.host.',
    ),
    cfg.ListOpt(
        'aggregates',
        help='Aggregates that the host is in, by name or uuid. Not set: '
        'membership is managed through the API alone.',
    ),
    cfg.ListOpt('traits', default=[], help='Traits that the host has, such as CUSTOM_SSD.'),
    cfg.StrOpt(
        'disabled_reason',
        default='',
        help='Not empty: nothing new lands on this host, and verdicts show this reason. '
        'What runs, runs on.',
    ),
    cfg.IntOpt(
        'report_seconds',
        default=0,
        min=0,
        max=3600,
        help='Seconds between two reports, ± 10 %. 0: as the scheduler says when the '
        'host registers.',
    ),
    cfg.IntOpt(
        'full_report_every',
        default=10,
        min=1,
        max=10,
        help='Every so many reports, one states every fact; those between state what '
        'changed since it.',
    ),
    FloatOpt(
        'change_report_seconds',
        default=1.0,
        min=0.05,
        max=60.0,
        help='Seconds from the start or the end of a guest to the report of it.',
    ),
    FloatOpt(
        'call_seconds',
        default=10.0,
        min=0.5,
        max=120.0,
        help='Seconds that one call to the scheduler may take before it is asked again.',
    ),
    FloatOpt(
        'confirm_seconds',
        default=120.0,
        min=1.0,
        max=86_400.0,
        help='Seconds for which the confirmation of a claim is asked for where the '
        'build does not say how long its claim holds.',
    ),
    cfg.IntOpt(
        'threads',
        default=4,
        min=1,
        max=64,
        help='Threads for builds, deletes and calls to the scheduler.',
    ),
    cfg.IntOpt(
        'queue_limit',
        default=1000,
        min=1,
        max=1_000_000,
        help='Builds and deletes that may wait for a thread. One more is answered "busy".',
    ),
    cfg.StrOpt(
        'journal',
        default='',
        help='SQLite file that remembers what this host was told to build, so that '
        'nothing starts twice. Empty: compute/<name>.journal below [DEFAULT] '
        'state_path. Keep it on a disk that survives a restart.',
    ),
    cfg.BoolOpt(
        'sign_messages',
        default=True,
        help='Sign what this host sends to the scheduler, with the key in key_file.',
    ),
    cfg.StrOpt(
        'key_file',
        default='',
        help='File of the key of this host, made at its first start, readable by the agent '
        'alone. Empty: beside the journal, ending in .key; with --fake, --report-only '
        'and --facts-only nothing is signed then. Keep it on a disk that survives a '
        'restart.',
    ),
    cfg.IntOpt(
        'tombstone_seconds',
        default=172_800,
        min=86_400,
        max=31_536_000,
        help='Seconds that a finished claim is remembered. At least a day, and at least '
        '[claims] tombstone_seconds of the scheduler.',
    ),
    cfg.StrOpt(
        'check',
        default='always',
        choices=[
            ('always', 'every build is checked against what really runs on the host'),
            ('until_trusted', 'until it has not disagreed for trusted_after_days'),
        ],
        help='Whether a host checks a build by itself before it asks for its confirmation. A check '
        'that is off says so in the log and, as metric stats.unchecked_days, in the '
        'reports of the host. More guests than there is room for, seen while it is off, '
        'turn it on again and begin the time anew, as any disagreement does.',
    ),
    cfg.IntOpt(
        'trusted_after_days',
        default=30,
        min=1,
        max=3650,
        help='With check = until_trusted: days without a disagreement, by the clock of '
        'the host and over restarts, after which it takes builds unchecked.',
    ),
    cfg.StrOpt(
        'disk_path',
        default='/',
        help='A directory on the file system whose space guests get as DISK_GB.',
    ),
    FloatOpt(
        'cpu_allocation_ratio',
        default=4.0,
        min=0.01,
        max=1000,
        help='VCPU promised per logical processor.',
    ),
    FloatOpt(
        'ram_allocation_ratio',
        default=1.0,
        min=0.01,
        max=1000,
        help='MiB of MEMORY_MB promised per MiB that is there.',
    ),
    FloatOpt(
        'disk_allocation_ratio',
        default=1.0,
        min=0.01,
        max=1000,
        help='GiB of DISK_GB promised per GiB that is there.',
    ),
    cfg.IntOpt(
        'reserved_cpus', default=0, min=0, help='Logical processors that are not for guests.'
    ),
    cfg.IntOpt(
        'reserved_memory_mb', default=512, min=0, help='MiB of memory that are not for guests.'
    ),
    cfg.IntOpt(
        'reserved_disk_gb', default=0, min=0, help='GiB of the disk that are not for guests.'
    ),
    cfg.StrOpt(
        'dedicated_cpus',
        default='',
        help='Logical processors that guests get for themselves (PCPU), e.g. 4-15,^8. '
        'The others are shared (VCPU).',
    ),
    cfg.StrOpt(
        'shared_cpus',
        default='',
        help='Logical processors that guests share (VCPU), e.g. 2-3. Empty: all that are '
        'not dedicated.',
    ),
    cfg.MultiStrOpt(
        'device_spec',
        default=[],
        help='With --facts-only: PCI devices that are for guests, as [pci] '
        'device_spec of Nova names them: a JSON object with vendor_id, '
        'product_id, address, physical_network and tags, or a list of such. '
        'Once for each.',
    ),
    cfg.StrOpt(
        'shared_cpu_class',
        default='VCPU',
        choices=[
            ('VCPU', 'whole processors'),
            (
                'CUSTOM_MILLI_VCPU',
                'thousandths, for guests that take parts of one: the class has to be declared '
                'first, and the host takes no guests that ask for VCPU',
            ),
        ],
        help='The resource class that shared processors are counted in.',
    ),
    cfg.StrOpt(
        'hypervisor_type',
        default='',
        help='Type of the hypervisor, e.g. QEMU. Empty: QEMU where /dev/kvm is there, '
        'else no type is reported.',
    ),
    cfg.StrOpt(
        'guest_start_command',
        default='',
        help='Command that starts a guest and returns when it runs. It gets GANTT_CLAIM, '
        'GANTT_CONSUMER, GANTT_RESOURCES (JSON), GANTT_LAYOUT (JSON) and '
        'GANTT_GUEST (JSON) in its environment; split into words, no shell. '
        'Empty: builds are refused and the host reports itself disabled.',
    ),
    cfg.StrOpt(
        'guest_stop_command',
        default='',
        help='Command that stops a guest, with the same environment. It must end with 0 '
        'when the guest is gone already.',
    ),
    cfg.StrOpt(
        'guest_list_command',
        default='',
        help='Command that lists every guest that exists here, one JSON object with '
        '"consumer", "claim" and "resources" a line. What it lists is what runs, '
        'whatever the journal remembers. Empty: the journal is believed. With '
        '--facts-only: "consumer", "cells" and "devices"; empty: the processes of '
        'QEMU are looked at.',
    ),
    cfg.ListOpt(
        'hypervisor_executables',
        default=[
            '/usr/bin/qemu-system-*',
            '/usr/bin/qemu-kvm',
            '/usr/libexec/qemu-kvm',
            '/usr/bin/kvm',
        ],
        help='With --facts-only and without guest_list_command: executables whose '
        'processes are guests, as patterns of paths. An agent that is neither root '
        'nor has CAP_SYS_PTRACE cannot see the executable of another user; the '
        'owner and the name of the command then decide.',
    ),
    cfg.ListOpt(
        'hypervisor_users',
        default=['libvirt-qemu', 'qemu', 'root'],
        help='Users, by name or number, that these executables run as: "user" in '
        'qemu.conf of libvirt. Processes of others are no guests, whatever they '
        'are called.',
    ),
    FloatOpt(
        'guest_command_seconds',
        default=300.0,
        min=1.0,
        max=86_400.0,
        help='Seconds that a command for a guest may take before it is killed and '
        'counts as failed.',
    ),
    cfg.StrOpt('farm_prefix', default='fake', help='With --fake: how the names of hosts begin.'),
    FloatOpt(
        'farm_start_seconds',
        default=0.0,
        min=0.0,
        max=3600.0,
        help='With --fake: seconds that a guest takes to start.',
    ),
    FloatOpt(
        'farm_start_failures',
        default=0.0,
        min=0.0,
        max=1.0,
        help='With --fake: share of the guests that fail to start.',
    ),
    cfg.IntOpt(
        'farm_threads',
        default=8,
        min=1,
        max=64,
        help='With --fake: threads for all hosts together.',
    ),
]


def register_cli_opts(conf: Any) -> None:
    """Register the command line of gantt-compute."""
    conf.register_cli_opts(CLI_OPTS)
