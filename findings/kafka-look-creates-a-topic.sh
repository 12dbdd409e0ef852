#!/usr/bin/env bash
# Guess: to ask about a topic changes nothing; one that is not there is an error.
# Happens: `list_topics(name)` of a producer creates the topic, where brokers allow that (their default): a name that is
#   mistyped answers with partitions. A consumer's does not.
# Version: confluent-kafka 2.16.1 (librdkafka)
# Copes: spark_channel/connectors/kafka/client.py
. "$(dirname "$0")/common.bash"
pip_install confluent-kafka==2.16.1
observe python3 - <<'EOF'
from confluent_kafka import Consumer, Producer

# A cluster inside of the library.
producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
(broker,) = producer.list_topics(timeout=30).brokers.values()
consumer = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})
print("consumer", consumer.list_topics("typo", timeout=30).topics["typo"].error.name())
print("producer", producer.list_topics("typo", timeout=30).topics["typo"].error)
print("consumer", consumer.list_topics("typo", timeout=30).topics["typo"].error)
consumer.close()
EOF
expect <<'EOF'
consumer UNKNOWN_TOPIC_OR_PART
producer None
consumer None
EOF
