#!/usr/bin/env bash
# Guess: `assign` begins anew: a partition that was paused before is read when a consumer gets it again.
# Happens: it stays paused, without an error or event: `poll` returns nothing, also after `unassign` and with another offset.
#   `resume` after `assign` ends it.
# Version: confluent-kafka 2.16.1 (librdkafka)
# Copes: spark_channel/connectors/kafka/consumers.py
. "$(dirname "$0")/common.bash"
pip_install confluent-kafka==2.16.1
cat >a.py <<'EOF'
from confluent_kafka import Consumer, Producer, TopicPartition

# A cluster inside of the library.
producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
for number in range(3):
    producer.produce("t", str(number), partition=0)
producer.flush(30)
broker = next(iter(producer.list_topics(timeout=30).brokers.values()))
consumer = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})


def first(seconds):
    record = consumer.poll(seconds)
    return record and record.value().decode()


place = [TopicPartition("t", 0, 0)]
consumer.assign(place)
print("assigned", first(30))
consumer.pause(place)
consumer.unassign()
consumer.assign([TopicPartition("t", 0, 1)])
print("paused, unassigned and assigned again", first(5))
consumer.resume(place)
print("resumed", first(30))
consumer.close()
EOF
observe python3 a.py
expect <<'EOF'
assigned 0
paused, unassigned and assigned again None
resumed 1
EOF
