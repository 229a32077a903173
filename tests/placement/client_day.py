# SPDX-License-Identifier: Apache-2.0
"""A day of the ``openstack`` command with osc-placement: against Placement, then against Gantt.

``make client-test``: what each command prints is
compared, as JSON without the order of its lists, and what it complains of.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.placement import ours, real

HOST, DISKS, DEVICE, OTHER = (
    f'{n}{n}{n}{n}0000-0000-4000-8000-00000000000{n}' for n in range(1, 5)
)
VM, HEIR, NOBODY = (f'aaaa0000-0000-4000-8000-00000000000{n}' for n in range(3))
RACK = 'bbbb0000-0000-4000-8000-000000000001'
SECONDS = 300

_PROVIDER = 'resource provider'
_ALLOCATION = f'{_PROVIDER} allocation'
_INVENTORY = f'{_PROVIDER} inventory'
_VM_HAS = f'--allocation rp={HOST},VCPU=2 --allocation rp={HOST},MEMORY_MB=512'
_INSTANCE = '--project-id p1 --user-id u1 --consumer-type INSTANCE'
_MIGRATION = '--project-id p1 --user-id u1 --consumer-type MIGRATION'
_HOST_HAS = (
    '--resource VCPU=16 --resource VCPU:allocation_ratio=4.0 '
    '--resource MEMORY_MB=4096 --resource MEMORY_MB:max_unit=1024'
)

#: Version of the interface -> what is typed there.  Whatever prints something prints JSON.
DAY: tuple[tuple[str, str], ...] = (
    (
        '1.0',
        f"""
        {_PROVIDER} create early --uuid {OTHER}
        {_PROVIDER} list
        {_INVENTORY} set {OTHER} --resource VCPU=4
        {_ALLOCATION} set {NOBODY} --allocation rp={OTHER},VCPU=1
        {_ALLOCATION} show {NOBODY}
        {_PROVIDER} usage show {OTHER}
        {_ALLOCATION} delete {NOBODY}
        {_PROVIDER} delete {OTHER}
        """,
    ),
    (
        '1.39',
        f"""
        resource class create CUSTOM_LICENSE
        resource class create WRONG
        resource class set CUSTOM_SEAT
        resource class show CUSTOM_LICENSE
        resource class show CUSTOM_NONE
        resource class list
        trait create CUSTOM_FAST
        trait create CUSTOM_SLOW
        trait show CUSTOM_FAST
        trait show CUSTOM_NONE
        trait list --name in:CUSTOM_FAST,CUSTOM_SLOW,HW_CPU_X86_VMX
        {_PROVIDER} create host --uuid {HOST}
        {_PROVIDER} create disks --uuid {DISKS}
        {_PROVIDER} create device --uuid {DEVICE} --parent-provider {HOST}
        {_PROVIDER} create host
        {_PROVIDER} create lost --uuid {OTHER} --parent-provider {NOBODY}
        {_PROVIDER} list
        {_PROVIDER} list --in-tree {DEVICE}
        {_PROVIDER} show {DEVICE}
        {_PROVIDER} show {NOBODY}
        {_INVENTORY} set {HOST} {_HOST_HAS}
        {_INVENTORY} set {DISKS} --resource DISK_GB=100
        {_INVENTORY} set {DEVICE} --resource VGPU=2 --resource CUSTOM_LICENSE=5
        {_INVENTORY} class set {DEVICE} CUSTOM_LICENSE --total 7 --step_size 2
        {_INVENTORY} class set {HOST} CUSTOM_UNKNOWN --total 7
        {_INVENTORY} set {HOST} --amend --resource VCPU:reserved=2
        {_INVENTORY} list {HOST}
        {_INVENTORY} show {DEVICE} CUSTOM_LICENSE
        {_INVENTORY} show {DEVICE} DISK_GB
        {_PROVIDER} trait set {HOST} --trait CUSTOM_FAST --trait HW_CPU_X86_VMX
        {_PROVIDER} trait set {HOST} --trait CUSTOM_NONE
        {_PROVIDER} trait set {DISKS} --trait MISC_SHARES_VIA_AGGREGATE
        {_PROVIDER} trait list {HOST}
        {_PROVIDER} show {HOST}
        {_PROVIDER} aggregate set {HOST} --aggregate {RACK} --generation 3
        {_PROVIDER} aggregate set {HOST} --aggregate {RACK} --generation 99
        {_PROVIDER} show {DISKS}
        {_PROVIDER} aggregate set {DISKS} --aggregate {RACK} --generation 2
        {_PROVIDER} aggregate list {DISKS}
        {_PROVIDER} list --member-of {RACK}
        {_PROVIDER} list --resource VCPU=4 --required CUSTOM_FAST
        {_PROVIDER} list --required CUSTOM_NONE
        allocation candidate list --resource VCPU=2 --resource MEMORY_MB=512 --resource DISK_GB=10
        allocation candidate list --resource VGPU=1 --required CUSTOM_SLOW
        allocation candidate list --resource VCPU=1 --group 1 --resource VGPU=2 --group-policy none
        {_ALLOCATION} set {VM} {_VM_HAS} --allocation rp={DISKS},DISK_GB=20 {_INSTANCE}
        {_ALLOCATION} show {VM}
        {_ALLOCATION} set {HEIR} --allocation rp={HOST},VCPU=1 {_MIGRATION}
        {_ALLOCATION} set {HEIR} --allocation rp={HOST},MEMORY_MB=1025 {_MIGRATION}
        {_ALLOCATION} set {HEIR} --allocation rp={DEVICE},CUSTOM_LICENSE=3 {_MIGRATION}
        {_ALLOCATION} set {HEIR} --allocation rp={DEVICE},VGPU=3 {_MIGRATION}
        {_ALLOCATION} set {HEIR} --allocation rp={NOBODY},VCPU=3 {_MIGRATION}
        {_ALLOCATION} show {HEIR}
        {_ALLOCATION} unset {VM} --provider {DISKS}
        {_ALLOCATION} show {VM}
        {_ALLOCATION} unset {VM} --resource-class MEMORY_MB
        {_ALLOCATION} show {VM}
        {_PROVIDER} usage show {HOST}
        {_PROVIDER} show {HOST} --allocations
        resource usage show p1
        resource usage show p1 --user-id u1
        resource usage show p2
        {_INVENTORY} delete {HOST} --resource-class VCPU
        {_INVENTORY} class set {HOST} VCPU --total 1
        {_PROVIDER} delete {HOST}
        resource class delete CUSTOM_LICENSE
        trait delete CUSTOM_FAST
        {_PROVIDER} set {DEVICE} --name gpu --parent-provider {DISKS}
        {_PROVIDER} set {DISKS} --name disks --parent-provider {DEVICE}
        {_PROVIDER} show {DEVICE}
        {_ALLOCATION} delete {VM}
        {_ALLOCATION} delete {VM}
        {_ALLOCATION} show {VM}
        {_ALLOCATION} delete {HEIR}
        {_PROVIDER} trait delete {HOST}
        {_INVENTORY} delete {DEVICE}
        {_INVENTORY} list {DEVICE}
        {_PROVIDER} delete {DEVICE}
        {_PROVIDER} delete {DISKS}
        {_PROVIDER} delete {HOST}
        {_PROVIDER} list
        trait delete CUSTOM_FAST
        resource class delete CUSTOM_LICENSE
        resource class delete VCPU
        """,
    ),
)
#: Without an answer, or without a form to choose.
SILENT = ('delete', 'trait create', 'class create', 'class set CUSTOM_SEAT')
_REQUEST = re.compile(r'req-[0-9a-f-]{36}')


def lines_of(typed: str) -> list[str]:
    """Commands of a part of the day."""
    return [line.strip() for line in typed.splitlines() if line.strip()]


def _with_form(line: str) -> str:
    is_silent = any(f' {word}' in f' {line}' for word in SILENT) and 'inventory class' not in line
    return line if is_silent else f'{line} -f json'


def _documents(text: str) -> Iterator[Any]:
    """JSON among what else the command prints."""
    decoder, at = json.JSONDecoder(), 0
    for match in re.finditer(r'^[\[{]', text, re.MULTILINE):
        if match.start() >= at:
            try:
                document, at = decoder.raw_decode(text, match.start())
            except ValueError:
                continue
            yield document


def _unordered(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _unordered(of) for name, of in document.items() if name != '#'}
    if isinstance(document, list):
        return sorted(map(_unordered, document), key=lambda of: json.dumps(of, sort_keys=True))
    # Some lists are printed as one text.
    return ','.join(sorted(document.split(','))) if isinstance(document, str) else document


def walked(client: pathlib.Path, url: str) -> list[str]:
    """What all of the day was answered, a line each.

    :raises subprocess.TimeoutExpired: the client does not end
    """
    lines = []
    for version, typed in DAY:
        access = ['--os-auth-type', 'admin_token', '--os-token', 'admin', '--os-endpoint', url]
        process = subprocess.run(
            [client, *access, '--os-placement-api-version', version],
            input='\n'.join(map(_with_form, lines_of(typed))) + '\n',
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        lines += [
            json.dumps(_unordered(document), sort_keys=True)
            for document in _documents(process.stdout)
        ]
        complaints = _REQUEST.sub('req', process.stderr.replace(url, 'URL')).splitlines()
        lines += [line.strip() for line in complaints if line.strip()]
    return lines


def differences(theirs: Sequence[str], own: Sequence[str]) -> list[str]:
    """Lines that only one of them said, each said so."""
    longest = max(len(theirs), len(own))
    padded = [[*some, *['nothing'] * (longest - len(some))] for some in (theirs, own)]
    return [
        f'Placement: {placements}\nGantt:     {gantts}'
        for placements, gantts in zip(*padded, strict=True)
        if placements != gantts
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where both answered the same."""
    parser = argparse.ArgumentParser(prog='client_day', description=__doc__)
    parser.add_argument('--client', type=pathlib.Path, default='.venv-client/bin/openstack')
    parser.add_argument('--python', type=pathlib.Path, default='.venv-placement/bin/python')
    parser.add_argument('--database', choices=sorted(ours.DATABASES), default='sqlite')
    parser.add_argument('--show', action='store_true', help='all that Gantt answered')
    args = parser.parse_args(arguments)
    with real.servers(args.python, ['legacy']) as urls:
        theirs = walked(args.client, urls['legacy'])
    with ours.servers(args.database, ['legacy']) as urls:
        own = walked(args.client, urls['legacy'])
    differing = differences(theirs, own)
    if args.show:
        print('\n'.join(own))
    commands = sum(len(lines_of(typed)) for _, typed in DAY)
    print('\n'.join(differing))
    print(f'{commands} commands, {len(theirs)} answers, {len(differing)} of them others at Gantt')
    return int(bool(differing) or len(theirs) < commands // 2)


if __name__ == '__main__':
    sys.exit(main())
