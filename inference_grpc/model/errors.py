"""What is wrong with a model's files."""

from __future__ import annotations


class ModelFileError(Exception):
    """A file that is not sound, or lacks what was asked of it. The text names the file, the place and the way out."""
