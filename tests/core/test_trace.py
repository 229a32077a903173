# SPDX-License-Identifier: Apache-2.0
"""Trace ids: read from a header, and created where there is no valid one."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.trace import trace_in, traceparent
from tests.world import a_request

TRACE, CALL = '4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7'


@pytest.mark.parametrize(
    'header',
    [f'00-{TRACE}-{CALL}-01', f' 00-{TRACE}-{CALL}-00 ', f'cc-{TRACE}-{CALL}-01-what-comes-later'],
)
def test_a_valid_header_has_the_trace_of_its_caller(header):
    assert trace_in(header) == TRACE


@pytest.mark.parametrize(
    'header',
    [
        None,
        '',
        TRACE,
        f'ff-{TRACE}-{CALL}-01',
        f'00-{"0" * 32}-{CALL}-01',
        f'00-{TRACE}-{"0" * 16}-01',
        f'00-{TRACE.upper()}-{CALL}-01',
        f'00-{TRACE}-{CALL}-01-more',
        f'00-{TRACE}-{CALL}',
        f'00-{TRACE}-{CALL}-01, 00-{TRACE}-{CALL}-01',
        f'00-{TRACE}-{CALL}-01\nmore',
        'x' * 100_000,
    ],
)
def test_what_is_not_valid_is_as_good_as_none(header):
    assert trace_in(header) == ''


def test_a_request_has_the_trace_of_its_caller_or_one_that_a_repeat_has_as_well():
    request = a_request()
    trace = request.traced().trace
    assert trace_in(traceparent(trace, CALL)) == trace
    assert request.traced().trace == trace != a_request().traced().trace
    assert request.traced(TRACE).trace == TRACE
    assert request.traced(TRACE).traced(trace).trace == TRACE
    assert request.traced(TRACE).fingerprint == request.fingerprint


@pytest.mark.parametrize('trace', ['', '0' * 32, TRACE.upper(), TRACE + '0', 7])
def test_a_wrong_one_in_a_message_is_refused_by_name(trace):
    body = {**msgspec.to_builtins(a_request()), 'trace': trace}
    with pytest.raises(exceptions.InvalidMessage, match='trace'):
        base.decode(body, SelectDestinations, inside='request')
