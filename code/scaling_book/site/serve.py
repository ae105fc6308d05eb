"""Live preview: a page reloads in the browser a few seconds after its file is saved."""

import argparse
import os
import subprocess
import sys

from jupyter_book.cli.main import main as jupyter_book

from scaling_book.site.build import REPRODUCIBLE, build
from scaling_book.site.paths import PROJECT_ROOT, build_dir, site_dir

# What a build writes, and what is not a source of the book
IGNORED = ("_build", ".venv", ".git", "node_modules", "tests", "conf.py", "**/__pycache__")


def main() -> None:
    """Build once, then watch the sources and serve the site on this machine only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port

    os.environ.update(REPRODUCIBLE)
    build(PROJECT_ROOT)
    # sphinx-autobuild knows Sphinx's configuration file alone; Jupyter Book writes one from ours.
    jupyter_book(["config", "sphinx", str(PROJECT_ROOT)], standalone_mode=False)
    command = [sys.executable, "-m", "sphinx_autobuild"]
    command += [str(PROJECT_ROOT), str(site_dir(PROJECT_ROOT))]
    command += ["-d", str(build_dir(PROJECT_ROOT) / ".doctrees"), "--port", str(port)]
    for pattern in IGNORED:
        command += ["--ignore", f"{PROJECT_ROOT}/{pattern}"]
    subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
