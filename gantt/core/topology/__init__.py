# SPDX-License-Identifier: Apache-2.0
"""Where inside a host a guest goes: NUMA cells, cores, pages and devices.

    read (extra specs, image properties → Wish) → lay_out (Wish, Room → Layout)
    → Room.take and Room.give

One answer for the pipeline, the commit and the compute's double check.  A
``Layout`` names everything that it takes, so that whether it holds can be said
without the wish that it was made for.
"""
