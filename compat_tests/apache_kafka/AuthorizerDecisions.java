import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.MetricValueProvider;
import org.apache.kafka.common.metrics.PluginMetrics;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Decisions of Apache Kafka's authorizer. Lines of tab-separated words on standard input begin a rule set (`set`), add an
 * ACL (`acl`), or ask for a decision (`ask`, `any`), which is printed.
 */
public class AuthorizerDecisions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        StandardAuthorizer authorizer = null;
        Map<Uuid, StandardAcl> acls = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "set":
                    acls = new HashMap<>();
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of(
                        "super.users", words[1], "allow.everyone.if.no.acl.found", words[2], "node.id", "1"));
                    authorizer.withPluginMetrics(new NoMetrics());
                    break;
                case "acl":
                    acls.put(Uuid.randomUuid(), new StandardAcl(
                        ResourceType.valueOf(words[1]), words[2], PatternType.valueOf(words[3]), words[4], words[5],
                        AclOperation.valueOf(words[6]), AclPermissionType.valueOf(words[7])));
                    break;
                default:
                    if (acls != null) {
                        authorizer.loadSnapshot(acls);
                        authorizer.completeInitialLoad();
                        acls = null;
                    }
                    out.println(decide(authorizer, words));
            }
        }
        out.flush();
    }

    private static AuthorizationResult decide(StandardAuthorizer authorizer, String[] words) throws Exception {
        Context context = new Context(SecurityUtils.parseKafkaPrincipal(words[1]), InetAddress.getByName(words[2]));
        AclOperation operation = AclOperation.valueOf(words[3]);
        ResourceType type = ResourceType.valueOf(words[4]);
        if (words[0].equals("any")) {
            return authorizer.authorizeByResourceType(context, operation, type);
        }
        ResourcePattern resource = new ResourcePattern(type, words[5], PatternType.LITERAL);
        return authorizer.authorize(context, List.of(new Action(operation, resource, 1, true, true))).get(0);
    }

    private static class NoMetrics implements PluginMetrics {
        @Override
        public MetricName metricName(String name, String description, LinkedHashMap<String, String> tags) {
            return new MetricName(name, "none", description, tags);
        }

        @Override
        public void addMetric(MetricName metricName, MetricValueProvider<?> metricValueProvider) {
        }

        @Override
        public void removeMetric(MetricName metricName) {
        }

        @Override
        public Sensor addSensor(String name) {
            return new Metrics().sensor(name);
        }

        @Override
        public void removeSensor(String name) {
        }
    }

    private record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "PLAINTEXT";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public int requestType() {
            return 0;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }
}
