"""Where things are. The project is installed in place, so its root is three levels up."""

from pathlib import Path

SITE = Path(__file__).resolve().parent
PROJECT_ROOT = SITE.parents[2]
NODE_MODULES = PROJECT_ROOT / "node_modules"


def build_dir(source: Path) -> Path:
    """Return the folder under which a book in `source` keeps everything it builds."""
    return source / "_build"


def site_dir(source: Path) -> Path:
    """Return the folder of the finished static site, where Jupyter Book puts it too."""
    return build_dir(source) / "html"
