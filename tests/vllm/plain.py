"""vLLM's own server as anybody would start it: no launcher, no contract."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.vllm import START_TIMEOUT, VllmServer, vllm_python

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_ARGUMENTS = ("--enforce-eager", "--kv-cache-memory-bytes", "67108864", "--no-enable-chunked-prefill")


class PlainVllm(VllmServer):
    """On the model's folder, in float32 unless its arguments say otherwise; ready when `/health` answers."""

    def start(self) -> None:
        python = vllm_python()
        assert python is not None
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--served-model-name", self.name, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", *_ARGUMENTS, *self.engine_args]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_clean(), **_ENVIRONMENT, **self._environment},
                start_new_session=True,
                cwd=Path(self._log).parent,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.call("GET", "/health", timeout=2).status == 200:
                    return
            except OSError:
                time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"plain vLLM did not start: {self.log()[-3000:]}")


def _clean() -> Mapping[str, str]:
    """This process's environment without what would change vLLM."""
    import os

    return {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
