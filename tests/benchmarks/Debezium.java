import com.sun.management.OperatingSystemMXBean;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import java.io.FileOutputStream;
import java.io.FileReader;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs Debezium's embedded engine with the properties of a file, until it has delivered so many changes.
 * The property {@code start} is the offset at which it begins.
 *
 * <p>Prints the changes, the seconds and the CPU seconds of this process, from the engine's start to the last change, and the
 * same two from its first batch on, when the JVM and the connector have started.
 */
public class Debezium {
    private static final OperatingSystemMXBean MACHINE =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private static double[] now() {
        return new double[] {System.nanoTime() / 1e9, MACHINE.getProcessCpuTime() / 1e9};
    }

    /** Writes the file of offsets as an engine leaves it that stopped at {@code start}, a JSON object. */
    private static void stopAt(String start, Properties settings) throws IOException {
        HashMap<byte[], byte[]> offsets = new HashMap<>();
        offsets.put(
                "[\"peer\",{\"server\":\"peer\"}]".getBytes(StandardCharsets.UTF_8),
                start.getBytes(StandardCharsets.UTF_8));
        String path = settings.getProperty("offset.storage.file.filename");
        try (ObjectOutputStream file = new ObjectOutputStream(new FileOutputStream(path))) {
            file.writeObject(offsets);
        }
    }

    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(given[0])) {
            settings.load(file);
        }
        if (settings.containsKey("start")) {
            stopAt((String) settings.remove("start"), settings);
        }
        long wanted = Long.parseLong(given[1]);
        long[] found = {0};
        double[][] at = {now(), null, null};
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
                DebeziumEngine.create(io.debezium.engine.format.ChangeEventFormat.of(Connect.class))
                        .using(settings)
                        .using((success, message, error) -> {
                            if (!success) {
                                System.err.println(message);
                                done.countDown();
                            }
                        })
                        .notifying((records, committer) -> {
                            if (at[1] == null) {
                                at[1] = now();
                            }
                            for (RecordChangeEvent<SourceRecord> each : records) {
                                SourceRecord record = each.record();
                                if (record.valueSchema() != null && record.valueSchema().field("op") != null) {
                                    found[0]++;
                                }
                                committer.markProcessed(each);
                            }
                            committer.markBatchFinished();
                            if (found[0] >= wanted && at[2] == null) {
                                at[2] = now();
                                done.countDown();
                            }
                        })
                        .build();
        Executors.newSingleThreadExecutor().execute(engine);
        boolean ended = done.await(120, TimeUnit.SECONDS);
        if (!ended || at[2] == null) {
            System.err.println("found " + found[0] + " changes of " + wanted);
            Runtime.getRuntime().halt(1);
        }
        System.out.printf(
                "%d %.3f %.3f %.3f %.3f%n",
                found[0], at[2][0] - at[0][0], at[2][1] - at[0][1], at[2][0] - at[1][0], at[2][1] - at[1][1]);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
