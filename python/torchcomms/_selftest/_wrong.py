"""What a check of the self-test raises."""


class Wrong(AssertionError):
    """A result that is not the right one."""
