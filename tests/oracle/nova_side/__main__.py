# SPDX-License-Identifier: Apache-2.0
"""Nova's own filters and weighers as an oracle: one JSON question per line in, one answer out.

Started as a directory with the Python of the environment that has Nova.  A
question is ``{"cloud": ..., "requests": [...]}``; see ``tests/oracle/cases.py``.
The answer to the empty question names the version and what can be asked.
"""

import json
import logging
import sys
import traceback
import warnings

warnings.simplefilter('ignore')

import nova.conf
from nova import objects, version

logging.disable(logging.CRITICAL)
nova.conf.CONF([], project='nova', default_config_files=[])
objects.register_all()

import placement
import questions
import world


def main() -> None:
    """Answer until there are no more questions."""
    world.stop_the_clock()
    world.let_aliases_change()
    placement.know_aggregates()
    questions.give_weighers_their_guests()
    questions.check_layouts()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked:
                answer = questions.ask(asked['cloud'], asked['requests'])
            else:
                answer = {
                    'version': version.version_string(),
                    'filters': sorted(questions.FILTERS),
                    'weighers': sorted(questions.WEIGHERS),
                }
        except Exception:
            answer = {'failed': traceback.format_exc()}
        sys.stdout.write(json.dumps(answer, default=str) + '\n')
        sys.stdout.flush()


main()
