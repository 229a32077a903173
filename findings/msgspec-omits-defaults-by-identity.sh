#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# msgspec 0.22.0: a Struct with omit_defaults=True leaves a field out of its encoding where the value
# is the very object of the default, not where it equals it.  Two messages that compare equal have
# different bytes, where one of them was decoded from a text that states a default: a text, a number
# with a fraction, a large whole number, a tuple or a struct within.  Empty lists and dicts, None,
# booleans, small whole numbers and the empty text are left out either way.  Who makes a digest of
# the bytes, to tell whether a repeated request is the same, takes equal requests for different ones.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'msgspec==0.22.0'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import msgspec


class Image(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ''


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str = 'INSTANCE'
    ratio: float = 1.5
    seconds: int = 30_000
    image: Image = Image()
    zone: str = ''
    tries: int = 3
    hosts: list[str] = []


silent = msgspec.json.decode(b'{}', type=Request)
kept = []
for field in msgspec.structs.fields(Request):
    stated = msgspec.json.encode({field.name: msgspec.to_builtins(field.default)
                                  if field.default is not msgspec.NODEFAULT else []})
    request = msgspec.json.decode(stated, type=Request)
    assert request == silent
    encoded = msgspec.json.encode(request)
    print(f'{stated.decode()} is decoded, and encoded as {encoded.decode()}')
    if encoded != b'{}':
        kept.append(field.name)
assert kept == ['kind', 'ratio', 'seconds', 'image'], 'this has changed'
PYTHON
