"""Written by the build beside the extension."""

TORCH: str
"""`MAJOR.MINOR` of the torch the extension was built against."""
VERSION: str
"""Version of this package."""
