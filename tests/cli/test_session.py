"""What the sessions of commands are made with."""

from spark_channel.cli.session import settings

SOCKETS = "spark.python.unix.domain.socket.enabled"


def test_python_tasks_of_this_machine_are_spoken_to_by_unix_sockets() -> None:
    assert settings({}, here=True, submitted=False)[SOCKETS] == "true"
    assert SOCKETS not in settings({}, here=False, submitted=True)


def test_what_the_user_sets_goes_first() -> None:
    given = {SOCKETS: "false", "spark.log.level": "INFO"}
    assert settings(given, here=True, submitted=False) == {
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        **given,
    }
