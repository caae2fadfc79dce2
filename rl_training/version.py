"""The version, in the one place that the package, its metadata and every checkpoint read."""

__version__ = "0.1.0"
