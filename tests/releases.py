# SPDX-License-Identifier: Apache-2.0
"""Commits that stand for releases before: their processes work beside those of this tree."""

#: Commit -> what it stands for.  ``.ci/run`` reads the hashes here, one to a line.
BEFORE = {
    '7bf973765fbfffd0c05bfd2523fc2f6415e3caa8': 'before hosts sign what they send',
    'a78f285abdeabf3819576182f9dcc6c1be40b450': 'the last with its modules in flat folders',
}
