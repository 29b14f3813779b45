"""`python -m torchcomms bench`: the engine beside its peers, in one run on one machine.

Each system (`_systems`) is a set of processes, one per rank, that stay alive and sleep on a socket
while another system is measured; `_run` asks them in turn, block by block, so that whatever drifts
on the machine drifts for all. The C programs and the MPI libraries come from `_native`, what the
machine can do at best and what Python costs from `_floors` and `_groups`. `_figures` has the
arithmetic; `_tables`, `_page`, `_plots` show the results, `_targets` judges them.
"""

from __future__ import annotations
