"""Live preview: a page reloads in the browser a few seconds after its file is saved."""

import subprocess
import sys

from scaling_book.site.build import REPRODUCIBLE, build
from scaling_book.site.paths import PROJECT_ROOT, build_dir, site_dir

# What a build writes, and what is not a source of the book
IGNORED = ("_build", ".venv", ".git", "node_modules", "tests", "**/__pycache__", "conf.py")


def main() -> None:
    """Build once, then watch the sources and serve the site on this machine only."""
    import os

    os.environ.update(REPRODUCIBLE)
    build(PROJECT_ROOT)
    # sphinx-autobuild knows Sphinx's configuration file alone; Jupyter Book writes one from ours.
    subprocess.run(["jupyter-book", "config", "sphinx", str(PROJECT_ROOT)], check=True)
    command = [
        sys.executable,
        "-m",
        "sphinx_autobuild",
        str(PROJECT_ROOT),
        str(site_dir(PROJECT_ROOT)),
    ]
    command += ["-d", str(build_dir(PROJECT_ROOT) / ".doctrees"), "--open-browser"]
    for pattern in IGNORED:
        command += ["--ignore", f"{PROJECT_ROOT}/{pattern}"]
    subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
