# SPDX-License-Identifier: Apache-2.0
"""The zones directly below: whether each answers, lets this one in, and has comparable scores."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gantt import exceptions
from gantt.cmd import wiring
from gantt.cmd.doctor.finding import Finding, Severity, found
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.zones.messages import ZoneRecord
from gantt.core.zones.score import ScoreSet
from gantt.db import stores
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports.zones import ToLookAt
from gantt.scheduler.zones.conditions import ZoneCondition, ZoneConditions, ZoneState

#: State -> how bad it is, and what to do.
_STATES = {
    ZoneState.SILENT: (
        Severity.WARNING,
        'Start it, correct its address with "gantt zone set NAME --url", or "gantt zone disable"',
    ),
    ZoneState.REFUSES: (
        Severity.ERROR,
        'Let this zone ask there ("gantt parent list" in that zone), or correct the credential',
    ),
    ZoneState.UNUSABLE: (Severity.ERROR, 'Correct [zones] credentials_file'),
    ZoneState.OTHER_SCORES: (
        Severity.WARNING,
        'Give both the same weighers, or "gantt zone set NAME --accept-scores" with a scale',
    ),
    ZoneState.ANSWERS: (Severity.WARNING, 'Set the clocks of both by NTP'),
}


def zones_say(conf: Any) -> list[Finding]:
    """Return a finding for each child zone that is enabled and not well."""
    try:
        connected = stores.connect(conf)
    except exceptions.GanttError:
        return []  # what is wrong with the database is said by others
    calls = wiring.zone_calls(conf, lambda: connected.zones.zone_identity().uuid)
    try:
        children = [zone for zone in connected.zones.child_zones() if zone.enabled]
        if not children:
            return []
        scores = ScoreSet.of(pipeline_from_conf(conf).comparable()).digest
        conditions = ZoneConditions(
            calls, lambda: children, lambda: scores, SystemClock(), time.time
        )
        noted = connected.zone_figures.claims_to_look_at()
        return [*_findings(conditions.find_out()), *_to_look_at(children, noted)]
    except exceptions.GanttError:
        return []
    finally:
        calls.close()
        connected.database.close()


def _to_look_at(children: Sequence[ZoneRecord], noted: Mapping[str, ToLookAt]) -> Iterator[Finding]:
    """Yield findings on claims that only one side has after the other's database was restored."""
    for zone in children:
        lost, back, doubled = noted.get(zone.uuid, (0, 0, 0))
        if lost:
            yield found(
                Severity.ERROR,
                f'zone {zone.name}',
                zone.url,
                f'{lost} claims of here are lost: it does not know them any more, and a guest may '
                'run there',
                '"gantt claim list --state lost" lists them; "gantt request cancel ID" ends one '
                'here, once its guest is known not to run',
            )
        if doubled:
            yield found(
                Severity.ERROR,
                f'zone {zone.name}',
                zone.url,
                f'{doubled} claims there are of consumers that have one here as well, as of guests '
                'that hosts of here were found running',
                '"gantt-manage audit" lists the consumers under "doubled"; look where each guest '
                'runs, and end the other claim: "gantt claim release ID" here, "gantt request '
                'cancel ID" for the one below',
            )
        if back:
            yield found(
                Severity.WARNING,
                f'zone {zone.name}',
                zone.url,
                f'{back} claims were forgotten here and read back, and no caller is known that has '
                'them',
                'After the database is put back run "gantt-manage db incarnation"; look whether '
                'each guest is wanted: "gantt request cancel ID" gives back what is only reserved',
            )


def _findings(conditions: list[ZoneCondition]) -> Iterator[Finding]:
    for condition in conditions:
        if condition.problem:
            severity, instead = _STATES[condition.state]
            yield found(
                severity,
                f'zone {condition.zone.name}',
                condition.zone.url,
                condition.problem,
                instead,
            )
