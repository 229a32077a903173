# SPDX-License-Identifier: Apache-2.0
"""Only a report that is right in every respect is taken straight from its bytes."""

import json

import pytest

from gantt.core.messages import base
from gantt.core.messages.report import HostReport, ReportedMetric
from gantt.rpc import wire
from gantt.rpc.api import stats

REPORT = HostReport(
    name='h',
    epoch=1,
    sequence=2,
    full=False,
    base=1,
    running=[],
    pending=[],
    metrics={'load': ReportedMetric(value=1.5)},
)
BODY = {
    'method': 'update_resource_stats',
    'args': {'name': 'h', 'stats': base.to_builtins(REPORT)},
    'version': wire.VERSION,
    '_unique_id': 'u',
    '_context_request_id': 'r',
    '_timeout': None,
}


def on_the_wire(text: str, version: str = '2.0') -> bytes:
    return json.dumps({'oslo.version': version, 'oslo.message': text}).encode()


def test_a_cast_report_is_taken():
    assert stats.cast_report(on_the_wire(json.dumps(BODY))).report == REPORT


@pytest.mark.parametrize(
    'change',
    [
        {'_msg_id': 'asks'},
        {'_reply_q': 'reply'},
        {'_reply_q': 7},
        {'method': 'register_host'},
        {'namespace': 'n'},
        {'version': f'{wire.MAJOR}.{wire.MINOR + 1}'},
        {'version': '2.0'},
        {'args': {'name': 'another', 'stats': base.to_builtins(REPORT)}},
        {'args': {'name': 'h', 'stats': base.to_builtins(REPORT), 'more': 1}},
        {'args': {'name': 'h', 'stats': base.to_builtins(REPORT) | {'colour': 'red'}}},
        {'args': {'name': 'h', 'stats': {'vcpus': 4, 'memory_mb': 1024, 'local_gb': 10}}},
        {'args': {'name': 'h', 'stats': None}},
        {'args': []},
    ],
)
def test_anything_else_is_left_to_the_checks(change):
    assert stats.cast_report(on_the_wire(json.dumps(BODY | change))) is None


@pytest.mark.parametrize(
    ('old', 'new'),
    [('1.5', 'NaN'), ('1.5', 'Infinity'), ('1.5', '1e999'), ('"h"', '"\\ud800"'), ('}', '')],
)
def test_what_is_no_json_for_us_is_left_to_the_checks(old, new):
    assert stats.cast_report(on_the_wire(json.dumps(BODY).replace(old, new))) is None


@pytest.mark.parametrize('body', [b'', b'\xff', b'[]', b'[' * 10_000, b'{"oslo.version": "2.0"}'])
def test_a_body_without_an_envelope_is_left_to_the_library(body):
    assert stats.cast_report(body) is None


def test_another_envelope_is_left_to_the_library():
    assert stats.cast_report(on_the_wire(json.dumps(BODY), version='3.0')) is None
