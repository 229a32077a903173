#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# numpy 2.4.6: two arrays that numpy.array_equal calls equal have sums along an axis that differ in
# the last bits, where one is stored by rows and the other by columns.  Numbers that lie side by side
# in memory are added in pairs of blocks, others one after the other.  So a total that is compared
# bit for bit, as scores are where a decision is made again, changes when an array is transposed,
# copied with another order, or made from columns in place of rows.  numpy.cumsum, whose last entry
# is a sum as well, adds one after the other for both.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'numpy==2.4.6'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np

by_rows = np.random.default_rng(0).random((1000, 64))
by_columns = np.asfortranarray(by_rows)
assert np.array_equal(by_rows, by_columns)
differ = {
    'sum': int((by_rows.sum(axis=0) != by_columns.sum(axis=0)).sum()),
    'cumsum': int((by_rows.cumsum(axis=0)[-1] != by_columns.cumsum(axis=0)[-1]).sum()),
}
print(f'columns of 64 whose total differs by layout: {differ}')
assert differ['sum'] > 32, 'sums no longer depend on the layout'
assert differ['cumsum'] == 0
PYTHON
