# SPDX-License-Identifier: Apache-2.0
"""``gantt usage``: usage of projects by their live claims."""

from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn


def _others(row: dict[str, Any]) -> str:
    rest = {name: amount for name, amount in row['amounts'].items() if name not in _SHOWN}
    return ', '.join(f'{amount} {name}' for name, amount in sorted(rest.items())) or '-'


def _amount(name: str) -> Any:
    def show(row: dict[str, Any]) -> str:
        amount = row['amounts'].get(name, 0)
        return str(amount) if name == 'VCPU' else text.amount(name, amount)

    return show


_SHOWN = ('VCPU', 'MEMORY_MB', 'DISK_GB')
COLUMNS = (
    TextColumn('PROJECT', lambda r: r['project_id'] or '(none)', least=12),
    TextColumn('GUESTS', lambda r: str(r['consumers']), right=True),
    TextColumn('CLAIMS', lambda r: str(r['claims']), right=True),
    TextColumn('IN FLIGHT', lambda r: str(r['claims_in_flight']), right=True),
    *(TextColumn(text.SHORT.get(name, name), _amount(name), right=True) for name in _SHOWN),
    TextColumn('OTHERS', _others, least=8),
)


class UsageList(base.Lister):
    """List what the live claims of each project take; a member sees its own project."""

    path = '/v1/usages'
    member = 'usages'
    nothing = 'there is no live claim'
    columns = COLUMNS


class UsageShow(base.Show):
    """Show what the live claims of one project take."""

    takes = (base.arg('project', help='its id'),)

    path = '/v1/usages/{project}'

    def lines(self, found: dict[str, Any]) -> list[str]:
        return [
            f'project {found["project_id"]}: {text.count(found["consumers"], "guest")} with '
            f'{text.count(found["claims"], "live claim")}, {found["claims_in_flight"]} of them not '
            'confirmed yet',
            *(
                f'  {name:<20} {text.amount(name, amount)}'
                for name, amount in sorted(found['amounts'].items())
            ),
        ]
