# SPDX-License-Identifier: Apache-2.0
"""What operators read, as files to review: ``golden/``.

``GANTT_GOLDEN=write pytest tests/cli/test_golden.py`` writes them anew; read
the difference before committing it.
"""

import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Gantt, Run
from tests.http.site import Site, fixed

GOLDEN = Path(__file__).parent / 'golden'
_UUID = re.compile(r'\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b')
_SHORT = re.compile(r'\b[0-9a-f]{8}\b(?!-)')
#: Of this version, this configuration or this run.
_VOLATILE = (
    (re.compile(r'(?<=Version   )\S+'), 'VERSION'),
    (re.compile(r'(?<=configuration )[0-9a-f]+'), 'DIGEST'),
    (re.compile(r'(?<=by )worker-1\S*(?=,)'), 'WORKER'),
    (re.compile(r'(?<=seed )\d+'), 'SEED'),
    (re.compile(r'(?<=table )\d+(?=,)'), 'SEQ'),
    (re.compile(r'[0-9.]+(?= s old)'), 'AGE'),
    (re.compile(r'(?<=, by (?:search|solver) in )[0-9.]+(?= s)'), 'SECONDS'),
    (re.compile(r'(?<=, by sequential in )[0-9.]+(?= s)'), 'SECONDS'),
)


def stable(text: str) -> str:
    """Random ids as numbered names; equal ones stay equal."""
    names: dict[str, str] = {}
    for match in _UUID.findall(text):
        names.setdefault(match[:8], f'id-{len(names) + 1:05}')
    for match in _SHORT.findall(text):
        names.setdefault(match, f'id-{len(names) + 1:05}')
    text = _UUID.sub(lambda m: f'{names[m[0][:8]]}-uuid', text)
    text = _SHORT.sub(lambda m: names[m[0]], text)
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text


def _busy(site: Site) -> None:
    """Some of everything: confirmed, reserved, adopted, refused, disabled, over-full."""
    first = site.place(1, 3)
    for places in first.selections[:2]:
        chosen = places[0]
        assert chosen.claim_id is not None
        site.hosts[chosen.host].confirm(chosen.claim_id)
        site.run(chosen.host, chosen.consumer, chosen.claim_id, VCPU=2, MEMORY_MB=4096)
    site.run('cmp-4', fixed(77), None, VCPU=3, MEMORY_MB=2048)
    for number in (50, 51):
        with pytest.raises(Exception, match='hosts fit'):
            site.place(number, VCPU=400)
    with pytest.raises(Exception, match='hosts fit'):
        site.place(52, MEMORY_MB=1 << 30, VCPU=1)
    site.world.store.hosts.disable_host('cmp-3', 'fan swap, T-1042', 'ann')
    site.world.turn(1.0)


CASES = {
    'status': ('status',),
    'host-list': ('host', 'list'),
    'host-show': ('host', 'show', 'cmp-4'),
    'explain-placed': ('explain', fixed(1)),
    'explain-refused': ('explain', fixed(50), '--host', 'cmp-1'),
    'decision-list': ('decision', 'list'),
    'claim-list': ('claim', 'list', '--request', fixed(1)),
    'request-show': ('request', 'show', fixed(1)),
    'capacity': ('capacity', '--resource', 'VCPU=4', '--resource', 'MEMORY_MB=2048'),
    'roll-up': ('roll-up', '--shape', 'VCPU:4,MEMORY_MB:2048', '--shape', 'DISK_GB:10'),
    'capacity-none': ('capacity', '--resource', 'VCPU=400'),
    'select-dry': (
        *('select', '--dry-run', '--resource', 'VCPU=2', '--resource', 'MEMORY_MB=1024'),
        *('--count', '3', '--request-id', fixed(60)),
        *('--consumer', fixed(61), '--consumer', fixed(62), '--consumer', fixed(63)),
    ),
    'select-refused': (
        *('select', '--resource', 'VCPU=400', '--request-id', fixed(64)),
        *('--consumer', fixed(65)),
    ),
}


@pytest.mark.parametrize('name', sorted(CASES))
def test_it_reads_as_reviewed(site: Site, gantt: Gantt, name: str) -> None:
    _busy(site)
    printed = gantt(*CASES[name])
    compare(name, printed)


def compare(name: str, printed: Run) -> None:
    """What a command printed is what was reviewed."""
    text = stable(
        printed.out + (f'--- stderr, exit {printed.code}\n{printed.err}' if printed.code else '')
    )
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    file = GOLDEN / f'{name}.txt'
    if os.environ.get('GANTT_GOLDEN') == 'write':
        file.write_text(text)
    assert text == file.read_text(), (
        f'where {name} is meant to read so: GANTT_GOLDEN=write .venv/bin/pytest '
        f'tests/cli/test_golden.py writes golden/{name}.txt anew; read the difference'
    )
