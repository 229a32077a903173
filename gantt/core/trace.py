# SPDX-License-Identifier: Apache-2.0
"""Trace ids of requests over all zones, as of W3C Trace Context."""

import re
from typing import Annotated

import msgspec

from gantt.core.messages.base import END_PATTERN, derived_id

#: 32 hexadecimal digits that are not all zero.
_TRACE = r'(?!0{32})[0-9a-f]{32}'
TraceId = Annotated[str, msgspec.Meta(max_length=32, pattern=rf'^{_TRACE}{END_PATTERN}')]
#: Version, trace id, parent id, flags; a version after 00 may have more behind them.
_TRACEPARENT = re.compile(
    rf'(?!ff)([0-9a-f]{{2}})-({_TRACE})-(?!0{{16}})[0-9a-f]{{16}}-[0-9a-f]{{2}}(-.*)?', re.ASCII
)


def trace_in(traceparent: str | None) -> str:
    """Return the trace id of a ``traceparent`` header; '' if it has no valid one."""
    matched = _TRACEPARENT.fullmatch((traceparent or '').strip())
    if matched is None or (matched[1] == '00' and matched[3]):
        return ''
    return matched[2]


def trace_of(given: str | None, request_id: str) -> str:
    """Return the trace id of a request: the caller's, else one derived from the request id.

    :param given: trace id of the caller; None or '': none
    """
    return given or derived_id('trace', request_id).replace('-', '')


def traceparent(trace: str, call: str) -> str:
    """Return the ``traceparent`` header of a call.

    :param call: the id of the call itself, 16 hexadecimal digits, not all zero
    """
    return f'00-{trace}-{call}-00'
