"""Static files as browsers get them: a digest in the name, and gzip and Brotli beside each file of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whitenoise.storage import CompressedManifestStaticFilesStorage

# Folders of static/. The support admin's files are many, large and rarely fetched: compressing them takes a start 20 s.
OURS = ("css/", "img/", "js/", "vendor/")


class HashedStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # the library has no types
    manifest_strict = False

    def stored_name(self, name: str) -> str:
        """A file that nothing collected, as in a benchmark's process, is named plainly instead of failing the page."""
        try:
            return str(super().stored_name(name))
        except ValueError:
            return name

    def compress_files(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """What has a digest never changes, so it is compressed once."""
        originals = self.hashed_files
        wanted = {originals[name] for name in originals if name.startswith(OURS)}
        new = (path for path in paths if path in wanted and not self.exists(f"{path}.gz"))
        yield from super().compress_files(new)
