#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# msgspec 0.22.0: convert() raises ValidationError where a value is of another type than expected.  A
# text with half of a surrogate pair in the place of another type raises UnicodeEncodeError instead,
# and names no field; in the place of a text it is taken as it is.  The json module of Python reads
# such texts from valid JSON, so that whoever decodes with it and converts afterwards, as services do
# whose messages come as builtins, has to handle a second error.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'msgspec==0.22.0'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json

import msgspec


class Request(msgspec.Struct):
    name: str = ''
    count: int = 0
    hosts: list[str] = []


half = json.loads(r'"\ud800"')


def outcome(body):
    try:
        return msgspec.convert(body, Request)
    except Exception as e:
        return type(e).__name__


assert outcome({'count': 'x'}) == 'ValidationError'
assert outcome({'count': half}) == 'UnicodeEncodeError'
assert outcome({'hosts': half}) == 'UnicodeEncodeError'
assert outcome({'name': half}).name == half
print('half of a surrogate pair where a number is expected: UnicodeEncodeError, not ValidationError')
PYTHON
