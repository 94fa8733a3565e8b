"""Files that are either whole or absent."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[Path]:
    """A temporary path that takes the place of `path` when the block ends without an exception.

    Whoever reads `path` meanwhile sees the old file or none, never half of the new one, even if
    the process is killed. The folder is created if it is missing.

    Args:
        path: the file to write.

    Yields:
        The path to write to, in the same folder and with the same suffix.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "radii.txt") as temporary:
        ...         _ = temporary.write_text("1.5")
        ...     (Path(folder) / "radii.txt").read_text()
        '1.5'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())  # else a power cut may keep the name but not the bytes
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, meets the old file or the new one, never a part.

    Args:
        path: the file; its folder is made if need be.
        content: what to write.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)
