"""The engine: a gRPC worker that generates tokens. It knows nothing of the web side."""

__version__ = "0.1.0"
