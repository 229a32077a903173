# SPDX-License-Identifier: Apache-2.0
"""Check of the child zones: each answers, lets this one in, has comparable scores."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from gantt import exceptions, stores
from gantt.cmd import wiring
from gantt.cmd.checks.results import Finding, error, warning
from gantt.conf.pipeline import pipeline_from_conf
from gantt.scheduler.clock import SystemClock
from gantt.zones.model.choice import ScoreSet
from gantt.zones.service.conditions import ZoneConditions, ZoneState

#: State -> how bad it is, and what to do.
_STATE_FINDINGS = {
    ZoneState.UNRESPONSIVE: (
        warning,
        'Start it, correct its address with "gantt zone set NAME --url", or "gantt zone disable"',
    ),
    ZoneState.FORBIDDEN: (
        error,
        'Let this zone ask there ("gantt parent list" in that zone), or correct the credential',
    ),
    ZoneState.UNUSABLE: (error, 'Correct [zones] credentials_file'),
    ZoneState.SCORE_MISMATCH: (
        warning,
        'Give both the same weighers, or "gantt zone set NAME --accept-scores" with a scale',
    ),
    ZoneState.RESPONDING: (warning, 'Set the clocks of both by NTP'),
}

#: Of the counts in ToLookAt, claims that only one side has after a database was restored.
_CLAIM_FINDINGS = (
    (
        error,
        'claims of here are lost: it does not know them any more, and a guest may run there',
        '"gantt claim list --state lost" lists them; "gantt request cancel ID" ends one here, '
        'once its guest is known not to run',
    ),
    (
        warning,
        'claims were forgotten here and restored, and no caller is known that has them',
        'After the database is put back run "gantt-manage db incarnation"; look whether each '
        'guest is wanted: "gantt request cancel ID" gives back what is only reserved',
    ),
    (
        error,
        'claims there are of consumers that have one here as well, as of guests that hosts of '
        'here were found running',
        '"gantt-manage audit" lists the consumers under "doubled"; look where each guest runs, '
        'and end the other claim: "gantt claim release ID" here, "gantt request cancel ID" for '
        'the one below',
    ),
)


def check_zones(conf: Any) -> Iterator[Finding]:
    """Check each child zone that is enabled."""
    # What is wrong with the database is reported by the checks of it.
    with contextlib.suppress(exceptions.GanttError), contextlib.ExitStack() as opened:
        connected = stores.connect(conf)
        opened.callback(connected.database.close)
        calls = wiring.zone_calls(conf, lambda: connected.zones.zone_identity().uuid)
        opened.callback(calls.close)
        children = [zone for zone in connected.zones.child_zones() if zone.enabled]
        if not children:
            return
        scores = ScoreSet.of(pipeline_from_conf(conf).comparable()).digest
        conditions = ZoneConditions(
            calls, lambda: children, lambda: scores, SystemClock(), time.time
        )
        noted = connected.zone_figures.claims_to_check()
        for at in conditions.query_all():
            if at.problem:
                say, instead = _STATE_FINDINGS[at.state]
                yield say(f'zone {at.zone.name}', at.zone.url, at.problem, instead)
        for zone in children:
            counts = noted.get(zone.uuid, (0, 0, 0))
            for count, (say, why, instead) in zip(counts, _CLAIM_FINDINGS, strict=True):
                if count:
                    yield say(f'zone {zone.name}', zone.url, f'{count} {why}', instead)
