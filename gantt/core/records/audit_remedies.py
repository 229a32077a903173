# SPDX-License-Identifier: Apache-2.0
"""Remedies for the findings of the audit, one for each kind of line.

``doc/source/admin/operate.rst`` has a row for each of these.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_RELEASE_COMMAND = 'gantt claim release ID --reason TEXT'
_REPORT_DEFECT = 'no command corrects it: send the file of "gantt-manage bundle"'
#: Matches lines about a member of a group with more than one running guest.
TWO_GUESTS_LINE = re.compile(r"^group .*: member '.*' has \d+ guests: ")


class Remedy(NamedTuple):
    """The remedy of one kind of line.

    :ivar kind: key of the audit
    :ivar about: short description of the problem
    :ivar pattern: matches lines of this kind only
    :ivar what: the action to take
    """

    kind: str
    about: str
    pattern: re.Pattern[str]
    what: str


def _remedy(kind: str, about: str, pattern: str, what: str) -> Remedy:
    return Remedy(kind, about, re.compile(pattern), what)


REMEDIES = (
    _remedy(
        'over_commit',
        'more than its capacity',
        r' are more than its capacity ',
        'move something away, or end it ("gantt claim list --host NAME"); the next report of a '
        'host flags it until then. Gantt never does that: send "gantt-manage bundle"',
    ),
    _remedy(
        'over_commit',
        'a counter that differs from its claims',
        r' used is -?\d+, its live claims take -?\d+$',
        _REPORT_DEFECT,
    ),
    _remedy(
        'over_commit',
        'a flag without a reason',
        r': flagged as over-full, and has room ',
        'wait: the next report of the host, or the next write of the provider, ends it',
    ),
    _remedy(
        'over_commit',
        'one thing inside of a host twice',
        r': processors .* are held by claims |: of (pages|devices|memory) .* claims have ',
        'move one of the guests, or end its claim: "gantt claim list --host NAME"',
    ),
    _remedy(
        'over_commit',
        'a layout that cannot be read',
        r': the layout of claim .* cannot be read',
        f'move the guest; or upgrade, where a newer release wrote it; or {_RELEASE_COMMAND}',
    ),
    _remedy(
        'over_commit',
        'a record of a host that cannot be read',
        r': its record cannot be read: ',
        'wait for the next full report of the host, which is asked for with its next one; or '
        'upgrade, where a newer release wrote it',
    ),
    _remedy(
        'lost',
        'a provider that is gone',
        r': its host .* is not there$|: takes from provider \d+, which is not there$',
        f'{_RELEASE_COMMAND}: what it takes elsewhere is given back. What still runs, its host '
        'reports and is adopted',
    ),
    _remedy(
        'lost',
        'a claim that cannot be read',
        r'^claim .*: cannot be read: ',
        'upgrade, where a newer release wrote it; else repair its row',
    ),
    _remedy('lost', 'a claim of nothing', r': nothing is allocated to it$', _RELEASE_COMMAND),
    _remedy(
        'lost',
        'a request without all of its claims',
        r'^request .*: placed with ',
        'gantt request cancel ID ends the others, and whoever sent it may ask anew',
    ),
    _remedy(
        'lost',
        'a guest whose claim goes back to a plan',
        r': \w+, of lifecycle \w+, and goes back to a plan$',
        f'{_REPORT_DEFECT}. Do not end its request meanwhile',
    ),
    _remedy(
        'lost',
        'a live claim that does not count',
        r': \w+, and not counted as live$',
        f'{_REPORT_DEFECT}. Its host may be given away once more: "gantt host disable NAME" '
        'meanwhile',
    ),
    _remedy(
        'lost',
        'an inheritance that is not there',
        r': inherits \d+ |: is not there, and is to inherit ',
        'say all that the consumer is to have: gantt allocation set CONSUMER '
        'PROVIDER:CLASS=AMOUNT ...; of a claim that is not there nothing comes',
    ),
    _remedy(
        'lost',
        'a claim that a zone below does not know',
        r': \w+ as it is known here, zone .* does not know it$',
        'look whether the database of that zone was put back: what still runs there, its hosts '
        'report and is adopted, so it holds its consumer until then. gantt request cancel ID ends '
        'it here, once its guest is known not to run',
    ),
    _remedy(
        'lost',
        'a claim that has ended in a zone below',
        r': \w+ as it is known here, \w+ in zone ',
        'look whether a scheduler of this zone runs, which follows the zones below ("gantt service '
        'list"), and whether they answer ("gantt zone tree")',
    ),
    _remedy(
        'leaked',
        'a claim that only a zone below knows',
        r': \w+ in zone .*, and not known here$',
        f'in that zone, where no guest runs: {_RELEASE_COMMAND}; a guest that runs goes on there',
    ),
    _remedy(
        'leaked',
        'a lease that ran out',
        r': reserved, \d+ s past its lease$',
        'look whether a scheduler runs, which sweeps ("gantt service list"); or '
        f'{_RELEASE_COMMAND}',
    ),
    _remedy('leaked', 'a claim without an end', r': nothing ends it: ', _RELEASE_COMMAND),
    _remedy(
        'leaked',
        'a place without a plan',
        r': a place (of group .*, without a plan|that is held \d+ s longer than the plan of )',
        f'where no create has it: {_RELEASE_COMMAND}; else it ends with that create',
    ),
    _remedy(
        'leaked',
        'an ended claim that counts',
        r': \w+, and counted as live$',
        f'{_REPORT_DEFECT}. What it takes stays taken',
    ),
    _remedy(
        'leaked',
        'a claim that blocks others',
        r': not reserved any more, and blocks others$',
        f'{_RELEASE_COMMAND} where it is live; else "gantt-manage purge", once it is old enough',
    ),
    _remedy(
        'doubled',
        'two live claims where one may be',
        r': \d+ (live claims for |open destinations of a move$)',
        f'gantt claim list --consumer UUID; where no guest runs: {_RELEASE_COMMAND}',
    ),
    _remedy(
        'doubled',
        'a member of a group with two guests',
        TWO_GUESTS_LINE.pattern,
        'delete all of them but one, which is the member then; or, with "gantt group heal GROUP '
        '--replace MEMBER", none of them is, and it is created anew. Of one that runs no more: '
        f'{_RELEASE_COMMAND}',
    ),
    _remedy(
        'doubled',
        'a consumer that lives in two zones',
        r': has live claims for \w+ (here|in zone) ',
        f'look where the guest runs; of the other claim, in its zone: {_RELEASE_COMMAND}. Of one '
        'below that no host there has confirmed, here: gantt request cancel ID',
    ),
    _remedy(
        'doubled',
        'a host that is registered in two zones',
        r'^host .*: is registered (here and in zone|in zones) ',
        'in the zone that it is to leave: gantt host disable NAME, and once nothing of its guests '
        'is claimed there, gantt-manage host decommission NAME. Where only the name is the same '
        'of two machines: gantt-manage host rename OLD NEW. A host of other zones is named there '
        'by gantt-manage host named SALT DIGEST, with the text behind "under" and before it',
    ),
    _remedy(
        'providers',
        'a parent that is gone',
        r': its parent, row \d+, is gone',
        'gantt provider set UUID --no-parent, or --parent PROVIDER: all below it follow',
    ),
    _remedy(
        'providers',
        'a provider below itself',
        r': is below itself, by ',
        'gantt provider set UUID --no-parent, or --parent PROVIDER: the others come below it',
    ),
    _remedy(
        'providers',
        'a wrong root',
        r': its root is .*, its row says ',
        'gantt provider set UUID --parent with the parent that it has, of the topmost of them; '
        '--no-parent of a root',
    ),
    _remedy(
        'providers',
        'a wrong kind',
        r': is of kind (pool|nested), has no record |: is a host, and below another provider$',
        'gantt provider set UUID --parent with the parent that it has; --no-parent of a root or '
        'a host',
    ),
    _remedy('providers', 'a record that contradicts the kind', r': is of kind ', _REPORT_DEFECT),
    _remedy(
        'providers',
        'capacities that contradict the inventories',
        r': its row says -?\d+ inventories |: its (row|inventory) says capacity -?\d+, ',
        'gantt provider set UUID --inventory CLASS=TOTAL writes all of them anew, where requests '
        'say what it has; of a host that reports it, its next report with other inventories',
    ),
)


def remedy_of(kind: str, line: str) -> Remedy | None:
    """Return the remedy of a line; None if its kind is not known."""
    of_kind = (remedy for remedy in REMEDIES if remedy.kind == kind)
    return next((remedy for remedy in of_kind if remedy.pattern.search(line)), None)


def remedies_of(lines_by_kind: Mapping[str, Sequence[str]]) -> list[Remedy]:
    """Return the remedies of an audit's findings, each once, in the order of the table."""
    needed = {remedy_of(kind, line) for kind, lines in lines_by_kind.items() for line in lines}
    return [remedy for remedy in REMEDIES if remedy in needed]
