"""What a cell can read: when any of it changes, every page must be executed again.

jupyter-cache keys a notebook by its code cells alone. It does not see that the library, the
recorded data or a package version changed, and would go on showing old results. So the cache
lives in a folder named after a hash of all those inputs.
"""

import hashlib
import platform
from importlib import metadata
from pathlib import Path

from scaling_book.site.paths import PROJECT_ROOT

# Not here, on purpose: scaling_book/site (css, js, extensions), which no cell may import.
WATCHED = (
    "code/attention_scaling",
    "code/scaling_book/__init__.py",
    "code/scaling_book/audit",
    "code/scaling_book/evidence",
    "code/scaling_book/lab",
    "data",
    "requirements.txt",
    "matplotlibrc",
)
# The packages whose version can change a number or a figure, as they are really installed: a
# reader on the plain route may have others than the lock names.
PACKAGES = ("numpy", "torch", "matplotlib", "myst-nb", "ipykernel", "ipython", "nbclient")


def _watched_files(root: Path) -> list[Path]:
    files: list[Path] = []
    for name in WATCHED:
        path = root / name
        files += [path] if path.is_file() else path.rglob("*")
    return sorted(p for p in files if p.is_file() and "__pycache__" not in p.parts)


def execution_fingerprint(root: Path = PROJECT_ROOT) -> str:
    """Return 16 hex digits that change whenever the result of a cell may change.

    Parameters
    ----------
    root
        The project's root folder.
    """
    digest = hashlib.sha256()
    for path in _watched_files(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    versions = [f"python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in PACKAGES]
    digest.update("\n".join(versions).encode())
    return digest.hexdigest()[:16]


def execution_cache(build: Path) -> Path:
    """Return the folder of executed notebooks that is valid for the code as it stands now."""
    return build / f".jupyter_cache-{execution_fingerprint()}"
