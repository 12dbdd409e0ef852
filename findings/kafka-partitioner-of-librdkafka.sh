#!/usr/bin/env bash
# Guess: two producers put records with one key into the same partition of a topic, whatever their languages.
# Happens: librdkafka's default hashes keys by CRC-32, Java's client by murmur2: after a producer in Python beside one in Java,
#   the changes of one key are in two partitions, without an order. `partitioner=murmur2_random` is Java's.
# Version: confluent-kafka 2.16.1 (librdkafka), kafka-clients 4.1.2
# Copes: spark_channel/connectors/kafka/client.py
. "$(dirname "$0")/common.bash"
pip_install confluent-kafka==2.16.1
maven org.apache.kafka:kafka-clients:4.1.2
cat >a.py <<'EOF'
from confluent_kafka import Producer

for settings in ({}, {"partitioner": "murmur2_random"}):
    found = {}
    # A cluster inside of the library; its new topics have 4 partitions.
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0, **settings})
    for key in "abcdef":
        producer.produce("t", key=key, on_delivery=lambda error, record: found.update({record.key(): record.partition()}))
    producer.flush(30)
    print(settings.get("partitioner", "default"), [found[key.encode()] for key in "abcdef"])
EOF
cat >A.java <<'EOF'
class A {
    public static void main(String[] none) {
        var found = new java.util.ArrayList<Integer>();
        for (String key : "abcdef".split("")) {
            found.add(org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey(key.getBytes(), 4));
        }
        System.out.println("Java " + found);
    }
}
EOF
observe bash -c 'python3 a.py && java -cp "$0/*" A.java 2>/dev/null' "$jars"
expect <<'EOF'
default [3, 1, 3, 0, 2, 0]
murmur2_random [0, 0, 2, 1, 2, 3]
Java [0, 0, 2, 1, 2, 3]
EOF
