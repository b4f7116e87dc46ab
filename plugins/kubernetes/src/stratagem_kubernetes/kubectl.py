"""Calling `kubectl`, which knows how to reach the cluster and who asks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from stratagem.errors import UsageError

_WAIT_S = 60.0
PROGRAM = "kubectl"


class NotThereError(UsageError):
    """The cluster has no object of that name."""


@dataclass(frozen=True)
class Kubectl:
    """A namespace of a cluster.

    Attributes:
        context: of kubectl's configuration; None for the current one.
        namespace: None for the context's.
    """

    context: str | None = None
    namespace: str | None = None

    def why_not(self) -> str | None:
        """Return a sentence that says why no cluster can be asked; None if there is one, reachable or not."""
        if shutil.which(PROGRAM) is None:
            return "kubectl isn't installed: https://kubernetes.io/docs/tasks/tools"
        if self.context is None and not self._said(["config", "current-context"]):
            return "kubectl has no current context: kubectl config use-context NAME, or --on-set context=NAME"
        if self.context is not None and not self._said(
            ["config", "get-contexts", self.context, "-o", "name"]
        ):
            return f"kubectl has no context {self.context!r}: `kubectl config get-contexts` lists them"
        return None

    def command(self, *arguments: str) -> list[str]:
        """Return what runs kubectl here."""
        where = [f"--context={self.context}"] if self.context else []
        where += [f"--namespace={self.namespace}"] if self.namespace else []
        return [PROGRAM, *where, *arguments]

    def ask(self, *arguments: str, content: str | None = None) -> str:
        """Run kubectl, and return what it prints.

        Args:
            arguments: as "get", "pods".
            content: what it reads.

        Raises:
            NotThereError: there is no such object.
            UsageError: it isn't installed, the cluster can't be reached, or refuses; in kubectl's words.
        """
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=content,
                capture_output=True,
                text=True,
                timeout=_WAIT_S,
                check=False,
            )
        except FileNotFoundError:
            raise UsageError(self.why_not() or "kubectl is gone") from None
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"kubectl {arguments[0]} got no answer from the cluster for {_WAIT_S:g} s"
            ) from None
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split()) or f"it exited with {done.returncode}"
        kind = NotThereError if "NotFound" in said else UsageError
        raise kind(f"kubectl {arguments[0]}: {said}")

    def stream(self, *arguments: str) -> Iterator[str]:
        """Run kubectl, and yield what it prints line by line; it ends with the iterator."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        try:
            yield from process.stdout
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def _said(self, arguments: list[str]) -> str:
        # Without `command`: no context is named yet.
        done = subprocess.run(
            [PROGRAM, *arguments], capture_output=True, text=True, timeout=_WAIT_S, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
