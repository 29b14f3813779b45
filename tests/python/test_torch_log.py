"""torch's notice that this package serves a group appears once for each backend."""

import logging
from collections.abc import Iterator

import pytest

from torchcomms import _torch_log


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[list[str]]:
    """What the log of torch's module shows, with a filter that has seen nothing yet."""
    logger = logging.getLogger(_torch_log.LOGGER)
    filters, level, propagates = logger.filters[:], logger.level, logger.propagate
    handler = _Kept()
    logger.filters[:] = []
    logger.propagate = False
    logger.addHandler(handler)
    _torch_log.say_once()
    _torch_log.say_once()
    yield handler.texts
    logger.removeHandler(handler)
    logger.filters[:] = filters
    logger.setLevel(level)
    logger.propagate = propagates


def _notice(logger: logging.Logger, device: str, backend: str) -> None:
    # the words of torch's _new_process_group_helper
    words = "Using TorchComms backend (enabled via %s) for device %s with backend %s"
    logger.warning(words, "dist_config.use_torchcomms", device, backend)


def test_a_backend_is_named_once_and_another_one_too(kept: list[str]) -> None:
    logger = logging.getLogger(_torch_log.LOGGER)
    logger.setLevel(logging.WARNING)
    for _ in range(3):
        _notice(logger, "cpu", "gloo")
        _notice(logger, "cuda", "nccl")
    assert [text.split(" for ")[1] for text in kept] == [
        "device cpu with backend gloo",
        "device cuda with backend nccl",
    ]


def test_other_warnings_are_always_shown(kept: list[str]) -> None:
    logger = logging.getLogger(_torch_log.LOGGER)
    logger.setLevel(logging.WARNING)
    for _ in range(2):
        logger.warning("something else")
        logger.error("Using TorchComms backend failed")
    assert len(kept) == 4


def test_a_log_of_details_has_the_notice_of_each_group(kept: list[str]) -> None:
    logger = logging.getLogger(_torch_log.LOGGER)
    logger.setLevel(logging.INFO)
    for _ in range(3):
        _notice(logger, "cpu", "gloo")
    assert len(kept) == 3


def test_torch_has_a_logger_of_this_name_and_says_these_words() -> None:
    import inspect

    from torch.distributed import distributed_c10d as c10d

    assert c10d.logger.name == _torch_log.LOGGER
    assert _torch_log._NOTICE in inspect.getsource(c10d)
