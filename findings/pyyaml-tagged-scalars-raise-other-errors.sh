#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PyYAML 6.0.3: a file that is wrong makes safe_load() raise YAMLError, with a line and a column.  A
# scalar with a tag of YAML's own that its text does not fit raises whatever the constructor met
# instead: KeyError for !!bool, AttributeError for !!timestamp, IndexError for an empty !!int or
# !!float, ValueError for other texts, and for a plain date that no calendar has.  A reader that
# handles YAMLError alone ends in a traceback there.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'pyyaml==6.0.3'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import yaml


def error_of(text):
    try:
        return yaml.safe_load(text)
    except Exception as e:
        assert not isinstance(e, yaml.YAMLError)
        return type(e).__name__


seen = {
    text: error_of(text)
    for text in ('!!bool maybe', '!!timestamp soon', '!!int ""', '!!float ""', '!!int ten', '2026-13-45')
}
assert seen == {
    '!!bool maybe': 'KeyError',
    '!!timestamp soon': 'AttributeError',
    '!!int ""': 'IndexError',
    '!!float ""': 'IndexError',
    '!!int ten': 'ValueError',
    '2026-13-45': 'ValueError',
}, seen
print(*(f'{text}: {name}' for text, name in seen.items()), sep='\n')
PYTHON
