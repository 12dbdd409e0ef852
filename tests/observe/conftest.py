"""As for the service: a server, a private runtime directory, nothing left behind."""

from tests.service.conftest import no_thread_is_left, runtime_directory, server, silent_port

__all__ = ["no_thread_is_left", "runtime_directory", "server", "silent_port"]
