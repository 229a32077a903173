# SPDX-License-Identifier: Apache-2.0
"""The read side: data of HTTP, the command line and metrics, and what-if.

It claims nothing and changes nothing; the verbs of ``gantt.scheduler`` never import it.
"""
