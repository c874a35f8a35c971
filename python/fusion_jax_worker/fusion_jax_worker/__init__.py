"""A worker of Fusion whose stages are computed by JAX. See README.md."""

__version__ = "0.1.0"
