"""A Python that has imported what a build of a book needs, and runs code in forks of itself.

A build of a tiny book takes most of its time for imports. Here they happen once for many builds.
Each still has a process of its own, with its own folder, arguments and output, and ends with it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

CONFIGURATION = Path(__file__).parents[1] / "_config.yml"
# What Sphinx imports by name beside the extensions, and what a build of this book adds.
FURTHER = ("jupyter_book.sphinx", "scaling_book.site.execution", "sphinx.builders.html")


class WarmPython:
    """The side of whoever orders.

    Parameters
    ----------
    environment
        What to add to the environment of every run.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def run(self, code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Do as ``python -c code``; both output streams come as one."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile("r", encoding="utf8") as output:
            order = [code, ["-c", *arguments], str(cwd), output.name]
            print(json.dumps(order), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()
            said = output.read()
        assert answer, f"the warm Python ended:\n{said}"
        return subprocess.CompletedProcess(order, int(answer), said)

    def close(self) -> None:
        """End it."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def _serve() -> None:
    extensions = yaml.safe_load(CONFIGURATION.read_text("utf8"))["sphinx"]["config"]["extensions"]
    for name in (*extensions, *FURTHER):
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(code: str, arguments: list[str], folder: str, output: str) -> None:
    """Be the program that is wanted; it ends with this process."""
    for target, source, mode in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY)):
        opened = os.open(source, mode | os.O_APPEND)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)
    os.chdir(folder)
    sys.path[0] = ""
    sys.argv = arguments
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve()
