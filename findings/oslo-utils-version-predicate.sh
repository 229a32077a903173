#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oslo.utils 10.2.0 with packaging 26.3: the predicates of ``versionutils.VersionPredicate``, by which
# Nova reads ``img_hv_requested_version``, look like the specifiers of PEP 440 and are not.
# They compare two versions as they are ordered, without the rules that PEP 440 has for
# local versions, pre-releases and post-releases:
#
#   predicate   version        VersionPredicate   PEP 440 (packaging.specifiers)
#   ==6.2.0     6.2.0+local    no                 yes: a local part is not compared
#   >8.0.0      8.0.0.post1    yes                no: not a post-release of the same version
#   <8.0.0      8.0.0rc1       yes                no: not a pre-release of the same version
#
# Who checks such a predicate beside Nova with a parser of specifiers disagrees with it.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'oslo.utils==10.2.0' 'packaging==26.3'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from oslo_utils.versionutils import VersionPredicate
from packaging.specifiers import SpecifierSet

SEEN = (
    ('==6.2.0', '6.2.0+local', False, True),
    ('>8.0.0', '8.0.0.post1', True, False),
    ('<8.0.0', '8.0.0rc1', True, False),
)
for text, version, by_oslo, by_pep in SEEN:
    now = (
        VersionPredicate(text).satisfied_by(version),
        SpecifierSet(text).contains(version, prereleases=True),
    )
    print(f'{text:8} {version:12} VersionPredicate={now[0]} PEP 440={now[1]}')
    assert now == (by_oslo, by_pep), 'this has changed'
PYTHON
