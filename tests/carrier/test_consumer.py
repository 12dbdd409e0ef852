"""The life of a consumer: what is called, how often, in which thread, and what its errors do."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_channel.carrier import BulkConsumePool, Consumer, ConsumerDriver, DataCarrier
from spark_channel.errors import ChannelClosedError
from tests.carrier.helpers import JOIN_SECONDS, Collector, Gate, batch, values


@pytest.fixture(params=["own thread", "two threads of one channel", "pool"])
def begin(request: pytest.FixtureRequest) -> Callable[..., ConsumerDriver]:
    """Consumes a carrier of one channel, in each way that there is."""

    def in_own_thread(carrier: DataCarrier, consumer: Consumer) -> ConsumerDriver:
        return carrier.consume(consumer)

    def in_two_threads(carrier: DataCarrier, consumer: Consumer) -> ConsumerDriver:
        return carrier.consume(consumer, threads=2)

    def in_pool(carrier: DataCarrier, consumer: Consumer) -> ConsumerDriver:
        pool = BulkConsumePool()
        request.addfinalizer(pool.close)
        return carrier.consume(consumer, pool=pool)

    return {
        "own thread": in_own_thread,
        "two threads of one channel": in_two_threads,
        "pool": in_pool,
    }[request.param]


Begin = Callable[[DataCarrier, Consumer], ConsumerDriver]


def test_a_consumer_is_set_up_once_fed_and_left_once(begin: Begin) -> None:
    carrier, consumer = DataCarrier(), Collector()
    driver = begin(carrier, consumer)
    assert driver.is_running()
    for n in range(5):
        carrier.produce(batch(n))
    assert carrier.shutdown() is True
    assert not driver.is_running()
    assert sorted(consumer.values()) == [0, 1, 2, 3, 4]
    assert consumer.events[0] == "init"
    assert consumer.events[-1] == "on_exit"
    assert set(consumer.events[1:-1]) == {"consume"}
    assert all(name.startswith("spark-channel-") for name in consumer.threads)


def test_a_consumer_without_a_batch_is_set_up_and_left_all_the_same(begin: Begin) -> None:
    carrier, consumer = DataCarrier(), Collector()
    begin(carrier, consumer)
    assert carrier.shutdown() is True
    assert consumer.events == ["init", "on_exit"]


def test_what_was_stored_before_comes_first(begin: Begin) -> None:
    carrier, consumer = DataCarrier(), Collector()
    carrier.produce(batch(1))
    carrier.close()
    begin(carrier, consumer)
    assert carrier.shutdown() is True
    assert consumer.values() == [1]


def test_an_error_in_consume_reaches_on_error_with_those_very_batches_and_the_thread_lives_on(
    begin: Begin,
) -> None:
    handed: list[list[pa.RecordBatch]] = []
    reported: list[tuple[list[pa.RecordBatch], Exception]] = []

    class Odd(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            super().consume(batches)
            if values(batches)[0] % 2:
                handed.append(batches)
                raise ValueError("odd")

        def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
            reported.append((batches, error))

    carrier, consumer = DataCarrier(), Odd()
    driver = begin(carrier, consumer)
    for n in range(6):
        carrier.produce(batch(n))
        consumer.wait_for(n + 1)
    assert driver.is_running()
    assert carrier.shutdown() is True
    assert sorted(consumer.values()) == [0, 1, 2, 3, 4, 5]
    assert len(reported) == 3
    assert {id(batches) for batches, _ in reported} == {id(batches) for batches in handed}
    assert {str(error) for _, error in reported} == {"odd"}
    assert carrier.error is None


class Broken(Collector):
    def consume(self, batches: list[pa.RecordBatch]) -> None:
        super().consume(batches)
        raise ValueError("broken")


def test_an_on_error_that_raises_fails_the_carrier(begin: Begin) -> None:
    class Unforgiving(Broken):
        def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
            raise RuntimeError("cannot go on") from error

    carrier, consumer = DataCarrier(), Unforgiving()
    driver = begin(carrier, consumer)
    carrier.produce(batch(1))
    assert driver.wait(JOIN_SECONDS)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot go on") as raised:
            carrier.shutdown()
        assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(RuntimeError, match="cannot go on"):
        carrier.produce(batch(2))
    assert consumer.events == ["init", "consume", "on_exit"]


def test_without_an_on_error_the_error_itself_fails_the_carrier(begin: Begin) -> None:
    class Plain(Consumer):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            raise ValueError("broken")

    carrier = DataCarrier()
    driver = begin(carrier, Plain())
    carrier.produce(batch(1))
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(ValueError, match="broken"):
        carrier.shutdown()


def test_an_init_that_raises_fails_the_carrier_and_nothing_is_consumed(begin: Begin) -> None:
    class Unready(Collector):
        def init(self) -> None:
            super().init()
            raise OSError("no connection")

    carrier, consumer = DataCarrier(), Unready()
    carrier.produce(batch(1))
    driver = begin(carrier, consumer)
    assert driver.wait(JOIN_SECONDS)
    assert not driver.is_running()
    with pytest.raises(OSError, match="no connection"):
        carrier.produce(batch(2))
    with pytest.raises(OSError, match="no connection"):
        carrier.shutdown()
    assert consumer.events == ["init"], "what was not set up is not left"


def test_an_on_exit_that_raises_is_told_by_shutdown(begin: Begin) -> None:
    class LastFlush(Collector):
        def on_exit(self) -> None:
            super().on_exit()
            raise OSError("disk full")

    carrier, consumer = DataCarrier(), LastFlush()
    begin(carrier, consumer)
    carrier.produce(batch(1))
    with pytest.raises(OSError, match="disk full"):
        carrier.shutdown()
    assert consumer.events == ["init", "consume", "on_exit"]


@pytest.mark.parametrize("where", ["init", "consume", "on_error", "on_exit"])
def test_a_system_exit_fails_the_carrier_wherever_it_comes_from(begin: Begin, where: str) -> None:
    class Leaving(Broken):
        def _note(self, event: str) -> None:
            super()._note(event)
            if event == where:
                raise SystemExit(3)

    carrier = DataCarrier()
    carrier.produce(batch(1))
    driver = begin(carrier, Leaving())
    carrier.close()
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(SystemExit):
        carrier.shutdown()


def test_a_consumer_may_shut_its_carrier_down_from_within(begin: Begin) -> None:
    answers: list[bool] = []

    class Closing(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            super().consume(batches)
            answers.append(carrier.shutdown())

    carrier, consumer = DataCarrier(), Closing()
    for n in range(4):
        carrier.produce(batch(n))
    driver = begin(carrier, consumer)
    assert driver.wait(JOIN_SECONDS)
    assert set(answers) == {False}, "it cannot have ended while it consumes"
    assert sorted(consumer.values()) == [0, 1, 2, 3], "what was there is consumed"
    assert consumer.events[-1] == "on_exit"
    with pytest.raises(ChannelClosedError):
        carrier.produce(batch(9))
    assert carrier.shutdown() is True


def test_a_consumer_may_close_its_driver_from_within(begin: Begin) -> None:
    class Closing(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            super().consume(batches)
            assert driver.close() is False

    carrier, consumer = DataCarrier(), Closing()
    driver = begin(carrier, consumer)
    carrier.produce(batch(1))
    assert driver.wait(JOIN_SECONDS)
    assert consumer.values() == [1]
    carrier.produce(batch(2))
    assert values(carrier.drain()) == [2], "the carrier is open"


def test_a_consumer_may_fail_its_carrier_from_within(begin: Begin) -> None:
    class Failing(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            super().consume(batches)
            carrier.fail(OSError("gone"))

    carrier, consumer = DataCarrier(), Failing()
    driver = begin(carrier, consumer)
    carrier.produce(batch(1))
    assert driver.wait(JOIN_SECONDS)
    assert consumer.events == ["init", "consume", "on_exit"]
    with pytest.raises(OSError, match="gone"):
        carrier.shutdown()


def test_a_consumer_may_produce_into_its_own_carrier(begin: Begin) -> None:
    class Echo(Collector):
        def consume(self, batches: list[pa.RecordBatch]) -> None:
            for n in values(batches):
                if n:
                    carrier.produce(batch(n - 1))
            super().consume(batches)

    carrier, consumer = DataCarrier(), Echo()
    begin(carrier, consumer)
    carrier.produce(batch(5))
    consumer.wait_for(6)
    assert carrier.shutdown() is True
    assert sorted(consumer.values()) == [0, 1, 2, 3, 4, 5]


def test_fail_gives_up_what_is_stored_and_the_consumer_is_left(begin: Begin) -> None:
    carrier, consumer = DataCarrier(), Gate()
    driver = begin(carrier, consumer)
    carrier.produce(batch(1))
    assert consumer.entered.wait(JOIN_SECONDS)
    carrier.fail(OSError("gone"))
    consumer.opened.set()
    assert driver.wait(JOIN_SECONDS)
    assert consumer.events == ["init", "consume", "on_exit"]


def test_each_thread_has_its_own_consumer_when_a_class_is_given() -> None:
    made: list[Collector] = []

    class Own(Collector):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    carrier = DataCarrier(3)
    carrier.consume(Own, threads=3)
    for n in range(30):
        carrier.produce(batch(n))
    assert carrier.shutdown() is True
    assert len(made) == 3
    for consumer in made:
        assert consumer.events[0] == "init"
        assert consumer.events[-1] == "on_exit"
        assert len(set(consumer.threads)) == 1, "made, fed and left in one thread"
    assert len({consumer.threads[0] for consumer in made}) == 3
    assert sorted(n for consumer in made for n in consumer.values()) == list(range(30))


def test_one_object_is_shared_by_all_threads_and_left_by_the_last() -> None:
    carrier, consumer = DataCarrier(3), Collector()
    carrier.consume(consumer, threads=3)
    for n in range(30):
        carrier.produce(batch(n))
    assert carrier.shutdown() is True
    assert consumer.events.count("init") == consumer.events.count("on_exit") == 1
    assert consumer.events[0] == "init"
    assert consumer.events[-1] == "on_exit"
    assert sorted(consumer.values()) == list(range(30))


def test_a_factory_that_raises_fails_the_carrier_and_the_others_are_left() -> None:
    made: list[Collector] = []

    def make() -> Consumer:
        if made:
            raise OSError("one connection only")
        made.append(Collector())
        return made[0]

    carrier = DataCarrier(2)
    driver = carrier.consume(make, threads=2)
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(OSError, match="one connection only"):
        carrier.shutdown()
    assert made[0].events == ["init", "on_exit"]


def test_a_factory_that_makes_no_consumer_is_named() -> None:
    carrier = DataCarrier()
    driver = carrier.consume(lambda: "a text")  # type: ignore[arg-type, return-value]
    assert driver.wait(JOIN_SECONDS)
    with pytest.raises(TypeError, match="a text"):
        carrier.shutdown()
