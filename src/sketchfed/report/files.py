"""How the report's files come into being."""

from pathlib import Path

from sketchfed.errors import InputError


def write_whole(path: Path, text: str) -> Path:
    """Write a text file at once: whoever opens it sees the old one or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        part.replace(path)
    except OSError as error:
        if part.is_file():
            part.unlink()
        raise InputError(f"cannot write {path}: {error.strerror}. Choose another place for it.") from None
    return path
