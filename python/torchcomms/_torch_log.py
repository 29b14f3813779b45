"""What torch says of this package in its log, said once.

torch warns with every group that this package serves it, and a job with hundreds of groups pays
for the line on every rank: it is a part of `new_group` that can be measured. Must not import torch.
"""

from __future__ import annotations

import logging

LOGGER = "torch.distributed.distributed_c10d"
_NOTICE = "Using TorchComms backend"


class _OncePerBackend(logging.Filter):
    """Lets the notice through once per device and backend; always where the log tells details."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is to be shown."""
        if record.levelno != logging.WARNING or not str(record.msg).startswith(_NOTICE):
            return True
        if self._logger.isEnabledFor(logging.INFO):
            return True
        notice = repr(record.args)
        if notice in self._said:
            return False
        self._said.add(notice)
        return True


def say_once() -> None:
    """From now on torch's notice appears once for what it says; calling it again does nothing."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, _OncePerBackend) for known in logger.filters):
        logger.addFilter(_OncePerBackend(logger))
