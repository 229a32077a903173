# SPDX-License-Identifier: Apache-2.0
"""The recommended alerts ask for metrics and labels that exist, and point to a trouble."""

import pathlib
import re

import pytest
import yaml

from gantt.telemetry.metrics import TABLE, MetricKind

PAGES = pathlib.Path(__file__).parents[2] / 'doc' / 'source' / 'admin'
RULES = [
    rule
    for group in yaml.safe_load((PAGES / 'alerts.rules.yml').read_text())['groups']
    for rule in group['rules']
]
METRICS = {metric.name: metric for metric in TABLE}
USE = re.compile(r'\b(gantt_\w+)(?:\{([^}]*)\})?')
BY = re.compile(r'\bby \(([^)]*)\)')
#: What Prometheus makes of a histogram, and the labels that come with it.
PARTS = {'_bucket': {'le'}, '_count': set(), '_sum': set()}


def metric_of(name):
    """The metric that a series belongs to, and labels beside its own."""
    if name in METRICS:
        return METRICS[name], set()
    for part, labels in PARTS.items():
        metric = METRICS.get(name.removesuffix(part))
        if name.endswith(part) and metric is not None and metric.kind is MetricKind.HISTOGRAM:
            return metric, labels
    raise AssertionError(f'there is no metric {name}')


@pytest.mark.parametrize('rule', RULES, ids=[rule['alert'] for rule in RULES])
def test_an_alert_asks_for_what_there_is(rule):
    used = USE.findall(rule['expr'])
    assert used
    for name, matchers in used:
        metric, beside = metric_of(name)
        labels = {*metric.labels, *beside}
        asked = re.findall(r'(\w+)=', matchers)
        asked += [label for group in BY.findall(rule['expr']) for label in group.split(', ')]
        asked += re.findall(r'\$labels\.(\w+)', rule['annotations']['summary'])
        assert set(asked) <= labels, f'{name} has the labels {sorted(labels)}'
    assert rule['labels']['severity'] in ('info', 'warning', 'critical')
    runbook = (PAGES / 'runbook.rst').read_text()
    assert f'.. _runbook-{rule["annotations"]["runbook"]}:' in runbook


def test_what_is_worth_an_alarm_has_one():
    asked = {name for rule in RULES for name, _ in USE.findall(rule['expr'])}
    assert asked >= {'gantt_guests_adopted_total', 'gantt_claims_refused_total', 'gantt_hosts'}
    assert asked >= {'gantt_nova_source_passes_total', 'gantt_nova_source_hosts'}
    assert asked >= {'gantt_signature_failures_total', 'gantt_host_registration_conflicts_total'}
    assert len({rule['alert'] for rule in RULES}) == len(RULES)


def test_hosts_of_nova_that_stay_out_raise_an_alarm_whatever_the_reason():
    (rule,) = [rule for rule in RULES if rule['alert'] == 'GanttNovaHostsNotReported']
    (asked,) = re.findall(r'state=~"([^"]*)"', rule['expr'])
    help_text = METRICS['gantt_nova_source_hosts'].help
    values = re.findall(r'(reported|incomplete|fenced|refused)\b', help_text)
    assert len(values) == 4
    # Those that another source reads, fenced, are said there.
    assert [value for value in values if re.fullmatch(asked, value)] == ['incomplete', 'refused']


def test_a_section_names_the_metric_of_its_alert():
    text = (PAGES / 'runbook.rst').read_text()
    for alert, metric in (
        ('GanttDefect', 'gantt_errors_total'),
        ('GanttReportsOfUnknownHosts', 'gantt_reports_total{outcome="unknown_host"}'),
    ):
        (rule,) = [rule for rule in RULES if rule['alert'] == alert]
        section = text.split(f'.. _runbook-{rule["annotations"]["runbook"]}:')[1]
        assert metric in section.split('.. _runbook-')[0]


def test_the_runbook_has_thirteen_troubles_and_shows_each_by_a_command():
    text = (PAGES / 'runbook.rst').read_text()
    troubles = re.split(r'^\.\. _runbook-', text, flags=re.MULTILINE)[1:]
    assert len(troubles) == 13
    for number, trouble in enumerate(troubles, 1):
        assert re.search(rf'^{number}\. ', trouble, re.MULTILINE)
        parts = re.findall(r'^(Symptoms|Diagnosis|Cause|Remedy)$', trouble, re.MULTILINE)
        assert parts == ['Symptoms', 'Diagnosis', 'Cause', 'Remedy'], trouble[:60]
        assert re.search(r'^ +gantt(-\w+)? \w', trouble, re.MULTILINE)
