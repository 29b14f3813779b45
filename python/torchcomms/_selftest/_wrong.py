"""What a check of the self-test raises. Must not know checks."""


class Wrong(AssertionError):
    """A result that is not the right one."""
