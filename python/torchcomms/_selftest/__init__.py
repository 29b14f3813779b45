"""`python -m torchcomms selftest`: whether the installed package works on this machine.

`_command` starts ranks and reports, `_rank` is one of them, `_checks` is what it does.
"""
