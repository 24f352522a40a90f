"""Fixtures that several rooms share; a server that takes half a minute to start is started once."""

pytest_plugins = ("tests.support.vllm", "tests.support.require")
