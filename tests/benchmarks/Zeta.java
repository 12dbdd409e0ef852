import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.instance.impl.HazelcastInstanceImpl;
import java.util.List;
import org.apache.seatunnel.common.config.Common;
import org.apache.seatunnel.common.config.DeployMode;
import org.apache.seatunnel.engine.client.SeaTunnelClient;
import org.apache.seatunnel.engine.common.config.ConfigProvider;
import org.apache.seatunnel.engine.common.config.JobConfig;
import org.apache.seatunnel.engine.common.config.SeaTunnelConfig;
import org.apache.seatunnel.engine.core.job.JobResult;
import org.apache.seatunnel.engine.server.SeaTunnelServerStarter;

/**
 * Runs one job file by SeaTunnel's Zeta engine in this process, as its local mode does, and exits when the job ends.
 *
 * <p>Checkpoints are files below the working directory.
 */
public class Zeta {
    private static final String CLUSTER = "peer";

    public static void main(String[] arguments) {
        int code = 1;
        try {
            JobResult result = run(arguments[0]);
            System.out.println(result.getStatus() + " " + result.getError());
            code = result.getStatus().name().equals("FINISHED") ? 0 : 1;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(code); // threads of the engine would keep the process
    }

    private static JobResult run(String file) throws Exception {
        Common.setDeployMode(DeployMode.CLIENT);
        SeaTunnelConfig settings = ConfigProvider.locateAndGetSeaTunnelConfig();
        settings.getEngineConfig()
                .getCheckpointConfig()
                .getStorage()
                .getStoragePluginConfig()
                .put("namespace", System.getProperty("user.dir") + "/checkpoints/");
        settings.getHazelcastConfig().setClusterName(CLUSTER);
        settings.getHazelcastConfig().getNetworkConfig().setPort(0);
        HazelcastInstanceImpl server = SeaTunnelServerStarter.createHazelcastInstance(settings);
        int port = server.getCluster().getLocalMember().getAddress().getPort();
        ClientConfig login = ConfigProvider.locateAndGetClientConfig();
        login.setClusterName(CLUSTER);
        login.getNetworkConfig().setAddresses(List.of("127.0.0.1:" + port));
        try (SeaTunnelClient client = new SeaTunnelClient(login)) {
            JobConfig job = new JobConfig();
            job.setName("copy");
            return client.createExecutionContext(file, job, settings).execute().waitForJobCompleteV2();
        }
    }
}
